//! One pod floods, another is still reported whole: lookups, connects, refused connections and sandboxes, through the real
//! probes, correlator and store.
//!
//! Pods are network namespaces of the test's own, and all traffic stays within them. What is limited on purpose is counted as
//! such, marks nobody else's trace, and does not meet the condition of the alert on losses. Does not: judge how fast the agent
//! is (`bench/`); a flood waits until the agent has read what came before, so that a busy machine loses nothing.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod collected;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandglass::app::settings::default_source;
use sandglass::health::{Health, TableLabel};
use sandglass::node::NodeInfo;
use sandglass::pipeline::{Outputs, Pipeline};
use sandglass::sinks::store::StoreOptions;
use sandglass::sources::linux::{LinuxOptions, LinuxSource};
use sandglass::sources::{self, clock};
use sandglass::view::Store;
use sandglass_correlator::finding::{Finding, Scope};
use sandglass_correlator::{CorrelatorConfig, Output};
use sandglass_lab::netns::Namespace;
use sandglass_lab::pressure::Pressure;
use sandglass_model::trace::LookupResult;
use sandglass_model::{Body, Event, Trace, TraceId};

use collected::started;

/// Lookups, and connects, of a flood.
const FLOOD: u16 = 10_000;
/// Of these so many at once, then the flood waits for the agent: below what the smallest ring holds.
const BATCH: usize = 200;
/// Bounds of the tables, so small that a flood overflows them however slow the machine is.
const TABLE: usize = 512;
const LONGEST: Duration = Duration::from_secs(60);

/// One flood at a time: the probes see the whole machine.
static ALONE: Mutex<()> = Mutex::new(());

/// What the agent has put out.
#[derive(Default)]
struct Seen {
    events: usize,
    /// Sandboxes whose network namespace is known.
    named: BTreeSet<String>,
    /// Names of answered lookups of sandboxes, and ports of established connects.
    answered: BTreeSet<String>,
    established: BTreeSet<u16>,
    closed: Vec<Arc<Trace>>,
}

struct Sink(Arc<Mutex<Seen>>, Store);

impl Outputs for Sink {
    fn arrived(&mut self, event: &Event) {
        let mut seen = lock(&self.0);
        seen.events += 1;
        if let Body::NetnsObserved(netns) = &event.body {
            seen.named.insert(netns.sandbox.0.clone());
        }
    }

    fn output(&mut self, output: &Output) {
        match output {
            Output::Finding(Finding::Lookup(lookup))
                if lookup.scope == Scope::Sandbox && lookup.detail.result == Some(LookupResult::Rcode(0)) =>
            {
                lock(&self.0).answered.insert(lookup.detail.name.to_string());
            }
            Output::Finding(Finding::Connect(connect))
                if connect.scope == Scope::Sandbox && connect.detail.failure.is_none() =>
            {
                lock(&self.0).established.insert(connect.detail.remote.port());
            }
            Output::Closed(trace) => {
                lock(&self.0).closed.push(Arc::clone(trace));
                self.1.update(Arc::clone(trace));
            }
            _ => {}
        }
    }

    fn changed(&mut self, _: &mut dyn Iterator<Item = &Trace>, _: &BTreeSet<TraceId>) {}
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Source, pipeline and store.
struct Agent {
    source: LinuxSource,
    pipeline: JoinHandle<()>,
    seen: Arc<Mutex<Seen>>,
    health: Health,
    store: Store,
    began: Pressure,
}

impl Agent {
    /// `None`, with a `SKIPPED` line, where the machine allows no probes.
    fn start(test: &str, node: &Namespace) -> Option<Agent> {
        let options = LinuxOptions {
            node_netns: Some(node.path().into()),
            ..default_source().unwrap()
        };
        let health = Health::default();
        let (sender, receiver) = sources::channel(8_192, Gauge::default());
        let source = started(test, sources::linux::start(options, sender, health.clone()))?;
        let mut config = CorrelatorConfig {
            max_traces: 64,
            ..CorrelatorConfig::default()
        };
        config.traffic.max_lookups = TABLE;
        config.traffic.max_connects = TABLE;
        config.traffic.max_flows = TABLE;
        let store = Store::new(StoreOptions::live(64), NodeInfo::default());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let pipeline = Pipeline::new(config, 100_000_000, health.clone());
        let mut outputs = Sink(Arc::clone(&seen), store.clone());
        let pipeline = std::thread::spawn(move || pipeline.run(&receiver, clock::now, &mut outputs, || {}));
        let agent = Agent {
            source,
            pipeline,
            seen,
            health,
            store,
            began: Pressure::now(),
        };
        let all = ["exec", "dns", "connect"];
        let missing = agent.health.probes().into_iter();
        let mut missing = missing.filter(|probe| all.contains(&probe.probe.as_str()) && !probe.attached);
        if let Some(probe) = missing.next() {
            sandglass_lab::skip::skipped(test, &probe.consequence);
            return None;
        }
        Some(agent)
    }

