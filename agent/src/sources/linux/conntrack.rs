//! The conntrack probe: flows of the node's table as they come and go, with their translations, and the growth of conntrack's
//! counters.
//!
//! Used by the Linux source. Flows come from ctnetlink, which multicasts them to its subscribers. On the better rung a BPF
//! filter on the agent's socket puts them into a ring buffer with the kernel's time: no message waits in the socket and none
//! wakes the agent. The other rung reads the socket. Counters are polled once a second. Only TCP and UDP flows of the node's
//! own namespace are reported: most rules that need conntrack are there, and a subscription in every sandbox would make each
//! of them pay for events.
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

use self::socket::{Received, Subscription};
use self::tables::Tables;
use super::feed::{Drained, Feed, Follower, Outlet, RECORDS_MAX};
use super::known_namespaces::KnownNamespaces;
use super::loader::error::LoadError;
use super::loader::family::{Family, Object, ProbeLoader, RecordStream};
use super::loader::run_time::ProgramTime;
use super::record::DecodeError;
use super::status;
use crate::failure::causes_in_short;
use crate::health::{Health, ProbeStatus};
use crate::sources::clock;
use crate::sources::queue::{EventSender, Stopped};

/// How flows reach the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowOptions {
    /// Try the rung with the BPF filter on the socket.
    pub filter: bool,
    /// Bytes of the ring buffer or of the socket's buffer; `None` for the default of the rung.
    pub buffer_bytes: Option<u32>,
}

impl FlowOptions {
    /// Both rungs, the better first, each with its own size of buffer.
    pub const LADDER: FlowOptions = FlowOptions {
        filter: true,
        buffer_bytes: None,
    };
}

/// The running subscription. Dropping it ends it.
#[derive(Debug)]
pub struct Conntrack {
    // Dropped first: the thread drains once more.
    _follower: Follower,
    /// The loaded filter; `None` on the rung without it.
    filter: Option<Family>,
}

