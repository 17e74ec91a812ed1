//! The connection probe: TCP connections as the side that connects sees their set-up, straight from the kernel.
//!
//! Used by the Linux source. One hook, on changes of a socket's state; what is not the set-up of a connection costs two
//! comparisons in the kernel. Without it there are no connections in traces; nothing else is missing.
//! A connection that never becomes one, because the node has no route or no port for it, is not a change of state: the
//! kernel tells nobody but the program (ENETUNREACH at once). Such attempts are not seen.
//! Does not: follow connections once they stand, or see who accepts them.

pub mod decode;

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Btf;
use sandglass_model::{Body, Event};

use super::Rung;
use super::loader::family::{Family, Object, Stream};
use super::loader::{LoadError, ProgramTime};
use super::stream::{Feed, Follower, Outlet};
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
        btf: &Btf,
        sender: &EventSender,
        health: &Health,
    ) -> Option<ConnectProbe> {
        if !wanted {
            health.set_probe(missing("switched off", "set probes.connect to true"));
            return None;
        }
        let mut refused = None;
        for rung in rungs {
            match attach(*rung, btf, sender, health) {
                Ok(probe) => {
                    health.set_probe(in_use(*rung, refused.as_ref()));
                    return Some(probe);
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let reason = refused.map_or_else(|| "no rung was to be tried".to_owned(), |error| error.to_string());
        health.set_probe(missing(
            &reason,
            "needs Linux 5.10 or newer with CAP_BPF and CAP_PERFMON",
        ));
        None
    }

    /// Kernel time of its program so far.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.family.run_time()
    }
}

fn attach(rung: Rung, btf: &Btf, sender: &EventSender, health: &Health) -> Result<ConnectProbe, LoadError> {
    let object = Object {
        probe: PROBE,
        hook: rung.name(),
        bytes: match rung {
            Rung::TpBtf => sandglass_probes::CONNECT_TP_BTF,
            Rung::RawTp => sandglass_probes::CONNECT_RAW_TP,
        },
    };
    let mut family = Family::load(object, RING_BYTES, btf)?;
    let stream = family.stream()?;
    family.attach("on_set_state", TRACEPOINT, btf)?;
    let feed = Connects {
        stream,
        outlet: Outlet::new(PROBE, sender.clone(), health.clone()),
        secret: RandomState::new(),
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
    /// Turns addresses of the kernel into something that tells nothing of them.
    secret: RandomState,
}

impl Feed for Connects {
    fn wakes(&self, _asleep: bool) -> Option<BorrowedFd<'_>> {
        Some(self.stream.ring.as_fd())
    }

    fn sleeps(&mut self) -> bool {
        self.stream.reader.sleeps()
    }

    fn drain(&mut self) -> Result<bool, Stopped> {
        let mut any = false;
        while let Some(decoded) = self.stream.ring.next(decode::decode) {
            any = true;
            match decoded {
                Ok(mut decoded) => {
                    if decoded.socket_is_address {
                        decoded.step.socket = self.secret.hash_one(decoded.step.socket);
                    }
                    self.outlet.send(Event {
                        at: decoded.at,
                        body: Body::ConnectSeen(Box::new(decoded.step)),
                    })?;
                }
                Err(error) => self.outlet.undecodable(&error),
            }
        }
        Ok(any)
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
        status.consequence = format!("a lower rung is in use, which sees the same at a little more cost: {error}");
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
/// Room for 4,000 connections between two looks.
const RING_BYTES: u32 = 1 << 20;
