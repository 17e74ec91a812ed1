//! Requests of plugins to daemons: when their programs are attached, which daemons are followed, and events of their records.
//!
//! Used by the feed of the process probe. The programs (`probes/bpf/daemons.h`) are attached while a plugin runs that is slow (as
//! `exec::waits` has it), or one that is known to be a shim: a shim sends its request some milliseconds after it began, long
//! before it is slow. A shim is known by its name, or because one of its requests was slow before.
//! The kernel side begins to follow a daemon when it receives a request, what it forks and what its threads wait for; it is released
//! here when none of its requests is in flight any more.
//! Does not: make spans, or attribute what a daemon runs to a request; the correlator does.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::daemons::{DaemonProcess, Goroutine, RequestPoint, RequestStep, RequestTransport};
use sandglass_model::event::{Exec, Fork};
use sandglass_model::{Body, Event, ProcessKey, SmolStr, Timestamp};
use sandglass_probes::wire::daemons::{
    CONTROL_MAX, MESSAGE_AT_DAEMON, MESSAGE_AWAITED, MESSAGE_FOLLOWED, MESSAGE_SENT, MESSAGE_TCP, MessageRecord,
    SHIMS_MAX,
};
use sandglass_probes::wire::{COMM_LEN, GoroutineWords, RecordHeader};

use super::goroutines::Goroutines;
use super::{running, tcp_sockets};
use crate::sources::clock;
use crate::sources::linux::cgroups::{self, Cgroups};
use crate::sources::linux::loader::family::{Family, Part};
use crate::sources::linux::loader::maps::RequestMaps;
use crate::sources::linux::loader::roles::Roles;
use crate::sources::linux::record::text;

/// The programs, the plugins for which they are attached, and the daemons that are followed.
pub struct Daemons {
    family: Arc<Mutex<Family>>,
    maps: RequestMaps,
    /// Plugins that run, and what they started, by process id.
    running: HashMap<u32, Running>,
    /// Names of plugins that are shims.
    shims: HashSet<SmolStr>,
    attached: bool,
    /// When the programs were attached last.
    since: Timestamp,
    /// Until when they stay attached without a reason.
    until: Timestamp,
    /// Connections by what the kernel side calls them, and their clients.
    connections: HashMap<(u64, u32), Connection>,
    /// The last number of a connection.
    numbered: u64,
    /// Daemons that are followed, by process id.
    followed: HashMap<u32, Followed>,
    goroutines: Goroutines,
}

/// A process below a plugin, or a plugin.
struct Running {
    process: ProcessKey,
    /// Name of the plugin that the runtime executed, if it lies below one.
    plugin: SmolStr,
    /// When that plugin began; `None` for what lies below it.
    began: Option<Timestamp>,
}

/// A connection of a client to a daemon.
struct Connection {
    number: u64,
    /// The process that listens, where that is known.
    listener: Option<DaemonProcess>,
    /// The client's first message was seen.
    sent: bool,
}

/// A daemon that is followed.
struct Followed {
    /// When it received from a plugin last.
    newest: u64,
    /// Connections with a request that has no answer yet.
    in_flight: HashSet<(u64, u32)>,
    /// When the last of these got its answer.
    idle_from: Timestamp,
}

impl Daemons {
    /// Requests of the programs that `family` has prepared.
    pub fn new(family: Arc<Mutex<Family>>, mut maps: RequestMaps) -> Daemons {
        let shims: HashSet<SmolStr> = KNOWN_SHIMS.iter().copied().map(SmolStr::new_static).collect();
        for shim in &shims {
            // Without its name there, the reader polls, and may miss the begin of a request.
            maps.add_shim(shim);
        }
        Daemons {
            family,
            maps,
            running: HashMap::new(),
            shims,
            attached: false,
            since: Timestamp(0),
            until: Timestamp(0),
            connections: HashMap::new(),
            numbered: 0,
            followed: HashMap::new(),
            goroutines: Goroutines::default(),
        }
    }

