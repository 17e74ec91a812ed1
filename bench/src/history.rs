//! Synthetic wire records of a node: many sandboxes created and deleted concurrently.
//!
//! Used by the parts that need no kernel. Each sandbox gets what containerd does for a pod with a published port on a
//! bridge network: `loopback` and `bridge` side by side, `host-local` below `bridge`, `portmap` with four `iptables`,
//! shim, `runc create`, `runc start`; later the DELs. Records are in the order of a ring buffer: nearly by time. They are
//! generated on demand, so that a measurement of memory does not contain all of them. Does not: decode or time anything.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sandglass_probes::Record as _;
use sandglass_probes::wire::{
    COMM_LEN, ExecRecord, ExitRecord, ForkRecord, GoroutineWords, KIND_EXEC, KIND_EXIT, KIND_FORK, ROLE_RUNTIME,
    ROLE_TRACKED, RecordHeader,
};

/// Records in one buffer.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Records {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Their bytes, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end])
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }
}

/// The generator.
#[derive(Debug)]
pub struct History {
    gap_ns: u64,
    sandboxes: u64,
    begun: u64,
    next_pid: u32,
    random: u64,
    /// Records to come, by time of arrival.
    pending: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    serial: u64,
    /// With a DEL for each sandbox.
    deletes: bool,
}

impl History {
    /// `sandboxes` sandboxes, `parallel` of them in creation at any time.
    pub fn new(sandboxes: u64, parallel: u64) -> History {
        History {
            gap_ns: CREATION_NS / parallel.max(1),
            sandboxes,
            begun: 0,
            next_pid: 2_000,
            random: 0x9e37_79b9_7f4a_7c15,
            pending: BinaryHeap::new(),
            serial: 0,
            deletes: true,
        }
    }

    /// `sandboxes` sandboxes up to the moment when `iptables` runs below `portmap`: all open.
    pub fn opening(sandboxes: u64) -> History {
        let mut history = History::new(sandboxes, sandboxes);
        history.deletes = false;
        history
    }

    /// Fills `records` with the next `count`; fewer at the end.
    pub fn fill(&mut self, records: &mut Records, count: usize) {
        records.clear();
        while records.len() < count {
            let begin = self.begin_of(self.begun);
            let next = self.pending.peek().map(|Reverse((arrival, ..))| *arrival);
            if self.begun < self.sandboxes && next.is_none_or(|arrival| arrival >= begin) {
                self.sandbox(self.begun, begin);
                self.begun += 1;
            } else if let Some(Reverse((_, _, record))) = self.pending.pop() {
                records.push(&record);
            } else {
                return;
            }
        }
    }

    fn begin_of(&self, sandbox: u64) -> u64 {
        BOOT_NS + sandbox * self.gap_ns
    }

