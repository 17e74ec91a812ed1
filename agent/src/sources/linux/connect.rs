//! The connection probe: TCP connections as the side that connects sees their set-up, straight from the kernel.
//!
//! Used by the Linux source. One hook, on changes of a socket's state; what is not the set-up of a connection costs two
//! comparisons in the kernel. Without it there are no connections in traces; nothing else is missing.
//! A connection that never becomes one, because the node has no route or no port for it, is not a change of state: the
//! kernel tells nobody but the program (ENETUNREACH at once). Such attempts are not seen.
//! Does not: follow connections once they stand, or see who accepts them.

pub mod decode;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd as _, BorrowedFd};

use sandglass_model::network::{ConnectStep, Step};
use sandglass_model::{Body, Event, Timestamp};

use super::Rung;
use super::feed::{AT_ONCE, Feed, Follower, Found, Outlet, reason};
use super::loader::family::{Family, Loader, Object, Stream};
use super::loader::{LoadError, ProgramTime};
use crate::health::{Health, ProbeStatus};
use crate::sources::{EventSender, Stopped};

/// The attached probe. Dropping it detaches it.
#[derive(Debug)]
pub struct ConnectProbe {
    // The thread ends first: it takes a last look at the ring.
    _follower: Follower,
    family: Family,
}

impl ConnectProbe {
    /// Attaches the best of `rungs`, if the probe is wanted, and says in `health` what came of it.
    #[must_use]
    pub fn start(
        wanted: bool,
        rungs: &[Rung],
        loader: &mut Loader<'_>,
        sender: &EventSender,
        health: &Health,
    ) -> Option<ConnectProbe> {
        if !wanted {
            health.set_probe(missing("switched off", "set probes.connect to true"));
            return None;
        }
        let mut refused = None;
        for rung in rungs {
            match attach(*rung, loader, sender, health) {
                Ok(probe) => {
                    health.set_probe(in_use(*rung, refused.as_ref()));
                    return Some(probe);
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let why = refused.map_or_else(|| "no rung was to be tried".to_owned(), |error| causes_in_short(&error));
        health.set_probe(missing(&why, "needs Linux 5.10 or newer with CAP_BPF and CAP_PERFMON"));
        None
    }

    /// Takes the probe off its hooks, or puts it on again.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        self.family.set_hooked(hooked)
    }

    /// Kernel time of its program so far.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.family.run_time()
    }
}

fn attach(
    rung: Rung,
    loader: &mut Loader<'_>,
    sender: &EventSender,
    health: &Health,
) -> Result<ConnectProbe, LoadError> {
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
    family.attach("on_set_state", TRACEPOINT, loader)?;
    let feed = Connects {
        stream,
        outlet: Outlet::new(PROBE, sender.clone(), health.clone()),
        addresses: Addresses::default(),
    };
    let follower = Follower::start(PROBE, feed).map_err(|error| LoadError::Unexpected {
        probe: PROBE,
        hook: rung.name(),
        what: format!("its thread cannot be started: {error}"),
    })?;
    Ok(ConnectProbe {
        _follower: follower,
        family,
    })
}

/// What the thread owns.
struct Connects {
    stream: Stream,
    outlet: Outlet,
    addresses: Addresses,
}

/// Names for sockets of which only the address in the kernel is known: they tell nothing of it, and the next socket at the
/// same address gets another.
#[derive(Default)]
struct Addresses {
    secret: RandomState,
    /// Of the connections whose end has not been seen.
    names: HashMap<u64, u64>,
}

impl Addresses {
    fn name(&mut self, at: Timestamp, step: &ConnectStep) -> u64 {
        let new = self.secret.hash_one((step.socket, at.0));
        if step.step != Step::Started {
            return self.names.remove(&step.socket).unwrap_or(new);
        }
        // Ends were lost; those of the others then go by new names, each seen once.
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(step.socket, new);
        new
    }
}

impl Feed for Connects {
    fn wakes(&self, _asleep: bool) -> Option<BorrowedFd<'_>> {
        Some(self.stream.ring.as_fd())
    }

    fn sleeps(&mut self) -> bool {
        self.stream.reader.sleeps()
    }

    fn drain(&mut self) -> Result<Found, Stopped> {
        let mut records = 0;
        while records < AT_ONCE
            && let Some(decoded) = self.stream.ring.next(decode::decode)
        {
            records += 1;
            match decoded {
                Ok(mut decoded) => {
                    if decoded.socket_is_address {
                        decoded.step.socket = self.addresses.name(decoded.at, &decoded.step);
                    }
                    self.outlet.send(Event {
                        at: decoded.at,
                        body: Body::ConnectSeen(Box::new(decoded.step)),
                    })?;
                }
                Err(error) => self.outlet.undecodable(&error),
            }
        }
        Ok(Found::of(records))
    }

    fn check(&mut self) -> Result<(), Stopped> {
        self.outlet.report_losses(&mut self.stream.lost)
    }
}

fn in_use(rung: Rung, refused: Option<&LoadError>) -> ProbeStatus {
    let mut status = ProbeStatus {
        probe: PROBE.to_owned(),
        hook: format!("{} {TRACEPOINT}", rung.name()),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    };
    if let Some(error) = refused {
        status.consequence = format!(
            "a lower rung is in use, which sees the same at a little more cost: {}",
            causes_in_short(error)
        );
        status.hint = "a kernel of 5.12 or newer takes tp_btf".to_owned();
    }
    status
}

fn missing(reason: &str, hint: &str) -> ProbeStatus {
    ProbeStatus {
        probe: PROBE.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("no TCP connections in traces and metrics: {reason}"),
        hint: hint.to_owned(),
    }
}

/// Name of the probe.
pub const PROBE: &str = "connect";
const TRACEPOINT: &str = "inet_sock_set_state";
/// Room for 1,000 connections between two looks. Small: the agent's resident memory has it twice, as it is mapped twice.
const RING_BYTES: u32 = 256 << 10;
const NAMES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn a_socket_at_an_old_address_gets_a_new_name() {
        let mut addresses = Addresses::default();
        let anywhere = SocketAddr::from(([10, 0, 0, 1], 1));
        let mut name = |at, step| {
            let step = ConnectStep {
                netns: 1,
                socket: 0xffff_8880_0000_1000,
                local: anywhere,
                remote: anywhere,
                asker: None,
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