    /// The first event: requests can be followed on this node, and are not yet.
    pub fn announcement() -> Event {
        followed(false)
    }

    /// A tracked process forked, or a daemon: `words` are those of its goroutine.
    pub fn on_fork(&mut self, fork: &mut Fork, words: &GoroutineWords) {
        let plugin = self.plugin_of(fork.parent);
        self.add(fork.process, plugin, None);
        fork.goroutine = self.goroutines.resolve(fork.parent, words);
    }

    /// The goroutine with these words, of the process that a record is about.
    pub fn goroutine(&mut self, header: &RecordHeader, words: &GoroutineWords) -> Option<Goroutine> {
        self.goroutines
            .resolve(ProcessKey::new(header.pid, header.start_ns), words)
    }

    /// A plugin, or what it or a daemon started, was executed.
    pub fn on_exec(&mut self, exec: &Exec, at: Timestamp) {
        // Of another process with this pid the exit was lost.
        let known = self.running.get(&exec.process.pid);
        if known.is_some_and(|running| running.process == exec.process) {
            return;
        }
        let above = self.plugin_of(exec.parent);
        let is_root = above.is_empty() && exec.env("CNI_COMMAND").is_some();
        let plugin = if is_root { SmolStr::new(exec.file_name()) } else { above };
        self.add(exec.process, plugin, is_root.then_some(at));
    }

    fn add(&mut self, process: ProcessKey, plugin: SmolStr, began: Option<Timestamp>) {
        if self.running.len() < RUNNING_MAX || self.running.contains_key(&process.pid) {
            let running = Running { process, plugin, began };
            self.running.insert(process.pid, running);
        }
    }

    fn plugin_of(&self, process: ProcessKey) -> SmolStr {
        let running = self.running.get(&process.pid);
        running
            .filter(|running| running.process == process)
            .map_or_else(SmolStr::default, |running| running.plugin.clone())
    }

    /// A process ended, and with it its requests.
    pub fn on_exit(&mut self, process: ProcessKey, at: Timestamp) {
        let known = self.running.get(&process.pid);
        if known.is_none_or(|running| running.process != process) {
            return;
        }
        let Some(ended) = self.running.remove(&process.pid) else {
            return;
        };
        if ended.began.is_some() && self.shims.contains(&ended.plugin) {
            self.until = self.until.max(at.plus(LINGER_NS));
        }
        self.connections.retain(|(_, client), _| *client != process.pid);
        for daemon in self.followed.values_mut() {
            let before = daemon.in_flight.len();
            daemon.in_flight.retain(|(_, client)| *client != process.pid);
            if daemon.in_flight.len() < before {
                daemon.idle_from = at;
            }
        }
    }

    /// Attaches or detaches the programs as the plugins that run demand, where `slow` says that one of them is slow. Releases
    /// daemons without a request. Adds the event of a change.
    ///
    /// # Errors
    /// A message when the kernel rejects the programs.
    pub fn check(&mut self, slow: bool, roles: &mut Roles, events: &mut Vec<Event>) -> Result<(), String> {
        let now = clock::now();
        let runs = |running: &Running| {
            let began = running.began.filter(|_| self.shims.contains(&running.plugin));
            began.is_some_and(|began| now.since(began) < SHIM_MAX_NS)
        };
        let wanted = slow || self.running.values().any(runs) || (self.attached && now < self.until);
        self.release(!wanted, now, roles);
        if wanted == self.attached {
            return Ok(());
        }
        self.attached = wanted;
        self.since = now;
        if wanted {
            self.find_clients()?;
        } else {
            events.push(followed(false));
        }
        let mut family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = family.set_part_hooked(Part::Requests, wanted);
        outcome.map_err(|error| error.to_string())?;
        if wanted {
            events.push(followed(true));
        }
        Ok(())
    }

