//! Decoding on bytes: what is kept, what is refused, and that nothing panics.

use proptest::prelude::*;
use sandglass_probes::wire::{FLAG_ENV_CUT, ROLE_TRACKED};

use super::*;

fn header(kind: u32) -> RecordHeader {
    RecordHeader {
        kind,
        pid: 42,
        at_ns: 5_000_000_000,
        start_ns: 1_234_567_890,
        ring_bytes: 96,
    }
}

fn exec_bytes(path: &[u8], args: &[u8], env: &[u8], flags: u32) -> Vec<u8> {
    let record = ExecRecord {
        header: header(KIND_EXEC),
        parent_start_ns: 990_000_000,
        cgroup_id: 77,
        processor_ns: 300_000,
        run_delay_ns: 20_000,
        parent_pid: 41,
        netns: 4_026_531_840,
        role: ROLE_TRACKED,
        flags,
        path_len: path.len() as u32,
        args_len: args.len() as u32,
        env_len: env.len() as u32,
        unused: 0,
        parent_comm: *b"containerd\0junk!",
    };
    [record.bytes(), path, args, env].concat()
}

fn decoded(bytes: &[u8]) -> DecodedProcess {
    decode(bytes).unwrap()
}

fn exec_of(bytes: &[u8]) -> Exec {
    match decoded(bytes).event.body {
        Body::ProcessExecuted(exec) => *exec,
        other => panic!("{other:?}"),
    }
}

#[test]
fn exec_keeps_only_the_permitted_environment() {
    let env =
        b"CNI_COMMAND=ADD\0TRACE_SECRET=x\0TRACEPARENT=00-1\0AWS_SECRET=y\0CNI_EMPTY=\0CNI_NOEQUALS\0TRACESTATE=k=v\0";
    let exec = exec_of(&exec_bytes(b"/opt/cni/bin/bridge", b"bridge\0", env, FLAG_ENV_CUT));
    let kept: Vec<_> = exec.env.iter().collect();
    assert_eq!(
        kept,
        [
            ("CNI_COMMAND", "ADD"),
            ("TRACEPARENT", "00-1"),
            ("CNI_EMPTY", ""),
            ("TRACESTATE", "k=v")
        ]
    );
}

#[test]
fn exec_fields_come_through() {
    let bytes = exec_bytes(b"/opt/\xffcni", b"a\0\0b\xc3\x28\0cut", b"", FLAG_ARGS_CUT);
    let decoded = decoded(&bytes);
    assert_eq!(
        (decoded.cgroup_id, decoded.role, decoded.ring_bytes),
        (77, ProcessRole::Tracked, 96)
    );
    assert_eq!(decoded.event.at, Timestamp(5_000_000_000));
    let exec = exec_of(&bytes);
    assert_eq!(
        exec.process,
        ProcessKey {
            pid: 42,
            start_ticks: 123
        }
    );
    assert_eq!(
        exec.parent,
        ProcessKey {
            pid: 41,
            start_ticks: 99
        }
    );
    assert_eq!(exec.parent_comm, "containerd");
    assert_eq!(exec.path, "/opt/\\xffcni");
    assert_eq!(exec.args, ["a", "", "b\\xc3(", "cut"]);
    assert!(exec.args_truncated && exec.env.is_empty() && exec.cgroup.is_empty() && !exec.running);
    assert_eq!(exec.netns, 4_026_531_840);
    let counted = SchedulerCount {
        processor_ns: 300_000,
        run_delay_ns: 20_000,
    };
    assert_eq!(exec.counted, Some(counted));
}

#[test]
fn no_arguments_are_no_arguments() {
    assert!(exec_of(&exec_bytes(b"/x", b"", b"", 0)).args.is_empty());
    assert_eq!(exec_of(&exec_bytes(b"/x", b"\0", b"", 0)).args, [""]);
}

#[test]
fn an_exit_is_a_code_or_a_signal() {
    for (status, how) in [
        (0, ExitStatus::Code(0)),
        (1 << 8, ExitStatus::Code(1)),
        (255 << 8, ExitStatus::Code(255)),
        (9, ExitStatus::Signal(9)),
        (11 | 128, ExitStatus::Signal(11)),
    ] {
        let record = ExitRecord {
            header: header(KIND_EXIT),
            status,
            role: ROLE_RUNTIME,
            stdin_len: 0,
            stdout_len: 0,
        };
        let decoded = decoded(record.bytes());
        assert_eq!(decoded.role, ProcessRole::Runtime);
        let process = ProcessKey {
            pid: 42,
            start_ticks: 123,
        };
        assert_eq!(decoded.event.body, Body::ProcessExited(Exit { process, how }));
    }
}

