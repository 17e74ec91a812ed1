//! Conntrack: which flows came and went in the node's table, what was translated, and how the table's counters grow.
//!
//! Used by the Linux source. Flows come from ctnetlink, the kernel's own announcements to whoever subscribes. The better
//! rung lets a BPF filter on the agent's socket put them into a ring buffer with the kernel's time, so that no message
//! waits in the socket and none wakes the agent; the other one reads the socket. Counters are polled once a second.
//! Only TCP and UDP are told of. Flows are those of the node's own namespace: most rules that need conntrack live there,
//! and a subscription in every sandbox would make each of them pay for events.
//! Does not: turn conntrack or its events on, change a table, or load a rule.

mod counts;
pub mod flow;
mod netlink;
mod sandboxes;
mod socket;
mod tables;

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;

use sandglass_model::{Body, Event, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::conntrack::FlowRecord;

pub use self::sandboxes::KnownNamespaces;
use self::socket::{Announcements, Told};
use self::tables::Tables;
use super::feed::{AT_ONCE, Feed, Follower, Found, Outlet, reason};
use super::loader::family::{Family, Loader, Object, Stream};
use super::loader::{LoadError, ProgramTime};
use super::record::DecodeError;
use crate::health::{Health, ProbeStatus};
use crate::sources::{EventSender, Stopped, clock};

/// How flows come to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowOptions {
    /// Try the rung with the filter on the socket.
    pub filter: bool,
    /// Bytes the kernel may keep for the agent, of the ring buffer or of the socket; `None`: as much as suits the rung.
    pub buffer_bytes: Option<u32>,
}

impl Default for FlowOptions {
    fn default() -> FlowOptions {
        FlowOptions {
            filter: true,
            buffer_bytes: None,
        }
    }
}

/// The running subscription. Dropping it ends it.
#[derive(Debug)]
pub struct Conntrack {
    // The thread ends first: it takes a last look.
    _follower: Follower,
    filter: Option<Family>,
}

impl Conntrack {
    /// Subscribes, if that is wanted, and says in `health` what came of it.
    #[must_use]
    pub fn start(
        wanted: bool,
        options: &FlowOptions,
        known: KnownNamespaces,
        loader: &mut Loader<'_>,
        (sender, health): (&EventSender, &Health),
    ) -> Option<Conntrack> {
        if !wanted {
            health.set_probe(missing("switched off", "set probes.conntrack to true"));
            return None;
        }
        let common = Common {
            netns: fs::metadata("/proc/thread-self/ns/net").map_or(0, |namespace| namespace.ino()),
            outlet: Outlet::new(PROBE, sender.clone(), health.clone()),
            known,
        };
        let mut refused = "not asked for".to_owned();
        if options.filter {
            match with_filter(options, loader, &common) {
                Ok(conntrack) => {
                    health.set_probe(in_use("ctnetlink filter", ""));
                    return Some(conntrack);
                }
                Err(error) => refused = causes_in_short(&error),
            }
        }
        match with_socket(options, &common) {
            Ok(conntrack) => {
                health.set_probe(in_use("ctnetlink", &refused));
                Some(conntrack)
            }
            Err(error) => {
                health.set_probe(missing(
                    &causes_in_short(&error),
                    "needs CAP_NET_ADMIN, and a kernel with CONFIG_NF_CT_NETLINK",
                ));
                None
            }
        }
    }

    /// Kernel time of the filter so far, where there is one.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.filter.as_ref().map(Family::run_time).unwrap_or_default()
    }
}