    /// Finds the TCP connections of plugins that run already: their requests may have been sent before the programs are attached.
    fn find_clients(&mut self) -> Result<(), String> {
        let below_plugin = self.running.values().filter(|running| !running.plugin.is_empty());
        let pids = below_plugin.map(|running| running.process.pid).take(CLIENTS_MAX);
        let clients = pids.flat_map(|pid| {
            tcp_sockets::connections(pid)
                .into_iter()
                .map(move |connection| (connection, pid))
        });
        match self.maps.set_clients(clients) {
            true => Ok(()),
            false => Err("a map of the programs cannot be written".to_owned()),
        }
    }

    /// Releases daemons that have no request, or all of them.
    fn release(&mut self, all: bool, now: Timestamp, roles: &mut Roles) {
        let maps = &mut self.maps;
        self.followed.retain(|pid, daemon| {
            let is_idle = daemon.in_flight.is_empty() && now.since(daemon.idle_from) >= IDLE_NS;
            if !(all || is_idle) || maps.has_received(*pid, daemon.newest) {
                return true;
            }
            // The role first: what arrives behind it makes the kernel side follow the daemon again, and what arrived just before it is
            // seen here.
            roles.release_daemon(*pid);
            if maps.has_received(*pid, daemon.newest) {
                roles.keep_daemon(*pid);
                return true;
            }
            maps.forget_daemon(*pid);
            false
        });
    }

    /// The event of a message; `None` when its client is not known.
    pub fn on_message(&mut self, record: &MessageRecord, cgroups: &mut Cgroups) -> Option<Event> {
        let at = Timestamp(record.header.at_ns);
        let client = self.running.get(&record.client_pid)?;
        let (client, plugin) = (client.process, client.plugin.clone());
        let is = |flag| record.flags & flag != 0;
        let point = match (is(MESSAGE_AT_DAEMON), is(MESSAGE_SENT)) {
            _ if is(MESSAGE_AWAITED) => RequestPoint::Awaited,
            (false, true) => RequestPoint::Sent,
            (true, false) => RequestPoint::Arrived,
            (true, true) => RequestPoint::Replied,
            (false, false) => RequestPoint::Returned,
        };
        let key = (record.connection, record.client_pid);
        let number = self.connection(key, record.listener_pid)?;
        let connection = self.connections.get_mut(&key)?;
        connection.sent |= matches!(point, RequestPoint::Sent | RequestPoint::Arrived);
        let missed = !connection.sent;
        let daemon = match point {
            RequestPoint::Sent | RequestPoint::Returned => connection.listener.clone(),
            RequestPoint::Arrived | RequestPoint::Replied | RequestPoint::Awaited => {
                let comm_len = record.comm.iter().position(|byte| *byte == 0);
                let process = ProcessKey::new(record.header.pid, record.header.start_ns);
                let followed = record.flags & MESSAGE_FOLLOWED != 0;
                Some(DaemonProcess {
                    process,
                    thread: record.tid,
                    thread_begin: Timestamp(record.thread_begin_ns),
                    followed,
                    // The file of one that is not trusted is its own choice.
                    goroutines: followed && self.goroutines.are_in(process),
                    goroutine: self.goroutines.resolve(process, &record.goroutine),
                    name: SmolStr::new(text(&record.comm[..comm_len.unwrap_or(COMM_LEN)])),
                    cgroup: cgroups.path(record.cgroup_id, record.header.pid),
                })
            }
        };
        match point {
            RequestPoint::Arrived => self.on_arrival(record.header.pid, key, at),
            RequestPoint::Returned => self.on_return(key, at, record.bytes, missed.then_some(plugin)),
            RequestPoint::Sent | RequestPoint::Replied | RequestPoint::Awaited => {}
        }
        let transport = match record.flags & MESSAGE_TCP {
            0 => RequestTransport::Unix,
            _ => RequestTransport::Tcp,
        };
        let step = RequestStep {
            connection: number,
            client,
            point,
            bytes: record.bytes,
            transport,
            daemon,
        };
        Some(Event {
            at,
            body: Body::RequestSeen(Box::new(step)),
        })
    }

