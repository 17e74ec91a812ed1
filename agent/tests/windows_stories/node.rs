//! A Windows node that logs what it does through ETW: the events of containerd, its shim, HNS, the DNS client and TCPIP.

use std::cell::Cell;
use std::sync::Arc;

use sandglass_etw::event::Value;
use sandglass_etw::writer::{EtlWriter, Failure, Record, Session};
use sandglass_etw::{Guid, Tables};

pub const HNS: Guid = Guid::literal("0c885e0d-6eb6-476c-a048-2457eed3a5c1");
const HCS: Guid = Guid::literal("80ce50de-d264-4581-950d-abadeee0d340");
const CONTAINERD: Guid = Guid::literal("2acb92c0-eb9b-571a-69cf-8f3410f383ad");
const RUN_HCS: Guid = Guid::literal("0b52781f-b24d-5685-ddf6-69830ed40ec3");
pub const PLUGINS: &str = r"C:\Program Files\containerd\cni\bin";
/// containerd's process.
pub const RUNTIME: u32 = 1_200;
/// The process of HNS.
const HNS_PID: u32 = 900;
const HNS_LINE: &str = r"C:\Windows\System32\svchost.exe -k NetSvcs";
/// The CNI agent's process.
pub const AGENT: u32 = 1_800;
const START: u64 = 1_767_225_600_000_000_000;
const MS: u64 = 1_000_000;

/// A pod and what is made for it.
#[derive(Clone, Copy)]
pub struct Pod {
    pub name: &'static str,
    pub uid: &'static str,
    /// Distinguishes its objects.
    pub number: u8,
}

impl Pod {
    pub fn sandbox(&self) -> String {
        format!("{:02x}", self.number).repeat(32)
    }

    fn guid(&self, kind: u8) -> Guid {
        let text = format!(
            "{kind:02x}{n:02x}{n:02x}{n:02x}-1111-4222-8333-0123456789{n:02x}",
            n = self.number
        );
        text.parse().unwrap()
    }

    pub fn namespace(&self) -> Guid {
        self.guid(0xaa)
    }

    pub fn endpoint(&self) -> Guid {
        self.guid(0xee)
    }

    /// That of its pause process.
    pub fn silo(&self) -> Guid {
        self.guid(0x51)
    }

    /// Its one container.
    pub fn container(&self) -> String {
        format!("c{:01x}", self.number).repeat(32)
    }

    pub fn container_silo(&self) -> Guid {
        self.guid(0x52)
    }

    /// The process in it.
    pub fn pid(&self) -> u32 {
        6_000 + u32::from(self.number)
    }

    pub fn compartment(&self) -> u32 {
        4 + u32::from(self.number)
    }
}

thread_local! {
    static PLAIN: Cell<bool> = const { Cell::new(false) };
}

/// What `write` writes, in plain buffers.
pub fn without_compression<T>(write: impl FnOnce() -> T) -> T {
    PLAIN.set(true);
    let written = write();
    PLAIN.set(false);
    written
}

/// The node. Times are milliseconds since its session began.
pub struct Node {
    tables: Arc<Tables>,
    writer: EtlWriter,
    activities: u32,
    hns_pid: u32,
    /// Programs run in containers of their own; else as if in the sandbox's.
    contained: bool,
}

impl Node {
    /// With its services running already.
    pub fn new() -> Node {
        Node::with(!PLAIN.get())
    }