/// Why it could not be subscribed to.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The filter was rejected.
    #[error(transparent)]
    Filter(#[from] LoadError),
    /// A socket could not be had.
    #[error("cannot {0}")]
    Socket(&'static str, #[source] std::io::Error),
}

fn with_filter(options: &FlowOptions, loader: &mut Loader<'_>, common: &Common) -> Result<Conntrack, StartError> {
    let object = Object {
        probe: PROBE,
        hook: "ctnetlink filter",
        bytes: sandglass_probes::CONNTRACK,
    };
    let mut family = Family::load(object, options.buffer_bytes.unwrap_or(RING_BYTES), loader)?;
    let stream = family.stream()?;
    let announcements = Announcements::open(0).map_err(|error| StartError::Socket("open a netlink socket", error))?;
    // Before it is subscribed: nothing gets past the filter.
    family.filter("on_message", announcements.socket())?;
    announcements
        .subscribe()
        .map_err(|error| StartError::Socket("subscribe to ctnetlink", error))?;
    let feed = Filtered {
        stream,
        _announcements: announcements,
        common: common.clone(),
        tables: Tables::new(common.netns, common.known.clone()),
        came: false,
    };
    let follower = Follower::start(PROBE, feed).map_err(|error| StartError::Socket("start a thread", error))?;
    Ok(Conntrack {
        _follower: follower,
        filter: Some(family),
    })
}

fn with_socket(options: &FlowOptions, common: &Common) -> Result<Conntrack, StartError> {
    let announcements = Announcements::open(options.buffer_bytes.unwrap_or(SOCKET_BYTES) as usize)
        .map_err(|error| StartError::Socket("open a netlink socket", error))?;
    announcements
        .subscribe()
        .map_err(|error| StartError::Socket("subscribe to ctnetlink", error))?;
    let feed = Direct {
        announcements,
        common: common.clone(),
        tables: Tables::new(common.netns, common.known.clone()),
    };
    let follower = Follower::start(PROBE, feed).map_err(|error| StartError::Socket("start a thread", error))?;
    Ok(Conntrack {
        _follower: follower,
        filter: None,
    })
}

/// What both rungs need.
#[derive(Clone)]
struct Common {
    netns: u64,
    outlet: Outlet,
    known: KnownNamespaces,
}

impl Common {
    fn send(&self, events: Vec<Event>) -> Result<(), Stopped> {
        events.into_iter().try_for_each(|event| self.outlet.send(event))
    }

    /// Tells of the flows in a message, or several.
    fn tell(&self, at: Option<Timestamp>, bytes: &[u8]) -> Result<(), Stopped> {
        for message in netlink::messages(bytes) {
            match flow::decode(&message, self.netns) {
                Ok(Some(announced)) => {
                    let at = at.or_else(|| announced.unix_ns.map(|unix_ns| clock::anchor().boot(unix_ns)));
                    self.outlet.send(Event {
                        at: at.unwrap_or_else(clock::now),
                        body: Body::FlowSeen(Box::new(announced.flow)),
                    })?;
                }
                Ok(None) => {}
                Err(error) => self.outlet.undecodable(&error),
            }
        }
        Ok(())
    }
}

/// The rung with the filter.
struct Filtered {
    stream: Stream,
    // Open, it keeps the subscription; nothing ever comes through it.
    _announcements: Announcements,
    common: Common,
    tables: Tables,
    /// Records came since losses were looked at: without any, none can have found the ring full.
    came: bool,
}

impl Feed for Filtered {
    fn wakes(&self, _asleep: bool) -> Option<BorrowedFd<'_>> {
        Some(self.stream.ring.as_fd())
    }

    fn sleeps(&mut self) -> bool {
        self.stream.reader.sleeps()
    }

    fn drain(&mut self) -> Result<Found, Stopped> {
        let mut records = 0;
        let common = &self.common;
        while records < AT_ONCE
            && let Some(outcome) = self.stream.ring.next(|bytes| forward(common, bytes))
        {
            outcome?;
            records += 1;
        }
        self.came |= records > 0;
        Ok(Found::of(records))
    }

    fn check(&mut self) -> Result<(), Stopped> {
        if std::mem::take(&mut self.came) {
            self.common.outlet.report_losses(&mut self.stream.lost)?;
        }
        self.common.send(self.tables.poll(clock::now()))
    }
}

fn forward(common: &Common, bytes: &[u8]) -> Result<(), Stopped> {
    let record = FlowRecord::read(bytes);
    let message = record
        .as_ref()
        .and_then(|(record, _)| record.message.get(..record.len as usize));
    let (Some((record, _)), Some(message)) = (record.as_ref(), message) else {
        common.outlet.undecodable(&DecodeError::Short {
            kind: 0,
            bytes: bytes.len(),
        });
        return Ok(());
    };
    common.tell(Some(Timestamp(record.at_ns)), message)
}

/// The rung without.
struct Direct {
    announcements: Announcements,
    common: Common,
    tables: Tables,
}

impl Feed for Direct {
    /// Every message would wake, so while it is awake the thread goes by the clock.
    fn wakes(&self, asleep: bool) -> Option<BorrowedFd<'_>> {
        asleep.then(|| self.announcements.socket())
    }

    fn sleeps(&mut self) -> bool {
        true
    }

    fn drain(&mut self) -> Result<Found, Stopped> {
        let mut records = 0;
        while records < AT_ONCE {
            match self.announcements.next() {
                Told::Message(bytes) => {
                    records += 1;
                    self.common.tell(None, bytes)?;
                }
                Told::Overrun => records += 1,
                Told::Nothing => break,
            }
        }
        Ok(Found::of(records))
    }

    fn check(&mut self) -> Result<(), Stopped> {
        self.common.outlet.report_lost(self.announcements.take_lost())?;
        self.common.send(self.tables.poll(clock::now()))
    }
}

fn in_use(hook: &str, refused: &str) -> ProbeStatus {
    let mut status = ProbeStatus {
        probe: PROBE.to_owned(),
        hook: hook.to_owned(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    };
    let events = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_events").unwrap_or_default();
    if events.trim() == "0" {
        status.consequence = "the kernel tells of no flows: net.netfilter.nf_conntrack_events is 0".to_owned();
        status.hint = "sysctl -w net.netfilter.nf_conntrack_events=2".to_owned();
    } else if is_elsewhere() {
        status.consequence = "the agent sees its own pod's conntrack table, not the node's".to_owned();
        status.hint = "run the agent in the node's own network namespace (hostNetwork: true)".to_owned();
    } else if !refused.is_empty() {
        status.consequence =
            format!("flows come as late as they are read, by 25 ms, where the kernel does not say when: {refused}");
        status.hint =
            "needs Linux 5.10 or newer with CAP_BPF; or sysctl -w net.netfilter.nf_conntrack_timestamp=1".to_owned();
    }
    status
}

/// Whether this thread is in another network namespace than the node's first process.
fn is_elsewhere() -> bool {
    let inode = |path| fs::metadata(path).ok().map(|namespace| namespace.ino());
    let of_node = inode("/proc/1/ns/net");
    of_node.is_some() && of_node != inode("/proc/thread-self/ns/net")
}

fn missing(reason: &str, hint: &str) -> ProbeStatus {
    ProbeStatus {
        probe: PROBE.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("no translations of addresses and no conntrack counters: {reason}"),
        hint: hint.to_owned(),
    }
}

/// Name of the probe.
pub const PROBE: &str = "conntrack";
/// Room for 1,100 flows between two looks. Small: the agent's resident memory has it twice, as it is mapped twice.
const RING_BYTES: u32 = 256 << 10;
/// Room for some 8,000 messages with what the kernel needs for each; taken only when they come.
const SOCKET_BYTES: u32 = 8 << 20;