    /// The number of a connection, which is entered when it is new. `None` when there are too many.
    fn connection(&mut self, key: (u64, u32), listener: u32) -> Option<u64> {
        if let Some(known) = self.connections.get(&key) {
            return Some(known.number);
        }
        if self.connections.len() >= CONNECTIONS_MAX {
            return None;
        }
        self.numbered += 1;
        let connection = Connection {
            number: self.numbered,
            listener: (listener != 0).then(|| listening(listener)).flatten(),
            sent: false,
        };
        self.connections.insert(key, connection);
        Some(self.numbered)
    }

    fn on_arrival(&mut self, daemon: u32, connection: (u64, u32), at: Timestamp) {
        if self.followed.len() >= CONNECTIONS_MAX {
            return;
        }
        let followed = self.followed.entry(daemon).or_insert_with(|| Followed {
            newest: 0,
            in_flight: HashSet::new(),
            idle_from: at,
        });
        followed.newest = followed.newest.max(at.0);
        followed.in_flight.insert(connection);
    }

    /// The client received something. `missed` is its plugin when its request was not seen: from now on it is known as a shim.
    fn on_return(&mut self, connection: (u64, u32), at: Timestamp, bytes: u32, missed: Option<SmolStr>) {
        if bytes > CONTROL_MAX {
            for daemon in self.followed.values_mut() {
                if daemon.in_flight.remove(&connection) {
                    daemon.idle_from = at;
                }
            }
        }
        let Some(plugin) = missed.filter(|plugin| !plugin.is_empty()) else {
            return;
        };
        let was_slow = at.since(self.since) >= SLOW_NS;
        if was_slow && self.shims.len() < SHIMS_MAX as usize && self.shims.insert(plugin.clone()) {
            tracing::info!(%plugin, "plugin is known as a shim from now on");
            self.maps.add_shim(&plugin);
        }
    }
}

/// The process that listens, by its id.
fn listening(pid: u32) -> Option<DaemonProcess> {
    let (process, name) = running::key_of(pid)?;
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    Some(DaemonProcess {
        process,
        thread: 0,
        thread_begin: Timestamp(0),
        followed: false,
        goroutines: false,
        goroutine: None,
        name,
        cgroup: cgroups::own_path(&cgroup).unwrap_or_default(),
    })
}

/// Requests are followed from now on, or not any more.
fn followed(on: bool) -> Event {
    Event {
        at: clock::now(),
        body: Body::RequestsFollowed { on },
    }
}

/// Name of the probe, in metrics and on the health page.
pub const PROBE: &str = "daemons";
/// Plugins that are shims for a daemon of this node: of Cilium, Multus (thick), OVN-Kubernetes, Antrea, AWS VPC CNI, and the CNI
/// project's own for DHCP.
const KNOWN_SHIMS: &[&str] = &[
    "cilium-cni",
    "multus-shim",
    "ovn-k8s-cni-overlay",
    "antrea",
    "aws-cni",
    "dhcp",
];
/// Processes below plugins and daemons; of more, requests are not followed.
const RUNNING_MAX: usize = 4096;
/// Processes whose connections are looked up at once: a chain of plugins is a few long.
const CLIENTS_MAX: usize = 32;
/// Connections with a client that runs.
const CONNECTIONS_MAX: usize = 1024;
/// A request that was not seen made its plugin slow when its answer came so long after the programs were attached.
const SLOW_NS: u64 = 5_000_000;
/// How long the programs stay attached after a shim: the runtime executes the next plugin within milliseconds.
const LINGER_NS: u64 = 200_000_000;
/// A shim that runs for longer (ten minutes, twice the default of `correlation.deadline`) keeps nothing attached.
const SHIM_MAX_NS: u64 = 600_000_000_000;
/// How long a daemon is followed after its last answer: a shim sends its next request at once.
const IDLE_NS: u64 = 20_000_000;