    /// The same; a session writes compressed buffers or plain ones.
    pub fn with(compressed: bool) -> Node {
        let session = Session {
            name: "sandglass".to_owned(),
            started_ns: START,
            buffer_bytes: 4_096,
            compressed,
            ..Session::default()
        };
        let mut node = Node {
            tables: Arc::new(Tables::built_in()),
            writer: EtlWriter::new(session),
            activities: 0,
            hns_pid: HNS_PID,
            contained: false,
        };
        for (pid, parent, line) in [
            (600, 4, r"C:\Windows\System32\services.exe"),
            (
                RUNTIME,
                600,
                r#""C:\Program Files\containerd\containerd.exe" --run-service"#,
            ),
            (HNS_PID, 600, HNS_LINE),
            (
                AGENT,
                600,
                r"C:\k\antrea\bin\antrea-agent.exe --config C:\k\antrea\etc\antrea-agent.conf",
            ),
        ] {
            node.process_record(1, 3, pid, parent, line);
        }
        // The node's own lookup: from here on its traffic is watched.
        node.dns(20, 3006, None, 700, "kube-api.example.com", |record| {
            record.u32("QueryType", 1)
        });
        node.dns(24, 3008, None, 700, "kube-api.example.com", |record| {
            record
                .u32("QueryType", 1)
                .u32("QueryStatus", 0)
                .text("QueryResults", "192.0.2.10;")
        });
        node
    }

    pub fn file(self) -> Vec<u8> {
        self.writer.finish()
    }

    fn push(&mut self, ms: u64, record: Record) {
        let cpu = (ms % 4) as u16;
        self.writer.push(record.at(START + ms * MS).cpu(cpu).build());
    }

    fn process_record(&mut self, ms: u64, opcode: u8, pid: u32, parent: u32, line: &str) {
        let path = line.trim_start_matches('"').split(".exe").next().unwrap();
        let image = format!("{}.exe", path.rsplit('\\').next().unwrap());
        let record = Record::process(&self.tables, opcode, pid, parent, &image, line).unwrap();
        self.push(ms, record);
    }

    /// A process from start to end, with its exit code.
    pub fn process(&mut self, from: u64, to: u64, pid: u32, parent: u32, line: &str, code: i32) {
        self.process_record(from, 1, pid, parent, line);
        let path = line.trim_start_matches('"').split(".exe").next().unwrap();
        let image = format!("{}.exe", path.rsplit('\\').next().unwrap());
        let record = Record::process(&self.tables, 2, pid, parent, &image, line).unwrap();
        self.push(to, record.i32("ExitStatus", code));
    }

