//! Measures where the kernel's linear mapping shows the pages of pipes, which x86 randomizes at boot
//! (arch/x86/mm/kaslr.c, kernel_randomize_memory) and arm64 places by its version (arch/arm64/include/asm/memory.h,
//! VMEMMAP_START).
//!
//! Used once, when the process probe is attached. It needs no symbol and guesses nothing: the kernel side must find a random
//! token, written into a pipe of the agent's own, at the address. Without that the pipes of plugins are not read.
//! Does not: copy anything that it compares with out of the kernel.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use sandglass_probes::wire::{
    CALIBRATION_ELSEWHERE, CALIBRATION_FOUND, CALIBRATION_PENDING, CALIBRATION_STEPS, Calibration, STRUCT_PAGE_BYTES,
};

use crate::sources::linux::loader::family::{Family, ProbeLoader};
use crate::sources::linux::loader::maps::Pages;

/// Runs the calibration.
///
/// # Errors
/// The reason, for the status of the probe.
pub fn run(family: &mut Family, pages: &mut Pages, loader: &ProbeLoader<'_>) -> Result<(), String> {
    family
        .with_attached("on_exit_calibrate", "sched_process_exit", loader, || search(pages))
        .map_err(|error| error.to_string())?
        .map_err(str::to_owned)
}

/// Searches while the program is attached.
fn search(pages: &mut Pages) -> Result<(), &'static str> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err("where pages of pipes lie is only known for x86_64 and arm64");
    }
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (reader, writer) = pipe.map_err(|_| "no pipe can be made")?;
    // 128 random bits: nothing else in memory holds them.
    let token = [0, 1].map(|n: u64| RandomState::new().hash_one(n));
    let bytes: Vec<u8> = token.iter().flat_map(|word| word.to_ne_bytes()).collect();
    File::from(writer)
        .write_all(&bytes)
        .map_err(|_| "a pipe cannot be written")?;
    let fd = u32::try_from(reader.as_raw_fd()).unwrap_or(u32::MAX);
    let ended = rounds()
        .map(|from_gib| round(pages, token, fd, from_gib))
        .find(|outcome| *outcome != CALIBRATION_ELSEWHERE);
    match ended {
        Some(CALIBRATION_FOUND) => Ok(()),
        Some(_) => Err("the exit of a thread of the agent's own was not seen"),
        None => Err("the kernel's linear mapping was not found"),
    }
}

/// Where each round begins, in GiB from the first guess. Below it first: a task lies above the begin of the mapping.
fn rounds() -> impl Iterator<Item = i64> {
    let steps = i64::from(CALIBRATION_STEPS);
    (0..ROUNDS).flat_map(move |n| [-n * steps, (n + 1) * steps])
}

/// Runs one round: the kernel side compares when a thread of this process exits.
fn round(pages: &mut Pages, token: [u64; 2], fd: u32, from_gib: i64) -> u32 {
    let wanted = Calibration {
        token,
        bias: 0,
        from_gib,
        scale: rustix::param::page_size() as u64 / u64::from(STRUCT_PAGE_BYTES),
        pid: std::process::id(),
        fd,
        outcome: CALIBRATION_PENDING,
        unused: 0,
    };
    match pages.set(&wanted) && std::thread::spawn(|| {}).join().is_ok() {
        true => outcome(pages),
        false => CALIBRATION_PENDING,
    }
}

/// Waits for the outcome of a round. A thread can be joined once it has left its memory (kernel/fork.c, mm_release), which on
/// a busy node is long before the tracepoint of its exit: to begin the next round by then would lose both.
fn outcome(pages: &Pages) -> u32 {
    let deadline = Instant::now() + ROUND_DEADLINE;
    loop {
        let outcome = pages.outcome();
        if outcome != CALIBRATION_PENDING || Instant::now() > deadline {
            return outcome;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Each tries 256 GiB, below the first guess and above it by turns.
const ROUNDS: i64 = 8;
/// Pause between two reads of the outcome.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Longest wait for the exit of one thread. A round that takes longer is given up with the probe's pipes.
const ROUND_DEADLINE: Duration = Duration::from_secs(1);