impl Conntrack {
    /// Subscribes, if that is wanted, and reports in `health` what came of it.
    #[must_use]
    pub fn start(
        wanted: bool,
        options: &FlowOptions,
        known: KnownNamespaces,
        loader: &mut ProbeLoader<'_>,
        (sender, health): (&EventSender, &Health),
    ) -> Option<Conntrack> {
        if !wanted {
            health.set_probe(missing("switched off", "set probes.conntrack to true"));
            return None;
        }
        let common = Common {
            // Of the thread, not of the process: the caller may have moved it into the node's namespace.
            netns: fs::metadata("/proc/thread-self/ns/net").map_or(0, |namespace| namespace.ino()),
            outlet: Outlet::new(PROBE, sender.clone(), health.clone()),
            known,
        };
        // Why the better rung is not in use, for the status of the other.
        let mut rejected = "not wanted".to_owned();
        if options.filter {
            match with_filter(options, loader, &common) {
                Ok(conntrack) => {
                    health.set_probe(in_use("ctnetlink filter", ""));
                    return Some(conntrack);
                }
                Err(error) => rejected = causes_in_short(&error),
            }
        }
        match with_socket(options, &common) {
            Ok(conntrack) => {
                health.set_probe(in_use("ctnetlink", &rejected));
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

/// Why the subscription failed. Ends in the status of the probe: the probe is optional.
#[derive(Debug, thiserror::Error)]
enum SubscribeError {
    /// The filter was rejected.
    #[error(transparent)]
    Filter(#[from] LoadError),
    /// The socket or the thread.
    #[error("cannot {0}")]
    Socket(&'static str, #[source] std::io::Error),
}

/// The better rung: the kernel's time of each flow, and no wake-up for a message.
fn with_filter(
    options: &FlowOptions,
    loader: &mut ProbeLoader<'_>,
    common: &Common,
) -> Result<Conntrack, SubscribeError> {
    let object = Object {
        probe: PROBE,
        hook: "ctnetlink filter",
        bytes: sandglass_probes::CONNTRACK,
    };
    let mut family = Family::load(object, options.buffer_bytes.unwrap_or(RING_BYTES), loader)?;
    let stream = family.stream()?;
    let subscription = Subscription::open(0).map_err(|error| SubscribeError::Socket("open a netlink socket", error))?;
    // Before the subscription, so that no message gets past the filter.
    family.filter("on_message", subscription.socket())?;
    subscription
        .subscribe()
        .map_err(|error| SubscribeError::Socket("subscribe to ctnetlink", error))?;
    let feed = Filtered {
        stream,
        _subscription: subscription,
        common: common.clone(),
        tables: Tables::new(common.netns, common.known.clone()),
        has_records: false,
    };
    let follower = Follower::start(PROBE, feed).map_err(|error| SubscribeError::Socket("start a thread", error))?;
    Ok(Conntrack {
        _follower: follower,
        filter: Some(family),
    })
}

/// The other rung: a message is stamped when it is read, up to 25 ms late, unless the node has nf_conntrack_timestamp on
/// (Documentation/networking/nf_conntrack-sysctl.rst).
fn with_socket(options: &FlowOptions, common: &Common) -> Result<Conntrack, SubscribeError> {
    let subscription = Subscription::open(options.buffer_bytes.unwrap_or(SOCKET_BYTES) as usize)
        .map_err(|error| SubscribeError::Socket("open a netlink socket", error))?;
    subscription
        .subscribe()
        .map_err(|error| SubscribeError::Socket("subscribe to ctnetlink", error))?;
    let feed = Direct {
        subscription,
        common: common.clone(),
        tables: Tables::new(common.netns, common.known.clone()),
    };
    let follower = Follower::start(PROBE, feed).map_err(|error| SubscribeError::Socket("start a thread", error))?;
    Ok(Conntrack {
        _follower: follower,
        filter: None,
    })
}

/// What both rungs have.
#[derive(Clone)]
struct Common {
    /// Inode number of the network namespace that the sockets are opened in; 0 when it is not known.
    netns: u64,
    outlet: Outlet,
    known: KnownNamespaces,
}

impl Common {
    /// Sends events in their order.
    fn send(&self, events: Vec<Event>) -> Result<(), Stopped> {
        self.outlet.send_all(events.into_iter())
    }

    /// Sends the flows in one or more messages. `at` is the kernel's time where the filter noted it.
    fn send_flows(&self, at: Option<Timestamp>, bytes: &[u8]) -> Result<(), Stopped> {
        for message in netlink::messages(bytes) {
            match flow::decode(&message, self.netns) {
                Ok(Some(seen)) => {
                    // The kernel's own stamp is of the wall clock, so it is converted at the present relation of both clocks.
                    let at = at.or_else(|| seen.unix_ns.map(|unix_ns| clock::anchor().boot(unix_ns)));
                    self.outlet.send(Event {
                        at: at.unwrap_or_else(clock::now),
                        body: Body::FlowSeen(Box::new(seen.flow)),
                    })?;
                }
                Ok(None) => {}
                Err(error) => self.outlet.count_undecodable(&error),
            }
        }
        Ok(())
    }
}

/// The feed of the rung with the filter.
struct Filtered {
    stream: RecordStream,
    // Kept open for the subscription; the filter lets no message through.
    _subscription: Subscription,
    common: Common,
    tables: Tables,
    /// Records came since the last check: without any, none can have found the ring full. Spares an idle node the reads of the
    /// counters, three for each second.
    has_records: bool,
}

impl Feed for Filtered {
    fn outlet(&self) -> &Outlet {
        &self.common.outlet
    }

    fn wake_fd(&self, _asleep: bool) -> Option<BorrowedFd<'_>> {
        Some(self.stream.ring.as_fd())
    }

    fn request_wake(&mut self) -> bool {
        self.stream.reader.request_wake()
    }

    fn drain(&mut self) -> Result<Drained, Stopped> {
        let mut records = 0;
        let common = &self.common;
        while records < RECORDS_MAX
            && let Some(outcome) = self.stream.ring.next(|bytes| forward(common, bytes))
        {
            outcome?;
            records += 1;
        }
        self.has_records |= records > 0;
        Ok(Drained::from_count(records))
    }

    /// Losses first: they are of the records that were drained before.
    fn check(&mut self) -> Result<(), Stopped> {
        if std::mem::take(&mut self.has_records) {
            self.common.outlet.report_losses(&mut self.stream.lost)?;
        }
        self.common.send(self.tables.poll(clock::now()))
    }
}

/// Decodes one record of the filter. Its message is cut where the kernel side had no more room (FLOW_MESSAGE_MAX), which the
/// decoder notices: an attribute that every flow has is then missing.
fn forward(common: &Common, bytes: &[u8]) -> Result<(), Stopped> {
    let record = FlowRecord::read(bytes);
    let message = record
        .as_ref()
        .and_then(|(record, _)| record.message.get(..record.len as usize));
    let (Some((record, _)), Some(message)) = (record.as_ref(), message) else {
        common.outlet.count_undecodable(&DecodeError::Short {
            kind: 0,
            bytes: bytes.len(),
        });
        return Ok(());
    };
    common.send_flows(Some(Timestamp(record.at_ns)), message)
}

/// The feed of the rung without a filter.
struct Direct {
    subscription: Subscription,
    common: Common,
    tables: Tables,
}

impl Feed for Direct {
    fn outlet(&self) -> &Outlet {
        &self.common.outlet
    }

    /// Only asleep: every message makes the socket readable, and an awake thread polls by its clock.
    fn wake_fd(&self, asleep: bool) -> Option<BorrowedFd<'_>> {
        asleep.then(|| self.subscription.socket())
    }

    /// Nothing to request: a message makes the socket readable whether the thread sleeps or not.
    fn request_wake(&mut self) -> bool {
        true
    }

    fn drain(&mut self) -> Result<Drained, Stopped> {
        let mut records = 0;
        while records < RECORDS_MAX {
            match self.subscription.next() {
                Received::Message(bytes) => {
                    records += 1;
                    self.common.send_flows(None, bytes)?;
                }
                // The kernel clears the error with this report of it and keeps what is queued (netlink(7), ENOBUFS): read on.
                Received::Overrun => records += 1,
                Received::Nothing => break,
            }
        }
        Ok(Drained::from_count(records))
    }

    fn check(&mut self) -> Result<(), Stopped> {
        self.common.outlet.report_lost(self.subscription.take_lost())?;
        self.common.send(self.tables.poll(clock::now()))
    }
}

/// What limits a subscription that works: first what leaves it without any flow, then what makes flows late.
fn in_use(hook: &str, rejected: &str) -> ProbeStatus {
    let mut status = status::attached(PROBE, hook);
    // 0: never, 1: always, 2: while there is a subscriber (Documentation/networking/nf_conntrack-sysctl.rst). There is no such
    // file until the module is loaded.
    let events = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_events").unwrap_or_default();
    if events.trim() == "0" {
        status.consequence = "the kernel reports no flows: net.netfilter.nf_conntrack_events is 0".to_owned();
        status.hint = "sysctl -w net.netfilter.nf_conntrack_events=2".to_owned();
    } else if is_elsewhere() {
        status.consequence = "the agent sees its own pod's conntrack table, not the node's".to_owned();
        status.hint = "run the agent in the node's own network namespace (hostNetwork: true)".to_owned();
    } else if !rejected.is_empty() {
        status.consequence = format!(
            "flows are stamped when they are read, up to 25 ms late, unless the kernel stamps them: {rejected}"
        );
        status.hint =
            "needs Linux 5.10 or newer with CAP_BPF; or sysctl -w net.netfilter.nf_conntrack_timestamp=1".to_owned();
    }
    status
}

/// Whether this thread is in another network namespace than process 1. Process 1 is the node's with hostPID, else the pod's
/// own, and then nothing is known of the node's.
fn is_elsewhere() -> bool {
    let inode = |path| fs::metadata(path).ok().map(|namespace| namespace.ino());
    let of_node = inode("/proc/1/ns/net");
    of_node.is_some() && of_node != inode("/proc/thread-self/ns/net")
}

/// The probe is not there: its consequence for traces comes first, then why.
fn missing(reason: &str, hint: &str) -> ProbeStatus {
    let consequence = format!("no translations of addresses and no conntrack counters: {reason}");
    status::missing(PROBE, consequence, hint)
}

/// Name of the probe, in metrics (`probe="conntrack"`), on the health page and in `sandglass doctor`.
pub const PROBE: &str = "conntrack";
/// Room for 1,100 flows between two polls. Small, because its pages count twice in the agent's resident memory: the kernel maps
/// the data area twice in a row (kernel/bpf/ringbuf.c, bpf_ringbuf_area_alloc).
const RING_BYTES: u32 = 256 << 10;
/// Room for some 8,000 messages with the kernel's overhead for each; allocated only as they come.
const SOCKET_BYTES: u32 = 8 << 20;