#[test]
fn fork_names_both() {
    let record = ForkRecord {
        header: header(KIND_FORK),
        parent_start_ns: 10_000_000,
        parent_thread_start_ns: 20_000_000,
        parent_pid: 7,
        parent_tid: 8,
        role: ROLE_RUNTIME_FORK,
        reserved: 0,
        goroutine: GoroutineWords {
            at_152: 1,
            at_160: 2,
            at_272: 3,
            at_280: 4,
        },
    };
    let decoded = decoded(record.bytes());
    assert_eq!(decoded.goroutine, record.goroutine);
    assert_eq!(decoded.role, ProcessRole::RuntimeFork);
    assert_eq!(
        decoded.event.body,
        Body::ProcessForked(Fork {
            process: ProcessKey {
                pid: 42,
                start_ticks: 123
            },
            parent: ProcessKey { pid: 7, start_ticks: 1 },
            thread: Some(ThreadKey {
                id: 8,
                begin: Timestamp(20_000_000),
            }),
            goroutine: None,
        })
    );
}

#[test]
fn what_is_too_short_or_unknown_is_refused() {
    let whole = exec_bytes(b"/bin/x", b"x\0", b"CNI_COMMAND=ADD\0", 0);
    for len in 0..whole.len() {
        assert!(
            matches!(decode(&whole[..len]), Err(DecodeError::Short { .. })),
            "{len} bytes"
        );
    }
    assert_eq!(decode(header(99).bytes()), Err(DecodeError::UnknownKind(99)));
    let mut lying = whole.clone();
    let path_len_at = std::mem::offset_of!(ExecRecord, path_len);
    lying[path_len_at..path_len_at + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert!(matches!(decode(&lying), Err(DecodeError::Short { .. })));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(kind in 0_u32..6, mut bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if bytes.len() >= 4 && kind != 0 {
            bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        }
        let _ = decode(&bytes);
    }

    #[test]
    fn any_strings_stay_bounded(path in prop::collection::vec(any::<u8>(), 0..64), args in prop::collection::vec(any::<u8>(), 0..256), env in prop::collection::vec(any::<u8>(), 0..256)) {
        let exec = exec_of(&exec_bytes(&path, &args, &env, 0));
        prop_assert!(exec.path.len() <= path.len() * 4);
        prop_assert!(exec.args.iter().map(str::len).sum::<usize>() <= args.len() * 4);
        prop_assert!(exec.env.iter().all(|(name, _)| name.starts_with("CNI_") || name.starts_with("TRACE")));
    }
}

#[test]
fn json_of_a_plugin_comes_with_its_exit() {
    let (stdin, stdout) = (
        br#"{"name":"pods","type":"bridge","password":"x"}"#,
        br#"{"code":7,"msg":"bad"}"#,
    );
    let record = ExitRecord {
        header: header(KIND_EXIT),
        status: 0,
        role: ROLE_TRACKED,
        stdin_len: stdin.len() as u32,
        stdout_len: stdout.len() as u32,
    };
    let bytes = [record.bytes(), stdin, stdout].concat();
    let io = decoded(&bytes).io.unwrap();
    assert_eq!(io.netconf.unwrap().network, "pods");
    assert_eq!(io.error.unwrap().code, 7);
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
    }
    let empty = ExitRecord {
        stdout_len: 0,
        stdin_len: 0,
        ..record
    };
    assert_eq!(decoded(empty.bytes()).io, None);
    let words = ExitRecord {
        stdin_len: 9,
        stdout_len: 0,
        ..record
    };
    assert_eq!(decoded(&[words.bytes(), &b"no JSON.."[..]].concat()).io, None);
}

#[test]
fn the_kernels_message_ends_at_its_zero_byte() {
    let mut record = ExtackRecord {
        header: header(KIND_EXTACK),
        message: [b'x'; 128],
    };
    let message = |record: &ExtackRecord| match decoded(record.bytes()).event.body {
        Body::NetlinkRemarked(remark) => remark.message,
        other => panic!("{other:?}"),
    };
    assert_eq!(message(&record).len(), 128);
    record.message[..9].copy_from_slice(b"bad\xff one\0");
    assert_eq!(message(&record), "bad\\xff one");
    assert!(decode(&record.bytes()[..100]).is_err());
}

#[test]
fn records_of_locks_are_read_only_from_enough_bytes() {
    let file = FileLockRecord {
        header: header(KIND_FILE_LOCK),
        inode: 7,
        tid: 42,
        outcome: 2,
        holder_pid: 5,
        device: 1,
        holder_comm: [0; COMM_LEN],
        names: [0; 320],
    };
    assert_eq!(decode_any(file.bytes()), Ok(DecodedRecord::FileLock(Box::new(file))));
    let kernel = ContentionRecord {
        header: header(KIND_CONTENTION),
        begin_ns: 1,
        thread_begin_ns: 1,
        lock: 1,
        holder_start_ns: 0,
        holder_begin_ns: 0,
        tid: 42,
        flags: 32,
        holder_pid: 0,
        holder_tid: 0,
        stack_len: 0,
        unused: 0,
        holder_comm: [0; COMM_LEN],
        stack: [0; 24],
    };
    assert_eq!(
        decode_any(kernel.bytes()),
        Ok(DecodedRecord::Contention(Box::new(kernel)))
    );
    for bytes in [file.bytes(), kernel.bytes()] {
        for len in 0..bytes.len() {
            assert!(decode_any(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