    pub fn plugin(&mut self, from: u64, to: u64, pid: u32, name: &str, code: i32) {
        self.process(from, to, pid, RUNTIME, &format!(r#""{PLUGINS}\{name}.exe""#), code);
    }

    // === the runtime ===

    pub fn containerd(&mut self, ms: u64, message: &str, error: &str) {
        let record = Record::tracelogging(CONTAINERD, "ContainerD", "LogrusEntry")
            .process_id(RUNTIME)
            .text("Message", message);
        let record = if error.is_empty() {
            record
        } else {
            record.text("error", error)
        };
        self.push(ms, record);
    }

    fn metadata(pod: Pod) -> String {
        format!(
            "&PodSandboxMetadata{{Name:{},Uid:{},Namespace:shop,Attempt:0,}}",
            pod.name, pod.uid
        )
    }

    pub fn run(&mut self, ms: u64, pod: Pod) {
        self.containerd(ms, &format!("RunPodSandbox for {}", Self::metadata(pod)), "");
    }

    pub fn run_returned(&mut self, ms: u64, pod: Pod) {
        let message = format!(
            "RunPodSandbox for {} returns sandbox id \"{}\"",
            Self::metadata(pod),
            pod.sandbox()
        );
        self.containerd(ms, &message, "");
    }

    pub fn run_failed(&mut self, ms: u64, pod: Pod, error: &str) {
        self.containerd(
            ms,
            &format!("RunPodSandbox for {} failed, error", Self::metadata(pod)),
            error,
        );
    }

    pub fn stop(&mut self, from: u64, to: u64, pod: Pod) {
        let sandbox = pod.sandbox();
        self.containerd(from, &format!("StopPodSandbox for \"{sandbox}\""), "");
        self.containerd(
            to,
            &format!("StopPodSandbox for \"{sandbox}\" returns successfully"),
            "",
        );
    }

    /// The shim comes up, and makes and starts the compute system from `from` on, in 600 ms.
    pub fn shim(&mut self, from: u64, pod: Pod) {
        let sandbox = pod.sandbox();
        let line = format!(
            r#""C:\Program Files\containerd\containerd-shim-runhcs-v1.exe" -namespace k8s.io -id {sandbox} start"#
        );
        let pid = 5_000 + u32::from(pod.number) * 10;
        self.process(from, from + 120, pid, RUNTIME, &line, 0);
        let launched = Record::tracelogging(RUN_HCS, "Microsoft.Virtualization.RunHCS", "ShimLaunched")
            .process_id(pid + 1)
            .text(
                "Args",
                &format!("[containerd-shim-runhcs-v1.exe serve -id {sandbox} -is-sandbox]"),
            );
        self.push(from + 110, launched);
        let namespace = self.shim_line("created network namespace for container", pid + 1);
        self.push(
            from + 130,
            namespace
                .text("netID", &pod.namespace().to_string())
                .text("cid", &sandbox),
        );
        let tables = Arc::clone(&self.tables);
        let kernel = |id: u16| {
            Record::manifest(&tables, "Microsoft-Windows-Kernel-Process", id, 0)
                .unwrap()
                .guid("ContainerID", pod.silo())
                .u32("JobID", 40 + u32::from(pod.number))
        };
        self.push(from + 200, kernel(13));
        self.push(from + 210, kernel(23).text("MonitorName", "wcifs"));
        self.push(from + 260, kernel(24).text("MonitorName", "wcifs"));
        self.push(from + 265, kernel(23).text("MonitorName", "tcpip"));
        self.push(from + 300, kernel(24).text("MonitorName", "tcpip"));
        self.shim_span(from + 140, from + 400, pod, "HcsCreateComputeSystem", pid + 1, 1);
        self.shim_span(from + 405, from + 600, pod, "HcsStartComputeSystem", pid + 1, 2);
    }

    fn shim_line(&self, message: &str, pid: u32) -> Record {
        Record::tracelogging(RUN_HCS, "Microsoft.Virtualization.RunHCS", "LogrusEntry")
            .process_id(pid)
            .text("Message", message)
    }

    fn shim_span(&mut self, from: u64, to: u64, pod: Pod, name: &str, pid: u32, number: u8) {
        let time = |ms: u64| {
            format!(
                "2026-01-01T00:{:02}:{:02}.{:03}Z",
                ms / 60_000,
                ms / 1_000 % 60,
                ms % 1_000
            )
        };
        let record = self
            .shim_line("Span", pid)
            .text("name", name)
            .text("traceID", &format!("{:032x}", 0xabc0_u32 + u32::from(pod.number)))
            .text("spanID", &format!("{:016x}", 0xdef0_u32 + u32::from(number)))
            .text("cid", &pod.sandbox())
            .text("startTime", &time(from))
            .text("endTime", &time(to));
        self.push(to, record);
    }

    // === HNS and HCS ===

    /// An activity of HNS from start to end, with what it names; returns its id for others to lie in.
    pub fn hns(&mut self, from: u64, to: u64, name: &str, around: Option<Guid>, fields: &[(&str, Value)]) -> Guid {
        self.hns_ended(from, Some((to, None)), name, around, fields)
    }

    /// One that fails with that code.
    pub fn hns_failed(
        &mut self,
        (from, to): (u64, u64),
        name: &str,
        around: Option<Guid>,
        fields: &[(&str, Value)],
        failure: Failure<'_>,
    ) -> Guid {
        self.hns_ended(from, Some((to, Some(failure))), name, around, fields)
    }

    /// One whose end is not seen.
    pub fn hns_begun(&mut self, from: u64, name: &str, fields: &[(&str, Value)]) -> Guid {
        self.hns_ended(from, None, name, None, fields)
    }

    fn hns_ended(
        &mut self,
        from: u64,
        end: Option<(u64, Option<Failure<'_>>)>,
        name: &str,
        around: Option<Guid>,
        fields: &[(&str, Value)],
    ) -> Guid {
        self.activities += 1;
        let id: Guid = format!("{:08x}-0000-4000-8000-00000000ac71", self.activities)
            .parse()
            .unwrap();
        let (thread, process) = (3_000 + self.activities % 8, self.hns_pid);
        let record = || {
            Record::tracelogging(HNS, "Microsoft.Windows.HNS", name)
                .process_id(process)
                .thread_id(thread)
                .level(5)
                .activity(id)
        };
        let mut started = record();
        if let Some(around) = around {
            started = started.related(around);
        }
        for (field, value) in fields {
            started = started.value(field, value.clone());
        }
        self.push(from, started.wil_start());
        match end {
            Some((to, None)) => self.push(to, record().wil_stop(0)),
            Some((to, Some(failure))) => self.push(to, record().wil_failed(failure)),
            None => {}
        }
        id
    }

    /// HNS ends, and its service manager starts it again.
    pub fn hns_restarts(&mut self, down: u64, up: u64) {
        let record = Record::process(&self.tables, 2, self.hns_pid, 600, "svchost.exe", HNS_LINE).unwrap();
        self.push(down, record.i32("ExitStatus", 0x4000_0005_u32 as i32));
        self.hns_pid += 10;
        self.process_record(up, 1, self.hns_pid, 600, HNS_LINE);
    }

    /// A call of the HCS client that names the sandbox's compute system.
    pub fn hcs(&mut self, from: u64, to: u64, name: &str, pod: Pod) {
        self.activities += 1;
        let id: Guid = format!("{:08x}-0000-4000-8000-00000000ac71", self.activities)
            .parse()
            .unwrap();
        let record = || {
            Record::tracelogging(HCS, "Microsoft.Windows.HyperV.Compute", name)
                .process_id(5_001)
                .thread_id(77)
                .activity(id)
        };
        self.push(from, record().text("computeSystemId", &pod.sandbox()).wil_start());
        self.push(to, record().wil_stop(0));
    }

    /// What HCS logs of a sandbox's compute system, within what its shim requests (see `shim`, which begins at `from`).
    pub fn compute_system(&mut self, from: u64, pod: Pod) {
        let times = [from + 142, from + 398, from + 408, from + 580, from + 590];
        self.hcs_log(times, &pod.sandbox(), pod.silo(), pod.pid());
    }

    /// The pod's container is made and started, in 245 ms; what the pod does from here on it does in there.
    pub fn container(&mut self, from: u64, pod: Pod) {
        let within = format!("CreateContainer within sandbox \"{}\" for", pod.sandbox());
        let metadata = "&ContainerMetadata{Name:web,Attempt:0,}";
        self.containerd(from, &format!("{within} container {metadata}"), "");
        let made = format!("{within} {metadata} returns container id \"{}\"", pod.container());
        self.containerd(from + 10, &made, "");
        let times = [from + 15, from + 80, from + 85, from + 240, from + 245];
        self.hcs_log(times, &pod.container(), pod.container_silo(), pod.pid());
        self.contained = true;
    }

    /// A compute system is requested, made, started, up as a silo, and runs a process.
    fn hcs_log(&mut self, [requested, made, started, up, runs]: [u64; 5], id: &str, silo: Guid, pid: u32) {
        let tables = Arc::clone(&self.tables);
        let log = |event: u16| {
            Record::manifest(&tables, "Microsoft-Windows-Hyper-V-Compute", event, 0)
                .unwrap()
                .process_id(950)
                .thread_id(78)
                .text("SystemId", id)
        };
        let pending = 0xc037_0103;
        self.push(requested, log(2010).text("Configuration", "{}"));
        self.push(made, log(2000).u32("Result", pending));
        self.push(started, log(2001).u32("Result", pending));
        self.push(up, log(2022).text("SiloContainerId", &silo.to_string().to_uppercase()));
        self.push(runs, log(2500).u32("Result", 0).u32("ProcessId", pid));
    }

    fn asking_silo(&self, pod: Pod) -> Guid {
        if self.contained {
            pod.container_silo()
        } else {
            pod.silo()
        }
    }

    // === traffic ===

    pub fn interface_added(&mut self, ms: u64, index: u32) {
        let record = Record::manifest(&self.tables, "Microsoft-Windows-TCPIP", 1061, 0).unwrap();
        self.push(ms, record.u32("InterfaceIndex", index).u32("AddressFamily", 2));
    }

    pub fn dns(
        &mut self,
        ms: u64,
        id: u16,
        silo: Option<Guid>,
        pid: u32,
        name: &str,
        fields: impl FnOnce(Record) -> Record,
    ) {
        let record = Record::manifest(&self.tables, "Microsoft-Windows-DNS-Client", id, 0).unwrap();
        let mut record = fields(record.text("QueryName", name)).process_id(pid);
        if let Some(silo) = silo {
            record = record.container(silo);
        }
        self.push(ms, record);
    }

    /// A lookup of the pod's: requested, sent, and after `took` ms over with that status.
    pub fn lookup(&mut self, ms: u64, took: u64, pod: Pod, name: &str, status: u32, results: &str) {
        let (silo, pid) = (Some(self.asking_silo(pod)), pod.pid());
        let typed = |record: Record| record.u32("QueryType", 1);
        self.dns(ms, 3006, silo, pid, name, typed);
        self.dns(ms + 1, 3010, silo, 2_500, name, |record| {
            typed(record).text("DnsServerIpAddress", "10.96.0.10")
        });
        if status == 1460 {
            self.dns(ms + took - 1, 1013, silo, 2_500, name, |record| record);
        } else {
            self.dns(ms + took - 1, 3011, silo, 2_500, name, |record| {
                typed(record)
                    .text("DnsServerIpAddress", "10.96.0.10")
                    .u32("ResponseStatus", status)
            });
        }
        self.dns(ms + took, 3008, silo, pid, name, |record| {
            typed(record).u32("QueryStatus", status).text("QueryResults", results)
        });
    }

    /// The pod's program calls its socket library for a name, and gets this.
    pub fn getaddrinfo(&mut self, from: u64, to: u64, pod: Pod, name: &str, results: &str) {
        for (ms, id) in [(from, 1000), (to, 1001)] {
            let record = Record::manifest(&self.tables, "Microsoft-Windows-Winsock-NameResolution", id, 0).unwrap();
            let record = record
                .text("NodeName", name)
                .process_id(pod.pid())
                .container(self.asking_silo(pod));
            self.push(
                ms,
                if id == 1001 {
                    record.text("Result", results)
                } else {
                    record
                },
            );
        }
    }

    /// A connection of the pod's, set up in `took` ms.
    pub fn connect(&mut self, ms: u64, took: u64, pod: Pod, remote: &str) {
        for (at, id) in [(ms, 1031), (ms + took, 1033)] {
            let local = format!("10.244.1.{}:49{:03}", 10 + pod.number, pod.number);
            let record = Record::manifest(&self.tables, "Microsoft-Windows-TCPIP", id, 1)
                .unwrap()
                .value("LocalAddress", Value::SocketAddr(local.parse().unwrap()))
                .value("RemoteAddress", Value::SocketAddr(remote.parse().unwrap()))
                .u32("ProcessId", pod.pid())
                .u32("Compartment", pod.compartment())
                .u64("Tcb", 0xffff_9000_0000_0000 + u64::from(pod.number))
                .process_id(pod.pid());
            self.push(at, record);
        }
    }
}