    fn sandbox(&mut self, number: u64, begin: u64) {
        let id = format!("{:016x}", mixed(number)).repeat(4);
        let netns = format!(
            "/var/run/netns/cni-{:08x}-4c1e-8d00-5a6d-{number:012x}",
            mixed(number) as u32
        );
        let env = |verb: &str, ifname: &str| {
            format!(
                "CNI_COMMAND={verb}\0CNI_CONTAINERID={id}\0CNI_NETNS={netns}\0CNI_ARGS=K8S_POD_INFRA_CONTAINER_ID={id};\
                 K8S_POD_UID=5a6d4c1e-8d00-4c1e-8d00-{number:012x};IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;\
                 K8S_POD_NAME=cart-{number}\0CNI_IFNAME={ifname}\0CNI_PATH=/opt/cni/bin\0"
            )
        };
        let (add, lo) = (env("ADD", "eth0"), env("ADD", "lo"));
        self.plugin(begin + ms(20), ms(4), "loopback", &lo, None);
        let bridge = self.plugin(begin + ms(20), ms(60), "bridge", &add, None);
        self.plugin(begin + ms(40), ms(10), "host-local", &add, Some((bridge, "bridge")));
        let chain = if self.deletes { ms(60) } else { ms(100_000) };
        let portmap = self.plugin(begin + ms(82), chain, "portmap", &add, None);
        for command in 0..4 {
            let lasts = if self.deletes || command < 3 { ms(8) } else { ms(90_000) };
            self.iptables(begin + ms(86 + command * 12), lasts, &add, portmap);
        }
        if !self.deletes {
            return;
        }
        let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}");
        let shim = "/usr/bin/containerd-shim-runc-v2";
        self.runtime(
            begin + ms(150),
            ms(30),
            shim,
            &[
                shim,
                "-namespace",
                "k8s.io",
                "-address",
                "/run/containerd/containerd.sock",
                "-id",
                &id,
                "start",
            ],
        );
        let root = [
            "runc",
            "--root",
            "/run/containerd/runc/k8s.io",
            "--log",
            "/run/log.json",
            "--log-format",
            "json",
        ];
        let create = [&root[..], &["create", "--bundle", &bundle, &id]].concat();
        let start = [&root[..], &["start", &id]].concat();
        let delete = [&root[..], &["delete", "--force", &id]].concat();
        self.runtime(begin + ms(190), ms(120), "/usr/sbin/runc", &create);
        self.runtime(begin + ms(320), ms(30), "/usr/sbin/runc", &start);

        let (del, lo) = (env("DEL", "eth0"), env("DEL", "lo"));
        let begin = begin + LIFE_NS;
        self.runtime(begin, ms(30), "/usr/sbin/runc", &delete);
        self.plugin(begin + ms(40), ms(4), "loopback", &lo, None);
        let portmap = self.plugin(begin + ms(40), ms(40), "portmap", &del, None);
        for command in 0..3 {
            self.iptables(begin + ms(44 + command * 11), ms(8), &del, portmap);
        }
        let bridge = self.plugin(begin + ms(82), ms(40), "bridge", &del, None);
        self.plugin(begin + ms(86), ms(10), "host-local", &del, Some((bridge, "bridge")));
    }

    /// Exec and exit of a plugin, and its fork if another plugin executes it.
    fn plugin(&mut self, at: u64, lasts: u64, name: &str, env: &str, parent: Option<(Process, &str)>) -> Process {
        let path = format!("/opt/cni/bin/{name}");
        let process = self.begin(at, parent.map(|(parent, _)| parent));
        let (parent, comm) = parent.unwrap_or((RUNTIME, "containerd"));
        self.run(at, lasts, process, parent, comm, ROLE_TRACKED, &path, &[&path], env);
        process
    }

    fn iptables(&mut self, at: u64, lasts: u64, env: &str, portmap: Process) {
        let process = self.begin(at, Some(portmap));
        let args = [
            "iptables",
            "-t",
            "nat",
            "-C",
            "CNI-HOSTPORT-DNAT",
            "-m",
            "comment",
            "--comment",
            "dnat name: \"podnet\" id: \"0123456789abcdef\"",
            "-j",
            "CNI-DN-4a0f2c8b1d3e5f60",
            "--wait",
        ];
        let path = "/usr/sbin/iptables";
        self.run(at, lasts, process, portmap, "portmap", ROLE_TRACKED, path, &args, env);
    }

    fn runtime(&mut self, at: u64, lasts: u64, path: &str, args: &[&str]) {
        let process = self.begin(at, None);
        self.run(at, lasts, process, RUNTIME, "containerd", ROLE_RUNTIME, path, args, "");
    }

    /// A new process, with its fork if its parent is a tracked process.
    fn begin(&mut self, at: u64, parent: Option<Process>) -> Process {
        self.next_pid = if self.next_pid >= PID_MAX {
            2_000
        } else {
            self.next_pid + 1
        };
        let process = Process {
            pid: self.next_pid,
            start_ns: at - 300_000,
        };
        if let Some(parent) = parent {
            let record = ForkRecord {
                header: header(KIND_FORK, process, process.start_ns),
                parent_start_ns: parent.start_ns,
                parent_thread_start_ns: parent.start_ns,
                parent_pid: parent.pid,
                parent_tid: parent.pid,
                role: ROLE_TRACKED,
                reserved: 0,
                goroutine: GoroutineWords::default(),
            };
            self.send(process.start_ns, record.bytes().to_vec());
        }
        process
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one record, each named at its three callers"
    )]
    fn run(
        &mut self,
        at: u64,
        lasts: u64,
        process: Process,
        parent: Process,
        comm: &str,
        role: u32,
        path: &str,
        args: &[&str],
        env: &str,
    ) {
        let args: String = args.iter().flat_map(|arg| [arg, "\0"]).collect();
        let mut parent_comm = [0; COMM_LEN];
        parent_comm[..comm.len()].copy_from_slice(comm.as_bytes());
        let record = ExecRecord {
            header: header(KIND_EXEC, process, at),
            parent_start_ns: parent.start_ns,
            cgroup_id: 4_321,
            processor_ns: 300_000,
            run_delay_ns: 20_000,
            parent_pid: parent.pid,
            netns: 4_026_531_840,
            role,
            flags: 0,
            path_len: path.len() as u32,
            args_len: args.len() as u32,
            env_len: env.len() as u32,
            unused: 0,
            parent_comm,
        };
        self.send(
            at,
            [record.bytes(), path.as_bytes(), args.as_bytes(), env.as_bytes()].concat(),
        );
        let exit = ExitRecord {
            header: header(KIND_EXIT, process, at + lasts),
            status: 0,
            role,
            stdin_len: 0,
            stdout_len: 0,
        };
        self.send(at + lasts, exit.bytes().to_vec());
    }

    /// Records of several processors arrive up to 50 us out of order.
    fn send(&mut self, at: u64, record: Vec<u8>) {
        self.random = mixed(self.random);
        self.serial += 1;
        self.pending
            .push(Reverse((at + self.random % 50_000, self.serial, record)));
    }
}

