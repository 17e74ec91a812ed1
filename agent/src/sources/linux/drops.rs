//! Packets the kernel dropped though somebody waits for them: DNS messages over UDP, and TCP SYNs; with reason and place.
//!
//! Started by the Linux source. A probe that cannot be attached says so in [`Health`]; nothing else stops for it.
//! Does not: join a drop to who waits for it (the correlator does).

mod reasons;
mod symbols;

use std::net::SocketAddr;

use aya::Btf;
use sandglass_model::network::{DroppedPacket, PacketDrop};
use sandglass_model::{Body, Event, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::dns::{DROP_DNS, DropRecord};

use self::reasons::Reasons;
use self::symbols::Symbols;
use super::decode::DecodeError;
use super::dns::decode::address;
use super::follow::{Decoder, Follower};
use super::loader::traffic::{Hook, Loaded, Object};
use super::loader::{LoadError, ProgramTime};
use super::unavailable;
use crate::health::{Health, ProbeStatus};
use crate::sources::EventSender;

/// The attached probe. Detached when dropped, after what is in its ring buffer.
#[derive(Debug)]
pub struct Drops {
    loaded: Loaded,
    _follower: Follower,
}

/// Attaches the probe and starts to send events. `None` when that is not possible here, which [`Health`] tells.
pub fn start(types: &Btf, ports: &[u16], sender: &EventSender, health: &Health) -> Option<Drops> {
    let outcome = attach(REASONED, types, ports, sender, health).or_else(|error| {
        // What the better rung says is why: the other fails for the same reason, or works.
        let drops = attach(UNREASONED, types, ports, sender, health);
        drops.map_err(|_| error)
    });
    match outcome {
        Ok(drops) => Some(drops),
        Err(error) => {
            health.set_probe(unavailable(PROBE, CONSEQUENCE, HINT, &error));
            None
        }
    }
}

fn attach(
    object: Object,
    types: &Btf,
    ports: &[u16],
    sender: &EventSender,
    health: &Health,
) -> Result<Drops, LoadError> {
    let mut loaded = Loaded::load(object, types, RING_BYTES, ports)?;
    let channels = loaded.channels()?;
    loaded.attach("on_drop", &Hook::Tracepoint("kfree_skb", types))?;
    let decoder = DropDecoder {
        reasons: Reasons::of_this_kernel(),
        symbols: Symbols::default(),
    };
    let follower =
        Follower::start(PROBE, channels, decoder, sender.clone(), health.clone()).map_err(LoadError::Thread)?;
    let reasoned = object.hook == REASONED.hook;
    health.set_probe(ProbeStatus {
        probe: PROBE.to_owned(),
        hook: object.hook.to_owned(),
        attached: true,
        consequence: if reasoned {
            ""
        } else {
            "drops are seen without the kernel's reason"
        }
        .to_owned(),
        hint: if reasoned {
            ""
        } else {
            "Linux 5.17 and newer give a reason"
        }
        .to_owned(),
    });
    Ok(Drops {
        loaded,
        _follower: follower,
    })
}

impl Drops {
    /// Kernel time of each program.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.loaded.run_time()
    }
}

struct DropDecoder {
    reasons: Reasons,
    symbols: Symbols,
}

impl Decoder for DropDecoder {
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<u64, DecodeError> {
        let short = DecodeError::Short {
            kind: 0,
            bytes: record.len(),
        };
        let (drop, _) = DropRecord::read(record).ok_or(short)?;
        let is_dns = drop.packet == DROP_DNS;
        events.push(Event {
            at: Timestamp(drop.at_ns),
            body: Body::PacketDropped(Box::new(PacketDrop {
                netns: u64::from(drop.netns),
                packet: match is_dns {
                    true => DroppedPacket::Dns,
                    false => DroppedPacket::TcpSyn,
                },
                source: SocketAddr::new(address(drop.family, &drop.source), drop.source_port),
                destination: SocketAddr::new(address(drop.family, &drop.destination), drop.destination_port),
                dns_id: is_dns.then_some(drop.dns_id),
                reason: self.reasons.name(drop.reason),
                function: self.symbols.function(drop.location),
            })),
        });
        Ok(drop.ring_bytes)
    }
}

/// Name of the probe.
pub const PROBE: &str = "drops";
const REASONED: Object = Object {
    probe: PROBE,
    hook: "tp_btf",
    bytes: sandglass_probes::DROP_TP_BTF,
};
const UNREASONED: Object = Object {
    probe: PROBE,
    hook: "tp_btf without reason",
    bytes: sandglass_probes::DROP_NO_REASON,
};
const CONSEQUENCE: &str = "a lookup or connection that waits for a packet the kernel dropped is not explained by it";
const HINT: &str = "needs Linux 5.11 or newer with BPF tracing, CAP_BPF and CAP_PERFMON";
/// Drops are rare; a flood of them is told of by what was lost.
const RING_BYTES: u32 = 256 << 10;

#[cfg(test)]
mod tests {
    use sandglass_probes::wire::dns::{DROP_SYN, FAMILY_V4, FAMILY_V6};

    use super::*;

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
        };
        record.source[..4].copy_from_slice(&[10, 0, 0, 2]);
        record.destination[..4].copy_from_slice(&[10, 96, 0, 10]);
        record
    }

    fn decoded(record: &DropRecord) -> PacketDrop {
        let mut decoder = DropDecoder {
            reasons: Reasons::default(),
            symbols: Symbols::default(),
        };
        let mut events = Vec::new();
        assert_eq!(decoder.decode(record.bytes(), &mut events), Ok(640));
        match events.pop() {
            Some(Event {
                at: Timestamp(7),
                body: Body::PacketDropped(drop),
            }) => *drop,
            other => panic!("{other:?}"),
        }
    }

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

    #[test]
    fn a_record_cut_short_is_an_error() {
        let mut decoder = DropDecoder {
            reasons: Reasons::default(),
            symbols: Symbols::default(),
        };
        let mut events = Vec::new();
        assert!(decoder.decode(&record().bytes()[1..], &mut events).is_err());
        assert!(events.is_empty());
    }
}
