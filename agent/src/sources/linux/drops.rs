//! The drop probe: DNS messages over UDP and TCP SYNs that the kernel dropped, with its reason and the function that did it.
//!
//! Used by the Linux source. Optional: without it a delay is not explained by a drop. The kernel side reports a bounded number
//! a second of each owner, and of each processor, and counts the others as limited, so that a flood of SYNs does not become a
//! flood of events. The last record before others are left out says so, and becomes one more event.
//!
//! An owner is a network namespace with a sender's address: in the node's own namespace, which all pods' packets pass, the
//! address alone separates them. The limits are OWNER_DROPS_PER_SECOND and DROPS_PER_SECOND (`probes/src/wire/dns.rs`).
//! Dropped UDP datagrams count as DNS by their ports; what they carry is not parsed, but for the message id.
//! Does not: attribute a drop to a lookup or connection (the correlator does).

mod reasons;

use std::net::SocketAddr;

use prometheus_client::metrics::counter::Counter;
use sandglass_model::network::{DroppedPacket, PacketDrop};
use sandglass_model::{Body, Event, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::dns::{DROP_DNS, DropRecord, LIMITED_ALL, LIMITED_OWNER};

use self::reasons::Reasons;
use super::attached::AttachedProbe;
use super::dns::decode::address;
use super::feed::decoded::{DecodedFeed, Decoder};
use super::feed::{Follower, Outlet};
use super::loader::error::LoadError;
use super::loader::family::{Family, Object, ProbeLoader};
use super::loader::maps::LostCounter;
use super::record::DecodeError;
use super::status::{attached, switched_off, unavailable};
use super::symbols::Symbols;
use crate::health::{Health, ProbeLabel, ProbeStatus};
use crate::sources::queue::EventSender;

/// Attaches the probe, if it is wanted, and reports in `health` what came of it. `ports` decides only whether there is anything
/// to watch; the kernel side has its own copy, set by the loader.
#[must_use]
pub fn start(
    wanted: bool,
    ports: &[u16],
    loader: &mut ProbeLoader<'_>,
    sender: &EventSender,
    health: &Health,
) -> Option<AttachedProbe> {
    if !wanted || ports.is_empty() {
        health.set_probe(switched_off(PROBE, CONSEQUENCE, "probes.drops"));
        return None;
    }
    let mut attach = |object| attach(object, loader, sender, health);
    // Two objects rather than one with a test: the verifier rejects a load of the tracepoint's third argument where the kernel
    // has only two (before Linux 5.17).
    let (probe, status) = match attach(REASONED) {
        Ok(probe) => (Some(probe), in_use(REASONED.hook, None)),
        Err(error) => match attach(UNREASONED) {
            Ok(probe) => (Some(probe), in_use(UNREASONED.hook, Some(&error))),
            // The error of the better object: the other failed for the same reason.
            Err(_) => (None, unavailable(PROBE, CONSEQUENCE, HINT, &error)),
        },
    };
    health.set_probe(status);
    probe
}

/// Loads one object, attaches it and starts the thread that follows its ring buffer.
///
/// # Errors
/// When the kernel rejects the object or the node is out of threads. Nothing stays attached then.
fn attach(
    object: Object,
    loader: &mut ProbeLoader<'_>,
    sender: &EventSender,
    health: &Health,
) -> Result<AttachedProbe, LoadError> {
    let mut family = Family::load(object, RING_BYTES, loader)?;
    let stream = family.stream()?;
    // The tracepoint of include/trace/events/skb.h. kfree_skb_reason() calls it, consume_skb() does not (net/core/skbuff.c, as
    // in Linux 6.12), so that a packet freed after use is no drop.
    family.attach("on_drop", "kfree_skb", loader)?;
    // Reports what an interrupt brings during a run of the first (probes/bpf/recursion.h).
    family.attach("on_drop_within", "kfree_skb", loader)?;
    let label = ProbeLabel {
        probe: PROBE.to_owned(),
    };
    let limited = health.limited.get_or_create(&label);
    let decoder = DropDecoder {
        reasons: Reasons::of_this_kernel(),
        symbols: loader.symbols(),
        limited: Some((family.limited()?, limited)),
    };
    let outlet = Outlet::new(PROBE, sender.clone(), health.clone());
    let feed = DecodedFeed::new(stream, outlet, decoder);
    Ok(AttachedProbe::new(
        Follower::start(PROBE, feed).map_err(LoadError::Thread)?,
        family,
    ))
}

/// The status of the attached probe; `rejected` is why the object with reasons is not the one in use.
fn in_use(hook: &str, rejected: Option<&LoadError>) -> ProbeStatus {
    let mut status = attached(PROBE, hook);
    if let Some(error) = rejected {
        status.consequence = format!("drops are seen without the kernel's reason: {error}");
        status.hint = "Linux 5.17 and newer give a reason".to_owned();
    }
    status
}

/// Turns records into events; numbers of reasons and addresses of functions become names.
struct DropDecoder {
    /// Read once, when the probe starts: the numbers of a running kernel do not change.
    reasons: Reasons,
    /// Fills as functions drop packets for the first time.
    symbols: Symbols,
    /// The kernel side's count of drops that were left out, and that of the agent's health. `None` in tests, which have no
    /// maps.
    limited: Option<(LostCounter, Counter)>,
}

impl Decoder for DropDecoder {
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError> {
        let short = DecodeError::Short {
            kind: 0,
            bytes: record.len(),
        };
        let (drop, _) = DropRecord::read(record).ok_or(short)?;
        let is_dns = drop.packet == DROP_DNS;
        // The kernel side reports DNS messages and SYNs only, so that what is not the one is the other.
        let source = address(drop.family, &drop.source);
        events.push(Event {
            at: Timestamp(drop.at_ns),
            body: Body::PacketDropped(Box::new(PacketDrop {
                netns: u64::from(drop.netns),
                packet: match is_dns {
                    true => DroppedPacket::Dns,
                    false => DroppedPacket::TcpSyn,
                },
                source: SocketAddr::new(source, drop.source_port),
                destination: SocketAddr::new(address(drop.family, &drop.destination), drop.destination_port),
                dns_id: is_dns.then_some(drop.dns_id),
                reason: self.reasons.name(drop.reason),
                function: self.symbols.function(drop.location).to_string(),
            })),
        });
        // The kernel side sets the mark once a second for each owner and each processor, on the last record that it lets
        // through. So an event of a limit never comes without the drop that reached it.
        let limited = |netns, source| Event {
            at: Timestamp(drop.at_ns),
            body: Body::Limited {
                probe: PROBE.to_owned(),
                netns,
                source,
            },
        };
        match drop.limited {
            LIMITED_OWNER => events.push(limited(u64::from(drop.netns), Some(source))),
            LIMITED_ALL => events.push(limited(0, None)),
            _ => {}
        }
        Ok(())
    }

    /// Adds the drops that were left out since the last call to the agent's health. They make no event of their own: a node
    /// under a flood of SYNs has millions of them.
    fn sweep(&mut self, _now: Timestamp, _events: &mut Vec<Event>) {
        if let Some((kernel, counter)) = &mut self.limited {
            counter.inc_by(kernel.take());
        }
    }
}

/// Name of the probe, in metrics (`probe="drops"`), on the health page and in `sandglass doctor`.
pub const PROBE: &str = "drops";
/// The better object: the tracepoint passes a reason since Linux 5.17 (include/trace/events/skb.h).
const REASONED: Object = Object {
    probe: PROBE,
    hook: "tp_btf",
    bytes: sandglass_probes::DROP_TP_BTF,
};
/// The other object: every drop has reason 0, which [`Reasons::name`] calls NOT_SPECIFIED.
const UNREASONED: Object = Object {
    probe: PROBE,
    hook: "tp_btf without reason",
    bytes: sandglass_probes::DROP_NO_REASON,
};
const CONSEQUENCE: &str = "a lookup or connection that waits for a packet the kernel dropped is not explained by it";
const HINT: &str = "needs Linux 5.11 or newer with BPF tracing, CAP_BPF and CAP_PERFMON";
/// Room for 740 records. Drops are rare; of a flood of them, most are left out.
const RING_BYTES: u32 = 64 << 10;

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;
    use sandglass_probes::wire::dns::{DROP_SYN, FAMILY_V4, FAMILY_V6, LIMITED_NOT};

    use super::*;
    use crate::sources::channel;
    use crate::sources::linux::loader::family::with_kernel_types;

    fn record() -> DropRecord {
        let mut record = DropRecord {
            at_ns: 7,
            location: 0,
            ring_bytes: 640,
            netns: 4_026_531_840,
            reason: 2,
            source_port: 40_000,
            destination_port: 53,
            dns_id: 0xbeef,
            family: FAMILY_V4,
            packet: DROP_DNS,
            source: [0; 16],
            destination: [0; 16],
            limited: LIMITED_NOT,
            unused: 0,
        };
        record.source[..4].copy_from_slice(&[10, 0, 0, 2]);
        record.destination[..4].copy_from_slice(&[10, 96, 0, 10]);
        record
    }

    fn decoded(record: &DropRecord) -> PacketDrop {
        let mut decoder = DropDecoder {
            reasons: Reasons::default(),
            symbols: Symbols::default(),
            limited: None,
        };
        let mut events = Vec::new();
        assert_eq!(decoder.decode(record.bytes(), &mut events), Ok(()));
        match events.pop() {
            Some(Event {
                at: Timestamp(7),
                body: Body::PacketDropped(drop),
            }) => *drop,
            other => panic!("{other:?}"),
        }
    }

    /// A SYN has no message id, and the four bytes of an IPv4 address are not read as the begin of an IPv6 one.
    #[test]
    fn drops_name_packet_and_ends() {
        let drop = decoded(&record());
        assert_eq!(drop.packet, DroppedPacket::Dns);
        assert_eq!(drop.source.to_string(), "10.0.0.2:40000");
        assert_eq!(drop.destination.to_string(), "10.96.0.10:53");
        assert_eq!(drop.dns_id, Some(0xbeef));
        let syn = decoded(&DropRecord {
            packet: DROP_SYN,
            family: FAMILY_V6,
            ..record()
        });
        assert_eq!(syn.packet, DroppedPacket::TcpSyn);
        assert!(syn.source.is_ipv6());
        assert_eq!(syn.dns_id, None);
    }

    /// The object for older kernels loads on every newer kernel too.
    #[test]
    fn the_object_without_reasons_loads() {
        let test = "the_object_without_reasons_loads";
        let (sender, _receiver) = channel(1024, Gauge::default());
        let health = Health::default();
        match with_kernel_types(&[53], |loader| attach(UNREASONED, loader, &sender, &health)).flatten() {
            Ok(probe) => assert_eq!(probe.run_time().len(), 2),
            Err(error) => {
                // Without BTF or privileges nothing can be loaded here; any other error is one of the object.
                let not_here =
                    matches!(error, LoadError::Btf(_)) || matches!(error.os_error(), Some(libc::EPERM | libc::EACCES));
                assert!(not_here, "{error}: {:?}", std::error::Error::source(&error));
                eprintln!("SKIPPED {test}: {error}");
            }
        }
    }

    /// The owner is the network namespace with the sender's address; a limit of a whole processor names neither.
    #[test]
    fn the_last_record_before_others_are_left_out_names_the_owner() {
        let events_of = |limited| {
            let mut decoder = DropDecoder {
                reasons: Reasons::default(),
                symbols: Symbols::default(),
                limited: None,
            };
            let mut events = Vec::new();
            let record = DropRecord { limited, ..record() };
            assert_eq!(decoder.decode(record.bytes(), &mut events), Ok(()));
            events.into_iter().skip(1).map(|event| event.body).collect::<Vec<_>>()
        };
        let limited = |netns, source| Body::Limited {
            probe: "drops".to_owned(),
            netns,
            source,
        };
        assert_eq!(events_of(LIMITED_NOT), []);
        let source = Some([10, 0, 0, 2].into());
        assert_eq!(events_of(LIMITED_OWNER), [limited(4_026_531_840, source)]);
        assert_eq!(events_of(LIMITED_ALL), [limited(0, None)]);
    }

    /// One byte less than a record: the next record of the ring is decoded all the same.
    #[test]
    fn a_record_cut_short_is_an_error() {
        let mut decoder = DropDecoder {
            reasons: Reasons::default(),
            symbols: Symbols::default(),
            limited: None,
        };
        let mut events = Vec::new();
        assert!(decoder.decode(&record().bytes()[1..], &mut events).is_err());
        assert!(events.is_empty());
    }
}