#[derive(Clone, Copy, Debug)]
struct Process {
    pid: u32,
    start_ns: u64,
}

fn header(kind: u32, process: Process, at_ns: u64) -> RecordHeader {
    RecordHeader {
        kind,
        pid: process.pid,
        at_ns,
        start_ns: process.start_ns,
        ring_bytes: 0,
    }
}

/// splitmix64 (<https://prng.di.unimi.it/splitmix64.c>): deterministic.
fn mixed(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

const fn ms(ms: u64) -> u64 {
    ms * 1_000_000
}

/// Traces of one sandbox from begin to end: its creation, and a DEL for each of its two interfaces.
pub const TRACES_PER_SANDBOX: u64 = 3;
/// Records of one sandbox from begin to end.
pub const RECORDS_PER_SANDBOX: u64 = 47;

const BOOT_NS: u64 = ms(1_000_000);
/// From a sandbox's first record to the end of `runc start`.
const CREATION_NS: u64 = ms(350);
/// From a sandbox's begin to its end's begin.
const LIFE_NS: u64 = ms(2_000);
const RUNTIME: Process = Process {
    pid: 900,
    start_ns: ms(5_000),
};
const PID_MAX: u32 = 4_194_304;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_whole_and_nearly_in_order() {
        let mut history = History::new(40, 8);
        let (mut records, mut seen, mut newest) = (Records::default(), 0, 0);
        loop {
            history.fill(&mut records, 100);
            if records.len() == 0 {
                break;
            }
            seen += records.len() as u64;
            for record in records.iter() {
                let (header, _) = RecordHeader::read(record).unwrap();
                assert!(header.at_ns + 50_000 >= newest, "{header:?} behind {newest}");
                newest = newest.max(header.at_ns);
                sandglass::sources::linux::exec::decode::decode(record).unwrap();
            }
        }
        assert_eq!(seen, 40 * RECORDS_PER_SANDBOX);
    }
}
