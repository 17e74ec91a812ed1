//! The connection probe: the set-up of TCP connections, as the side that connects sees it.
//!
//! Used by the Linux source. One hook, on changes of a socket's state (net/ipv4/af_inet.c, inet_sk_set_state); all changes that
//! are no set-up cost two comparisons in the kernel, in each of two programs. Without it there are no connections in traces; nothing else is missing.
//! A connection has two records: that it started, with the process, and that it was established or failed.
//! A connection for which the node has no route or no port is no change of state: connect(2) fails at once, and only the
//! program learns of it. Such connections are not seen.
//! Does not: follow connections once they are established, or see who accepts them.

pub mod decode;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use sandglass_model::network::{ConnectStep, Step};
use sandglass_model::{Body, Event, Timestamp};

use super::attached::AttachedProbe;
use super::feed::decoded::{DecodedFeed, Decoder};
use super::feed::{Follower, Outlet};
use super::loader::error::LoadError;
use super::loader::family::{Family, Object, ProbeLoader, Rung};
use super::record::DecodeError;
use super::status;
use crate::failure::causes_in_short;
use crate::health::{Health, ProbeStatus};
use crate::sources::queue::EventSender;

/// Attaches the best of `rungs`, if the probe is wanted, and reports in `health` what came of it.
#[must_use]
pub fn start(
    wanted: bool,
    rungs: &[Rung],
    loader: &mut ProbeLoader<'_>,
    sender: &EventSender,
    health: &Health,
) -> Option<AttachedProbe> {
    if !wanted {
        health.set_probe(missing("switched off", "set probes.connect to true"));
        return None;
    }
    // The first error is shown: the other rungs failed for the same reason.
    let mut rejected = None;
    for rung in rungs {
        match attach(*rung, loader, sender, health) {
            Ok(probe) => {
                health.set_probe(in_use(*rung, rejected.as_ref()));
                return Some(probe);
            }
            Err(error) => rejected = rejected.or(Some(error)),
        }
    }
    let why = rejected.map_or_else(|| "no rung was to be tried".to_owned(), |error| causes_in_short(&error));
    health.set_probe(missing(&why, "needs Linux 5.10 or newer with CAP_BPF and CAP_PERFMON"));
    None
}

/// Loads one rung's object, attaches it and starts the thread that follows its ring buffer.
///
/// # Errors
/// When the kernel rejects the object or the node is out of threads. Nothing stays attached then.
fn attach(
    rung: Rung,
    loader: &mut ProbeLoader<'_>,
    sender: &EventSender,
    health: &Health,
) -> Result<AttachedProbe, LoadError> {
    let object = Object {
        probe: PROBE,
        hook: rung.name(),
        bytes: match rung {
            Rung::TpBtf => sandglass_probes::CONNECT_TP_BTF,
            Rung::RawTp => sandglass_probes::CONNECT_RAW_TP,
        },
    };
    let mut family = Family::load(object, RING_BYTES, loader)?;
    let stream = family.stream()?;
    // The programs have these names in both rungs' objects, which differ in how they read the socket and identify it. The
    // second reports what an interrupt brings during a run of the first (probes/bpf/recursion.h).
    family.attach("on_set_state", TRACEPOINT, loader)?;
    family.attach("on_set_state_within", TRACEPOINT, loader)?;
    let outlet = Outlet::new(PROBE, sender.clone(), health.clone());
    let feed = DecodedFeed::new(stream, outlet, ConnectDecoder::default());
    Ok(AttachedProbe::new(
        Follower::start(PROBE, feed).map_err(LoadError::Thread)?,
        family,
    ))
}

/// Decodes records and renames sockets that are known by their address only.
#[derive(Default)]
struct ConnectDecoder {
    addresses: SocketNames,
}

impl Decoder for ConnectDecoder {
    /// One record is one event. An address never gets past here: the step has a name in its place.
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError> {
        let mut decoded = decode::decode(record)?;
        if decoded.socket_is_address {
            decoded.step.socket = self.addresses.name(decoded.at, &decoded.step);
        }
        events.push(Event {
            at: decoded.at,
            body: Body::ConnectSeen(Box::new(decoded.step)),
        });
        Ok(())
    }
}

/// Names of sockets of which only the address in the kernel is known. A name does not reveal the address, and the next socket
/// at the same address gets another name.
#[derive(Default)]
struct SocketNames {
    /// The key of a keyed hash, new for each run of the agent: without it a name could be searched for by trying addresses.
    secret: RandomState,
    /// By address, of the connections whose end was not seen yet; at most [`NAMES_MAX`].
    names: HashMap<u64, u64>,
}

impl SocketNames {
    /// The name of the socket of a step. The first step makes it, and each of the two possible second ones takes it.
    fn name(&mut self, at: Timestamp, step: &ConnectStep) -> u64 {
        let new = self.secret.hash_one((step.socket, at.0));
        if step.step != Step::Started {
            // Without its first step the connection began before the agent did: any name is as good as another.
            return self.names.remove(&step.socket).unwrap_or(new);
        }
        // Full only when ends were lost. The ends of the others then get names that no begin has.
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(step.socket, new);
        new
    }
}

/// Both rungs report the same; the lower one only costs more.
fn in_use(rung: Rung, rejected: Option<&LoadError>) -> ProbeStatus {
    let mut status = status::attached(PROBE, &format!("{} {TRACEPOINT}", rung.name()));
    if let Some(error) = rejected {
        status.consequence = format!(
            "a lower rung is in use, which sees the same at a little more cost: {}",
            causes_in_short(error)
        );
        status.hint = "a kernel of 5.12 or newer takes tp_btf".to_owned();
    }
    status
}

/// The status without the probe: its consequence for traces comes first, then why.
fn missing(reason: &str, hint: &str) -> ProbeStatus {
    let consequence = format!("no TCP connections in traces and metrics: {reason}");
    status::missing(PROBE, consequence, hint)
}

/// Name of the probe, in metrics (`probe="connect"`), on the health page and in `sandglass doctor`.
pub const PROBE: &str = "connect";
/// include/trace/events/sock.h, since Linux 4.16.
const TRACEPOINT: &str = "inet_sock_set_state";
/// Room for the records of 1,000 connections between two polls. Small, because its pages count twice in the agent's resident
/// memory: the kernel maps the data area twice in a row (kernel/bpf/ringbuf.c, bpf_ringbuf_area_alloc).
const RING_BYTES: u32 = 256 << 10;
/// Connects that may be under way at once: a SYN is retried for about two minutes (tcp_syn_retries, tcp(7)).
const NAMES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// The kernel's allocator hands out the address of a freed socket at once: both connections must not become one.
    #[test]
    fn a_socket_at_an_old_address_gets_a_new_name() {
        let mut addresses = SocketNames::default();
        let anywhere = SocketAddr::from(([10, 0, 0, 1], 1));
        let mut name = |at, step| {
            let step = ConnectStep {
                netns: 1,
                socket: 0xffff_8880_0000_1000,
                local: anywhere,
                remote: anywhere,
                initiator: None,
                step,
                retransmits: 0,
            };
            addresses.name(Timestamp(at), &step)
        };
        let first = [name(1, Step::Started), name(2, Step::Established)];
        let second = [name(3, Step::Started), name(4, Step::Established)];
        assert_eq!((first[0], second[0]), (first[1], second[1]));
        assert_ne!(first[0], second[0]);
        assert_ne!(first[0], 0xffff_8880_0000_1000);
        assert!(addresses.names.is_empty());
    }
}
