//! An environment that cannot be read at exec is counted as lost, and only where the process could have been a plugin.
//!
//! An exec leaves its environment in memory, so no exec provokes this on a node that does not swap. The test drops the pages
//! of its own environment and runs the exec program by `BPF_PROG_TEST_RUN`, with itself as the task that executed.

use std::process::Command;

use aya::maps::PerCpuArray;
use aya::programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::{Btf, Ebpf, EbpfLoader};
use rustix::mm::{Advice, madvise};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use sandglass_probes::wire::LOST_ENVIRONMENT;

use crate::watch::Watch;

// Of include/uapi/linux/bpf.h, as in Linux 6.12.
const BPF_PROG_LOAD: u32 = 5;
const BPF_PROG_TEST_RUN: u32 = 10;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

const CHILD: &str = "SANDGLASS_TEST_UNREADABLE";

#[test]
fn an_environment_that_cannot_be_read_is_counted() {
    // Where this finds no root or no BPF, it prints the reason.
    if Watch::start("an_environment_that_cannot_be_read_is_counted").is_none() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "unreadable::child", "--nocapture"])
        .env(CHILD, "1")
        .env("CNI_COMMAND", "ADD")
        // Whole pages, so that no other data of the process lies in the pages that are dropped.
        .env("FILLER", "f".repeat(64 * 1024))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && log.contains("counted 0, 1, 0"),
        "{log}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// By itself not a test, but the process that `an_environment_that_cannot_be_read_is_counted` starts.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let task = current_task();
    // One object for each run: a process that was recognized as a plugin is tracked from then on.
    let [before, trusted, untrusted] = [(); 3].map(|()| load_exec());
    let before = lost_by_an_exec(&before, task);
    drop_environment();
    let trusted = lost_by_an_exec(&trusted, task);
    // CAP_BPF stays, which BPF_PROG_TEST_RUN asks for.
    let mut sets = capabilities(None).unwrap();
    sets.effective -= CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets).unwrap();
    let untrusted = lost_by_an_exec(&untrusted, task);
    println!("counted {before}, {trusted}, {untrusted}");
}

fn load_exec() -> Ebpf {
    let types = Btf::from_sys_fs().unwrap();
    let mut ebpf = EbpfLoader::new()
        .btf(Some(&types))
        .map_max_entries("records", 1 << 20)
        .load(sandglass_probes::EXEC_RAW_TP)
        .unwrap();
    let on_exec: &mut RawTracePoint = ebpf.program_mut("on_exec").unwrap().try_into().unwrap();
    on_exec.load().unwrap();
    ebpf
}

/// Runs the exec program for this task; returns how many environments were counted as lost.
fn lost_by_an_exec(ebpf: &Ebpf, task: u64) -> u64 {
    let mut arguments = RawTracePointRunOptions::new();
    // include/trace/events/sched.h, sched_process_exec: the task, its old pid, the linux_binprm (here none).
    arguments.args[0] = task;
    let on_exec: &RawTracePoint = ebpf.program("on_exec").unwrap().try_into().unwrap();
    on_exec.test_run(arguments).unwrap();
    let lost: PerCpuArray<_, u64> = ebpf.map("lost").unwrap().try_into().unwrap();
    lost.get(&LOST_ENVIRONMENT, 0).unwrap().iter().sum()
}

/// Drops the whole pages of this process's environment; nothing reads them afterwards, so they stay absent.
fn drop_environment() {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // proc_pid_stat(5): env_start and env_end are fields 50 and 51; the name, field 2, ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    const PAGE: usize = 4096;
    let start = fields[47].parse::<usize>().unwrap().next_multiple_of(PAGE);
    let end = fields[48].parse::<usize>().unwrap() / PAGE * PAGE;
    assert!(end - start >= 32 * 1024, "{stat}");
    // SAFETY: the pages hold bytes of environment variables only, and no reference to one of them exists.
    unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(start),
            end - start,
            Advice::LinuxDontNeed,
        )
    }
    .unwrap();
}

/// The address of this thread's task_struct, which only a BPF program learns; a test run returns 32 bits of it at a time.
fn current_task() -> u64 {
    const CALL: u64 = 0x85;
    const SHIFT_RIGHT: u64 = 0x77;
    const EXIT: u64 = 0x95;
    // Of include/uapi/linux/bpf.h: the helper bpf_get_current_task. Register 0 has its result.
    let call = 35 << 32 | CALL;
    let low = run(&[call, EXIT]);
    let high = run(&[call, 32 << 32 | SHIFT_RIGHT, EXIT]);
    u64::from(high) << 32 | u64::from(low)
}

/// Loads these instructions as a program for raw tracepoints, runs it once and returns its result.
fn run(instructions: &[u64]) -> u32 {
    // The first fields of `union bpf_attr` for these commands (include/uapi/linux/bpf.h).
    #[repr(C)]
    struct Load {
        program_type: u32,
        count: u32,
        instructions: u64,
        license: u64,
    }
    #[repr(C)]
    struct TestRun {
        program: u32,
        result: u32,
        data: [u64; 8],
    }
    let load = Load {
        program_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        count: instructions.len().try_into().unwrap(),
        instructions: instructions.as_ptr().expose_provenance() as u64,
        license: c"GPL".as_ptr().expose_provenance() as u64,
    };
    // SAFETY: the kernel reads the structure, and the instructions and the string that it points to, all of which outlive the call.
    let program = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    assert!(program >= 0, "{}", std::io::Error::last_os_error());
    let program = u32::try_from(program).unwrap();
    let mut test = TestRun {
        program,
        result: 0,
        data: [0; 8],
    };
    // SAFETY: the kernel reads and writes the structure, which outlives the call.
    let outcome = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut test, size_of::<TestRun>()) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    test.result
}
