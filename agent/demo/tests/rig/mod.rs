//! What the end-to-end tests stand on: a private node, the agent beside it, and an independent witness.
//!
//! Used by `end_to_end.rs` and `guests.rs`. One test at a time has the machine: the agent sees every plugin of the node, and what is
//! measured should not be the tests' own crowd. Does not: judge; that is `sandglass_demo::verify` and the tests.

pub mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sandglass::app::{self, App};
use sandglass::cni_state::CniReport;
use sandglass::config::{Config, Period};
use sandglass::cri::Cri;
use sandglass::health::ProbeStatus;
use sandglass::ip_pools::IpPool;
use sandglass_demo::networks::Network;
use sandglass_demo::pods::{CallRecord, Pod};
use sandglass_demo::rig::{Rig, RigOptions};
use sandglass_demo::scenarios;
use sandglass_demo::verify::network::Seen;
use sandglass_demo::verify::{self, Report, Wrong};
use sandglass_lab::{bpf, left};
use sandglass_model::{Span, Trace};
use tokio::sync::{Mutex, MutexGuard};

static MACHINE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test has the machine.
pub async fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().await
}

/// A node.
pub struct Node {
    pub rig: Rig,
    pub cri: Arc<Cri>,
    /// What of the kind that a node could leave behind was there.
    before: BTreeSet<String>,
    _alone: MutexGuard<'static, ()>,
}

impl Node {
    /// A node, or `None` with a `SKIPPED` line when this machine cannot have one.
    pub async fn start(test: &str) -> Option<Node> {
        Node::with(test, RigOptions::default()).await
    }

    /// The same of another containerd or with another OCI runtime.
    pub async fn with(test: &str, options: RigOptions) -> Option<Node> {
        let alone = alone().await;
        if let Some(obstacle) = Rig::obstacle(&options) {
            eprintln!("SKIPPED {test}: {obstacle}");
            return None;
        }
        let before = left::named().unwrap();
        let options = RigOptions {
            program: Some(PathBuf::from(env!("CARGO_BIN_EXE_sandglass-demo"))),
            ..options
        };
        let rig = tokio::task::spawn_blocking(move || Rig::start(&options))
            .await
            .unwrap()
            .unwrap();
        scenarios::wait_for_pause(&rig).await.unwrap();
        let socket = rig.cri_socket().to_string_lossy().into_owned();
        let cri = Cri::connect(&socket, Duration::from_secs(30)).await.unwrap();
        Some(Node {
            rig,
            cri: Arc::new(cri),
            before,
            _alone: alone,
        })
    }

    /// Makes pods at the same time.
    pub async fn make(&self, pods: Vec<Pod>) -> Vec<CallRecord> {
        scenarios::make(&self.cri, &self.rig, pods).await
    }

    /// Configuration of an agent for this node, whose pods send nothing. No page: ports are scarce, and the test `page` does.
    pub fn config(&self) -> Config {
        let mut config = self.config_for_traffic();
        config.traffic.ready_deadline = SILENT_DEADLINE;
        config
    }

    /// The same where pods' programs send.
    pub fn config_for_traffic(&self) -> Config {
        let mut config = Config::default();
        config.traffic.ready_deadline = READY_DEADLINE;
        config.cri.endpoint = format!("unix://{}", self.rig.cri_socket().display());
        config.cni.bin_dirs = vec![self.rig.bin_dir()];
        config
    }

    /// A directory with the list of each network: an agent that knows them takes a plugin that is executed late for a part of its
    /// operation.
    pub fn lists(&self) -> tempfile::TempDir {
        let lists = tempfile::tempdir().unwrap();
        for network in Network::ALL {
            let list = lists.path().join(format!("{}.conflist", network.handler()));
            std::fs::copy(self.rig.conf_dir(network).join("10-pods.conflist"), list).unwrap();
        }
        lists
    }