    fn wait(&self, what: &str, done: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + LONGEST;
        while !done(&lock(&self.seen)) {
            assert!(Instant::now() < deadline, "{what} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn events(&self) -> usize {
        lock(&self.seen).events
    }

    /// Does something `count` times, and waits now and then until the agent has read at least an event for each.
    fn flood(&self, count: u16, mut each: impl FnMut(u16)) {
        let numbers: Vec<u16> = (0..count).collect();
        let began = Instant::now();
        for batch in numbers.chunks(BATCH) {
            let read = self.events() + batch.len();
            batch.iter().for_each(|number| each(*number));
            self.wait("the events of a batch", |seen| seen.events >= read);
        }
        eprintln!("{count} in {:?}", began.elapsed());
    }

    /// The sandbox of a pod, made by a plugin of the node.
    fn sandbox(&self, pod: &Namespace, id: &str, name: &str) {
        run_plugin("ADD", Some(pod), id, name);
        self.wait("the sandbox's namespace", |seen| seen.named.contains(id));
    }

    /// Evictions from a table by owner.
    fn evicted(&self, table: &'static str, owner: &'static str) -> u64 {
        self.health.evicted.get_or_create(&TableLabel { table, owner }).get()
    }

    /// Ends the agent and judges what it has counted.
    fn stop(self) -> (Vec<Arc<Trace>>, Health, Store) {
        self.source.stop();
        self.pipeline.join().unwrap();
        let health = self.health;
        let events = health.events.get();
        let noisy: u64 = [
            "traces",
            "processes",
            "remembered",
            "owners",
            "lookups",
            "connects",
            "flows",
        ]
        .into_iter()
        .map(|table| {
            health
                .evicted
                .get_or_create(&TableLabel { table, owner: "noisy" })
                .get()
        })
        .sum();
        // The alert SandglassAgentLosesEvents: each loss above 0.1 % of the events, and ten of them.
        let losses = [
            ("lost", health.lost.count().total),
            ("evicted", health.evicted.count().total - noisy),
            ("shed", health.shed.count().total),
        ];
        eprintln!(
            "{events} events, {losses:?}, {noisy} evicted of noisy owners, limited {:?}",
            health.limited.count()
        );
        let waited = Duration::from_nanos(self.began.ns_since());
        for (loss, count) in losses {
            let fires = count as f64 > 0.001 * events as f64 && count > 9;
            // A reader that has no processor for a second loses what no limit has to do with.
            if fires && loss == "lost" && waited > BUSY {
                eprintln!("NOT JUDGED: {count} lost, while tasks waited for {waited:?}");
                continue;
            }
            assert!(!fires, "{loss}: {count} of {events}");
        }
        let closed = std::mem::take(&mut lock(&self.seen).closed);
        (closed, health, self.store)
    }
}

/// Time that tasks waited, during a flood, above which the machine is too busy to judge losses.
const BUSY: Duration = Duration::from_secs(20);

/// A plugin of the node for a pod's sandbox.
fn run_plugin(verb: &str, pod: Option<&Namespace>, id: &str, name: &str) {
    let status = Command::new("/bin/true")
        .env_clear()
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", id)
        .env("CNI_NETNS", pod.map_or("/run/netns/none".to_owned(), Namespace::path))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .env("CNI_ARGS", format!("K8S_POD_NAMESPACE={name};K8S_POD_NAME={name}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

/// A pod: loopback, a link to the node (10.77.`net`.2 here, .1 there), and a device into which all other packets vanish.
fn pod(test: &str, node: &Namespace, net: u8) -> Option<Namespace> {
    let pod = Namespace::make(test)?;
    pod.run(
        "ip link set lo up; ip link add hole type veth peer name end; ip addr add 10.99.0.2/16 dev hole; \
         ip link set end up; ip link set hole arp off up; ip route add default dev hole",
    );
    node.link(&pod, net);
    Some(pod)
}

/// A query for an address of `name` (RFC 1035, 4.1).
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = vec![0; 12];
    message[..2].copy_from_slice(&id.to_be_bytes());
    message[2..6].copy_from_slice(&[1, 0, 0, 1]);
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The answer to a query.
fn answer(query: &[u8], address: [u8; 4]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&[0x81, 0x80]);
    message[7] = 1;
    message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    message.extend(address);
    message
}

/// Links of the pods to the node.
const NOISY_NET: u8 = 1;
const QUIET_NET: u8 = 2;

/// A program in the quiet pod with a server of names, and a server of the node.
struct Quiet {
    server: UdpSocket,
    client: UdpSocket,
    listener: TcpListener,
}

impl Quiet {
    fn start(node: &Namespace, pod: &Namespace) -> Quiet {
        // Connects to the own address or to loopback are nobody's network.
        let listener = node.within(|| TcpListener::bind((Ipv4Addr::new(10, 77, QUIET_NET, 1), 0)).unwrap());
        pod.within(move || {
            let server = UdpSocket::bind("127.0.0.1:53").unwrap();
            server.set_read_timeout(Some(LONGEST)).unwrap();
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.connect("127.0.0.1:53").unwrap();
            Quiet {
                server,
                client,
                listener,
            }
        })
    }

    fn ask(&self, id: u16, name: &str) {
        self.client.send(&query(id, name)).unwrap();
    }

    fn answer(&self) {
        let mut room = [0; 512];
        let (length, from) = self.server.recv_from(&mut room).unwrap();
        self.server
            .send_to(&answer(&room[..length], [127, 0, 0, 1]), from)
            .unwrap();
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    fn connect(&self, pod: &Namespace) -> TcpStream {
        let address = self.listener.local_addr().unwrap();
        pod.within(move || TcpStream::connect(address).unwrap())
    }
}

/// A noisy and a quiet pod, the agent, and the quiet pod's program.
struct Scene {
    agent: Agent,
    noisy: Namespace,
    quiet: Namespace,
    program: Quiet,
    /// Sockets of the noisy pod that are not used yet.
    sockets: RefCell<Vec<OwnedFd>>,
    _node: Namespace,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn make(test: &str) -> Option<Scene> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = getrlimit(Resource::Nofile);
        let current = limit.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        let node = Namespace::make(test)?;
        let (noisy, quiet) = (pod(test, &node, NOISY_NET)?, pod(test, &node, QUIET_NET)?);
        let agent = Agent::start(test, &node)?;
        agent.sandbox(&noisy, "sb-noisy", "noisy");
        let program = Quiet::start(&node, &quiet);
        Some(Scene {
            agent,
            noisy,
            quiet,
            program,
            sockets: RefCell::default(),
            _node: node,
            _alone: alone,
        })
    }

    /// The quiet pod is made, looks a name up and connects; `meanwhile` goes on between query and answer.
    fn use_network(&self, name: &str, meanwhile: impl FnOnce()) {
        self.agent.sandbox(&self.quiet, "sb-quiet", "quiet");
        self.program.ask(7, name);
        meanwhile();
        self.program.answer();
        drop(self.program.connect(&self.quiet));
        let port = self.program.port();
        self.agent
            .wait("the quiet pod's lookup", |seen| seen.answered.contains(name));
        self.agent
            .wait("the quiet pod's connect", |seen| seen.established.contains(&port));
    }

    /// Ends the agent. The quiet sandbox's trace is whole.
    fn stop(self) -> (Health, Store) {
        let ready = |seen: &Seen| seen.closed.iter().any(|trace| is_creation_of(trace, "sb-quiet"));
        self.agent.wait("the quiet sandbox's trace", ready);
        let (closed, health, store) = self.agent.stop();
        let quiet = closed.iter().find(|trace| is_creation_of(trace, "sb-quiet")).unwrap();
        let text = sandglass_model::text::tree(quiet, quiet.root().start);
        let lost = health.lost.count().total > 0;
        assert!(!quiet.incomplete || lost, "{text}");
        assert!(text.contains("quiet.example.org") && text.contains("connect"), "{text}");
        (health, store)
    }
}

fn is_creation_of(trace: &Trace, sandbox: &str) -> bool {
    let is_creation = trace.root().detail.as_sandbox().is_some();
    is_creation && trace.sandbox.as_ref().is_some_and(|id| id.0 == sandbox)
}

#[test]
fn ten_thousand_lookups_of_random_names_hide_nobodys() {
    const TEST: &str = "ten_thousand_lookups_of_random_names_hide_nobodys";
    let Some(scene) = Scene::make(TEST) else { return };
    // A server that never answers, and whose buffer overflows: dropped packets come on top.
    let (_silent, sockets) = scene.noisy.within(|| {
        let sockets = (0..64).map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect("127.0.0.1:53").unwrap();
            socket
        });
        (UdpSocket::bind("127.0.0.1:53").unwrap(), sockets.collect::<Vec<_>>())
    });
    let ask = |number: u16| {
        let name = format!(
            "n{number:x}.{:x}.noisy.example.org",
            u32::from(number).wrapping_mul(0x9e37_79b9)
        );
        // Fails where the buffer of the other side is full, after the packet was seen.
        let _ = sockets[usize::from(number) % sockets.len()].send(&query(number, &name));
    };
    scene.agent.flood(FLOOD, ask);
    scene.use_network("api.quiet.example.org", || scene.agent.flood(2 * TABLE as u16, ask));
    let evicted = |owner| scene.agent.evicted("lookups", owner);
    let deadline = Instant::now() + LONGEST;
    while evicted("noisy") == 0 {
        assert!(Instant::now() < deadline, "the table was never full");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(evicted("sandbox"), 0);
    scene.stop();
}

#[test]
fn ten_thousand_connects_to_many_addresses_hide_nobodys() {
    const TEST: &str = "ten_thousand_connects_to_many_addresses_hide_nobodys";
    let Some(scene) = Scene::make(TEST) else { return };
    let mut open: Vec<OwnedFd> = Vec::new();
    // Nobody answers: each connect stays open until it is closed.
    let mut begin = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let to = SocketAddr::from(([11, 0, high, low], 80));
        let socket = scene.noisy_socket();
        let _ = connect(&socket, &to);
        open.push(socket);
        if open.len() > 4 * TABLE {
            open.drain(..TABLE);
        }
    };
    scene.agent.flood(FLOOD, &mut begin);
    scene.use_network("api.quiet.example.org", || {
        scene.agent.flood(2 * TABLE as u16, &mut begin)
    });
    let evicted = |owner| scene.agent.evicted("connects", owner);
    let deadline = Instant::now() + LONGEST;
    while evicted("noisy") == 0 {
        assert!(Instant::now() < deadline, "the table was never full");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(evicted("sandbox"), 0);
    scene.stop();
}

impl Scene {
    /// A socket of the noisy pod that does not wait.
    fn noisy_socket(&self) -> OwnedFd {
        let mut ready = self.sockets.borrow_mut();
        // A namespace is entered by a thread of its own: many are made at once.
        if ready.is_empty() {
            *ready = self.noisy.within(|| {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let make = |_| socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
                (0..BATCH).map(make).collect()
            });
        }
        ready.pop().unwrap()
    }
}

#[test]
fn ten_thousand_refused_connections_hide_nobodys() {
    const TEST: &str = "ten_thousand_refused_connections_hide_nobodys";
    let Some(scene) = Scene::make(TEST) else { return };
    let mut begin = |number: u16| {
        let to = SocketAddr::from(([10, 77, NOISY_NET, 1], 10_000 + number));
        let socket = scene.noisy_socket();
        let _ = connect(&socket, &to);
    };
    scene.agent.flood(FLOOD, &mut begin);
    scene.use_network("api.quiet.example.org", || {
        scene.agent.flood(2 * TABLE as u16, &mut begin)
    });
    scene.stop();
}

/// A pod whose sandbox is made again and again: neither the store nor what is remembered loses the others' traces for it.
#[test]
fn a_pod_that_restarts_in_a_loop_keeps_nobodys_trace_from_the_store() {
    const TEST: &str = "a_pod_that_restarts_in_a_loop_keeps_nobodys_trace_from_the_store";
    let Some(scene) = Scene::make(TEST) else { return };
    scene.use_network("api.quiet.example.org", || {
        for number in 0..150 {
            let id = format!("sb-loop-{number}");
            run_plugin("ADD", None, &id, "loops");
            run_plugin("DEL", None, &id, "loops");
        }
    });
    let looped = |seen: &Seen| {
        seen.closed
            .iter()
            .filter(|trace| trace.identity.name == "loops")
            .count()
            >= 250
    };
    scene.agent.wait("the traces of the loop", looped);
    let (_, store) = scene.stop();
    let kept = store.traces();
    let of = |name: &str| kept.iter().filter(|kept| kept.index.pod == name).count();
    assert!(kept.len() <= 64 && store.size().evicted > 100, "{:?}", store.size());
    assert!(of("quiet") >= 1 && of("loops") >= 20, "{} {}", of("quiet"), of("loops"));
}