    /// Ends it. Of its network namespaces, with all that is in them, and of its mounts nothing is left, and in the machine's own
    /// namespace no link and no chain of a plugin.
    pub async fn stop(self) {
        let directory = self.rig.dir().to_owned();
        let namespaces = left::namespaces_of(self.rig.runtime_pid(), &directory);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert!(
            !namespaces.is_empty() && !namespaces.contains(&*own.to_string_lossy()),
            "{namespaces:?}"
        );
        tokio::task::spawn_blocking(move || self.rig.stop())
            .await
            .unwrap()
            .unwrap();
        let is_of_rig = |name: &String| {
            name.contains(&*directory.to_string_lossy())
                || (name.starts_with("chain CNI-") || name.starts_with("link sgl")) && !self.before.contains(name)
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let used = left::namespaces();
            let mut left: Vec<String> = namespaces.intersection(&used).cloned().collect();
            left.extend(left::named().unwrap().into_iter().filter(is_of_rig));
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {left:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// How long an agent waits for a sandbox's first traffic: longer than the lookup takes of which a query is dropped. One that sends
/// nothing delays its trace by as much.
const READY_DEADLINE: Period = Period::from_secs(8);
/// The same where nothing is sent: longer than the runtime takes to answer with a pod's labels, also on a busy machine.
pub const SILENT_DEADLINE: Period = Period::from_secs(3);

/// Where a test's events are recorded: `RECORD_INTO=DIR cargo test --test end_to_end` makes the golden recordings anew.
pub fn recording(test: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("RECORD_INTO")?;
    let path = Path::new(&directory).join(format!("{test}.jsonl"));
    // A test may start more than one agent; the last one's recording stays.
    let _ = std::fs::remove_file(&path);
    Some(path)
}

/// An agent in this process, with the traces it closed.
pub struct Agent {
    app: App,
    closed: mpsc::Receiver<Arc<Trace>>,
    traces: Vec<Arc<Trace>>,
}

impl Agent {
    /// An agent, or `None` with a `SKIPPED` line when the kernel does not let one observe it.
    pub async fn start(node: &Node, test: &str) -> Option<Agent> {
        Agent::at(&node.config(), Some(&node.rig), test).await
    }

    /// An agent for this node with a configuration of the test's own.
    pub async fn of(node: &Node, config: &Config, test: &str) -> Option<Agent> {
        Agent::at(config, Some(&node.rig), test).await
    }

    /// An agent with a configuration of the test's own, and no node.
    pub async fn with(config: &Config, test: &str) -> Option<Agent> {
        Agent::at(config, None, test).await
    }

    /// An agent for this node that serves page and metrics, at ports of their own.
    pub async fn serving(node: &Node, config: &Config, test: &str) -> Option<Agent> {
        let mut config = config.clone();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        config.http.address = any;
        config.page.address = Some(any);
        Agent::start_at(&config, Some(&node.rig), test, true).await
    }

    /// Where it serves page and metrics.
    pub fn addresses(&self) -> [SocketAddr; 2] {
        [self.app.address.unwrap(), self.app.metrics_address.unwrap()]
    }

    async fn at(config: &Config, rig: Option<&Rig>, test: &str) -> Option<Agent> {
        Agent::start_at(config, rig, test, false).await
    }

    /// The same, for a node with a network namespace of its own.
    async fn start_at(config: &Config, rig: Option<&Rig>, test: &str, serve: bool) -> Option<Agent> {
        let (sender, closed) = mpsc::channel();
        let options = app::StartOptions {
            node_netns: rig.map(Rig::node_netns),
            netns_directories: rig
                .iter()
                .map(|rig| rig.netns_directory().display().to_string())
                .collect(),
            closed: Some(sender),
            record: recording(test),
            serve,
            record_only: true,
            ..app::StartOptions::default()
        };
        match app::start(config, options).await {
            Ok(app) => Some(Agent {
                app,
                closed,
                traces: Vec::new(),
            }),
            // Privilege or a kernel feature is missing: nothing that a test could mend.
            Err(failure) if matches!(failure.exit().code(), 69 | 77) => {
                eprintln!(
                    "SKIPPED {test}: {}",
                    failure.to_string().lines().next().unwrap_or_default()
                );
                None
            }
            Err(failure) => panic!("the agent does not start: {failure}"),
        }
    }

    /// The node's CNI configuration as the agent judges it.
    pub fn cni(&self) -> Option<CniReport> {
        self.app.health.cni.report()
    }

    /// The node's pools of addresses as the agent reads them.
    pub fn pools(&self) -> Option<Vec<IpPool>> {
        self.app.health.pools.pools()
    }

    /// What plugins read and write is seen, and with it the messages of their errors.
    pub fn reads_stdio(&self) -> bool {
        let probes = self.app.health.probes();
        probes.iter().any(|probe| probe.probe == "stdio" && probe.attached)
    }

    /// The probes, and what each is attached to.
    pub fn probes(&self) -> Vec<ProbeStatus> {
        self.app.health.probes()
    }

    /// Every trace closed so far.
    pub fn traces(&mut self) -> &[Arc<Trace>] {
        self.traces.extend(self.closed.try_iter());
        &self.traces
    }

    /// Of them, those of this node's plugins: another test run may have a node on the same machine.
    pub fn traces_of(&mut self, node: &Node) -> Vec<Arc<Trace>> {
        let bin_dir = node.rig.bin_dir();
        let ours = |span: &Span| {
            span.process()
                .is_some_and(|process| Path::new(&*process.path).starts_with(&bin_dir))
        };
        let traces = self.traces().iter().filter(|trace| trace.spans.iter().any(ours));
        traces.cloned().collect()
    }

    /// Waits until every record passes every check, and returns the last reports. What the machine was too busy for is
    /// printed as not judged, and is in none of them.
    pub async fn settle(&mut self, records: &[CallRecord]) -> Vec<Report> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let seen = Seen::by(&self.app.health.probes());
            let reports = verify::verify(self.traces(), records, seen);
            if reports.iter().all(Report::passed) || Instant::now() > deadline {
                not_judged(&reports);
                return reports;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits for the trace of a sandbox's creation, 30 s at most.
    pub async fn creation_of(&mut self, record: &CallRecord) -> Arc<Trace> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match verify::creation(self.traces(), record) {
                Ok(trace) => return Arc::clone(trace),
                Err(error) => assert!(Instant::now() < deadline, "{}: {error}", record.pod.identity.name),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until everything but durations is right of every record, two minutes at most, and returns the last reports: for a
    /// machine whose durations are not judged.
    pub async fn settle_facts(&mut self, records: &[CallRecord]) -> Vec<Report> {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let seen = Seen::by(&self.app.health.probes());
            let reports = verify::verify(self.traces(), records, seen);
            if reports.iter().all(Report::facts_hold) || Instant::now() > deadline {
                return reports;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends it. What it had in the kernel is gone then.
    pub async fn stop(self) {
        let objects = bpf::objects_of(std::process::id());
        self.app.stop().await.unwrap();
        assert_eq!(bpf::objects_of(std::process::id()), BTreeSet::new(), "still held");
        match tokio::task::spawn_blocking(move || bpf::wait_until_gone(&objects))
            .await
            .unwrap()
        {
            Ok(()) => {}
            Err(None) => {
                let thread = std::thread::current();
                let test = thread.name().unwrap_or("test");
                eprintln!("NOT RUN {test}::kernel_objects: bpftool is not installed");
            }
            Err(Some(still)) => panic!("still in the kernel: {still:?}"),
        }
    }
}

/// A line for each kind of check that the machine was too busy for, by the test's name: `scripts/count.sh` counts them.
fn not_judged(reports: &[Report]) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    let mut kinds: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (report, check) in reports
        .iter()
        .flat_map(|report| report.checks.iter().map(move |check| (report, check)))
    {
        if let Err(Wrong::Busy(text)) = &check.result {
            kinds
                .entry(check.what)
                .or_default()
                .push(format!("{}: {text}", report.pod));
        }
    }
    for (what, busy) in kinds {
        let what = what.replace([' ', '\''], "_");
        eprintln!(
            "NOT JUDGED {test}::{what}: {} of {}, such as {}",
            busy.len(),
            reports.len(),
            busy[0]
        );
    }
}

/// Fails with everything that is wrong, not with the first.
pub fn assert_passed(reports: &[Report]) {
    let failed: String = reports
        .iter()
        .filter(|report| !report.passed())
        .map(|report| report.text(false))
        .collect();
    assert!(failed.is_empty(), "\n{failed}");
}
