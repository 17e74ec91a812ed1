//! A sandbox's first lookup and connection in its trace, against what the pod's own program measured.
//!
//! What the agent cannot see on this node ([`Seen`]) is not counted as a failure, and the remark names it.

use std::net::SocketAddr;
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::phases::human;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{Cause, ConnectDetail, Detail, LookupDetail, LookupResult, Span, Trace};

use super::Wrong;
use super::clock::agree;
use crate::client::{TIMER, Talked};
use crate::pods::CallRecord;
use crate::services::{BACKEND, DNS_BACKEND, DNS_SERVICE};
use crate::timing::CallTimes;
use sandglass::health::ProbeStatus;

/// What the agent sees on this node besides processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// DNS messages.
    pub dns: bool,
    /// Connections being set up.
    pub connect: bool,
    /// Conntrack entries.
    pub conntrack: bool,
    /// Dropped packets.
    pub drops: bool,
    /// What plugins read and write.
    pub stdio: bool,
    /// What slow plugins wait for.
    pub waits: bool,
    /// Requests of plugins to daemons.
    pub requests: bool,
}

impl Seen {
    /// From the status of the agent's probes.
    #[must_use]
    pub fn by(probes: &[ProbeStatus]) -> Seen {
        let attached = |name: &str| probes.iter().any(|probe| probe.probe == name && probe.attached);
        Seen {
            dns: attached("dns"),
            connect: attached("connect"),
            conntrack: attached("conntrack"),
            drops: attached("drops"),
            stdio: attached("stdio"),
            waits: attached("waits"),
            requests: attached("daemons"),
        }
    }
}

/// A record with its trace, and what of both can be compared.
pub(super) struct Looked<'a> {
    pub(super) trace: &'a Trace,
    pub(super) record: &'a CallRecord,
    pub(super) seen: Seen,
}

const UNSEEN: &str = "cannot be seen on this node";

impl Looked<'_> {
    /// The program's own account; `None` where there is none to compare.
    fn talked(&self) -> Result<Option<&Talked>, String> {
        match &self.record.talked {
            None => Ok(None),
            Some(Ok(talked)) => Ok(Some(talked)),
            Some(Err(wrong)) => Err(format!("the pod's program failed: {wrong}")),
        }
    }

    /// The network proved usable, by one lookup and one connection, each as the program knows it.
    pub(super) fn network(&self) -> Result<String, String> {
        let Some(talked) = self.talked()? else {
            return Ok("nothing was sent".to_owned());
        };
        if !self.seen.dns {
            return Ok(UNSEEN.to_owned());
        }
        let Detail::Sandbox(sandbox) = &self.trace.root().detail else {
            return Err("the root is not a sandbox".to_owned());
        };
        if sandbox.network_ready.is_none() || sandbox.first_attempt.is_none() {
            return Err("the trace has no time at which the network was usable".to_owned());
        }
        let (_, lookup) = self.lookup()?;
        let same = |what: &str, found: String, wanted: String| match found == wanted {
            true => Ok(()),
            false => Err(format!("{what}: found {found}, not {wanted}")),
        };
        same("server", list(&lookup.servers), DNS_SERVICE.to_string())?;
        same("address", list(&lookup.addresses), talked.remote.ip().to_string())?;
        same(
            "search names",
            lookup.search_names.to_string(),
            (talked.names - 1).to_string(),
        )?;
        same(
            "queries sent again",
            lookup.retransmissions.to_string(),
            talked.again.to_string(),
        )?;
        if lookup.result != Some(LookupResult::Rcode(0)) {
            return Err(format!("the lookup ended with {:?}", lookup.result));
        }
        if !self.seen.connect {
            return Ok(format!("{}; its connection {UNSEEN}", lookup.name));
        }
        let (_, connect) = self.connect()?;
        same("remote", connect.remote.to_string(), talked.remote.to_string())?;
        same("local", connect.local.to_string(), talked.local.to_string())?;
        match connect.failure {
            None => Ok(format!("{} is {}", lookup.name, connect.remote)),
            Some(failure) => Err(format!("the connection is marked {}", failure.as_str())),
        }
    }

    /// Both service addresses were translated to the backends.
    pub(super) fn backends(&self) -> Result<String, String> {
        if self.talked()?.is_none() {
            return Ok("nothing was sent".to_owned());
        }
        if !(self.seen.dns && self.seen.connect && self.seen.conntrack) {
            return Ok(UNSEEN.to_owned());
        }
        let (lookup, connect) = (self.lookup()?.1.backend, self.connect()?.1.backend);
        let wanted = [DNS_BACKEND, BACKEND].map(|backend| Some(SocketAddr::from(backend)));
        if [lookup, connect] == wanted {
            Ok(format!("{DNS_BACKEND} and {BACKEND}"))
        } else {
            Err(format!("found {lookup:?} and {connect:?}, not {wanted:?}"))
        }
    }

    /// A lookup of which a query was dropped takes its timer at least, and it is not conntrack that is blamed.
    pub(super) fn stall(&self) -> Result<String, String> {
        let stalls = self.record.pod.talk.is_some_and(|talk| talk.stalls);
        let Some(talked) = self.talked()? else {
            return Ok("nothing was sent".to_owned());
        };
        if !self.seen.dns {
            return Ok(UNSEEN.to_owned());
        }
        let (span, lookup) = self.lookup()?;
        if !stalls {
            return match (&lookup.cause, talked.again) {
                (Some(Cause { cause, .. }), 0) if cause != "search_path" => {
                    Err(format!("a good lookup has the cause {cause}"))
                }
                _ => Ok("none".to_owned()),
            };
        }
        let (took, timer) = (length(span), TIMER.as_nanos());
        if u128::from(took) < timer {
            return Err(format!("the lookup took {}, less than its timer", human(took)));
        }
        // Without drop events only the missing answer is visible.
        let wanted = if self.seen.drops {
            "packet_drop"
        } else {
            "dns_server_silent"
        };
        match &lookup.cause {
            Some(cause) if cause.cause == wanted => Ok(format!("{}: {}", human(took), cause.evidence.join("; "))),
            other => Err(format!("the stall has the cause {other:?}, not {wanted}")),
        }
    }

    pub(super) fn lookup_clock(&self) -> Result<String, Wrong> {
        match self.talked()? {
            Some(talked) if self.seen.dns => same_length("lookup", self.lookup()?.0, talked.lookup),
            _ => Ok("none to compare".to_owned()),
        }
    }

    pub(super) fn connect_clock(&self) -> Result<String, Wrong> {
        match self.talked()? {
            Some(talked) if self.seen.dns && self.seen.connect => {
                same_length("connect", self.connect()?.0, talked.connect)
            }
            _ => Ok("none to compare".to_owned()),
        }
    }

    /// From the first query to the connection that stands: when the network was ready, as the program saw it.
    pub(super) fn ready_clock(&self) -> Result<String, Wrong> {
        let Some(talked) = self.talked()?.filter(|_| self.seen.dns && self.seen.connect) else {
            return Ok("none to compare".to_owned());
        };
        let Detail::Sandbox(sandbox) = &self.trace.root().detail else {
            return Err("the root is not a sandbox".into());
        };
        let (first, ready) = sandbox
            .first_attempt
            .zip(sandbox.network_ready)
            .ok_or("the trace has no such time")?;
        let wanted = talked.connect.end.since(talked.lookup.begin);
        let pressure_ns = talked.lookup.pressure_ns + talked.connect.pressure_ns;
        agree("network ready", ready.since(first), wanted, 0, pressure_ns)
    }

    fn lookup(&self) -> Result<(&Span, &LookupDetail), String> {
        one("lookup", self.below_root(), |detail| match detail {
            Detail::Lookup(lookup) => Some(&**lookup),
            _ => None,
        })
    }

    fn connect(&self) -> Result<(&Span, &ConnectDetail), String> {
        one("connection", self.below_root(), |detail| match detail {
            Detail::Connect(connect) => Some(&**connect),
            _ => None,
        })
    }

    fn below_root(&self) -> impl Iterator<Item = &Span> {
        self.trace.spans.iter().filter(|span| span.parent == Some(0))
    }
}

fn one<'t, T>(
    what: &str,
    spans: impl Iterator<Item = &'t Span>,
    pick: impl Fn(&'t Detail) -> Option<T>,
) -> Result<(&'t Span, T), String> {
    let mut found = spans.filter_map(|span| Some((span, pick(&span.detail)?)));
    match (found.next(), found.count()) {
        (Some(found), 0) => Ok(found),
        (Some(_), more) => Err(format!("{} {what}s are in the trace", more + 1)),
        (None, _) => Err(format!("no {what} is in the trace")),
    }
}

/// The span lies within what the program measured, and is as long.
fn same_length(what: &str, span: &Span, times: CallTimes) -> Result<String, Wrong> {
    let end = span.end.unwrap_or(span.start);
    if span.start.0 + MILLISECOND < times.begin.0 || end.0 > times.end.0 + MILLISECOND {
        return Err(format!("the {what} does not lie within what the program measured").into());
    }
    agree(what, length(span), times.duration_ns(), 0, times.pressure_ns)
}

fn length(span: &Span) -> u64 {
    span.duration_ns(Timestamp(0))
}

fn list(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Journeys of the node itself: other work, not what the demo shows.
#[must_use]
pub fn is_of_the_node(trace: &Arc<Trace>) -> bool {
    matches!(&trace.root().detail, Detail::Journey(_)) && trace.sandbox.is_none()
}

#[cfg(test)]
mod tests {
    use sandglass_model::id::SandboxId;
    use sandglass_model::network::ConnectFailure;

    use super::*;
    use crate::client::Talk;
    use crate::networks::Network;
    use crate::pods::{Pod, Runtime};
    use crate::samples;
    use crate::services::SERVICE;

    const ALL: Seen = Seen {
        dns: true,
        connect: true,
        conntrack: true,
        drops: true,
        stdio: true,
        waits: true,
        requests: true,
    };

    /// A sample fitted to the demo's addresses, with the account of its program.
    fn talked(mut trace: Trace, stalls: bool) -> (Trace, CallRecord) {
        let mut times = Vec::new();
        let mut again = 0;
        for span in &mut trace.spans {
            match &mut span.detail {
                Detail::Lookup(lookup) => {
                    lookup.servers = vec![DNS_SERVICE.into()];
                    lookup.addresses = vec![(*SERVICE.ip()).into()];
                    lookup.backend = Some(DNS_BACKEND.into());
                    again = lookup.retransmissions;
                }
                Detail::Connect(connect) => {
                    connect.remote = SERVICE.into();
                    connect.backend = Some(BACKEND.into());
                }
                _ => continue,
            }
            times.push(CallTimes {
                begin: span.start,
                end: span.end.unwrap(),
                pressure_ns: 0,
                disks_ns: 0,
            });
        }
        let mut pod = Pod::new("cart-0", 1, Network::Plain);
        pod.talk = Some(Talk {
            name: "orders",
            port: 80,
            stalls,
        });
        let record = CallRecord {
            pod,
            runtime: Runtime::default(),
            run: times[0],
            outcome: Ok(SandboxId("s".into())),
            stop: None,
            plugin_clock: None,
            talked: Some(Ok(Talked {
                lookup: times[0],
                names: if again == 0 { 3 } else { 1 },
                again,
                connect: times[1],
                local: samples::connect_detail("").local,
                remote: SERVICE,
            })),
        };
        (trace, record)
    }

    fn failed(trace: &Trace, record: &CallRecord, seen: Seen) -> Vec<&'static str> {
        let looked = Looked { trace, record, seen };
        let checks = [
            ("network", looked.network().map_err(Wrong::Fact)),
            ("backends", looked.backends().map_err(Wrong::Fact)),
            ("stall", looked.stall().map_err(Wrong::Fact)),
            ("lookup", looked.lookup_clock()),
            ("connect", looked.connect_clock()),
            ("ready", looked.ready_clock()),
        ];
        checks
            .into_iter()
            .filter(|(_, result)| result.is_err())
            .map(|(what, _)| what)
            .collect()
    }

    fn ready() -> (Trace, CallRecord) {
        talked(samples::network_ready("shop", "cart-0", 1, 1), false)
    }

    fn detail(trace: &mut Trace, change: impl Fn(&mut Detail)) {
        trace.spans.iter_mut().for_each(|span| change(&mut span.detail));
    }

    #[test]
    fn what_the_program_knows_passes_and_each_fault_is_found() {
        let (trace, record) = ready();
        assert_eq!(failed(&trace, &record, ALL), Vec::<&str>::new());

        let (mut trace, record) = ready();
        detail(&mut trace, |detail| {
            if let Detail::Connect(connect) = detail {
                connect.backend = None;
            }
        });
        assert_eq!(failed(&trace, &record, ALL), ["backends"]);
        assert!(
            failed(
                &trace,
                &record,
                Seen {
                    conntrack: false,
                    ..ALL
                }
            )
            .is_empty()
        );

        let (mut trace, record) = ready();
        detail(&mut trace, |detail| match detail {
            Detail::Lookup(lookup) => lookup.search_names = 0,
            Detail::Connect(connect) => connect.failure = Some(ConnectFailure::Refused),
            Detail::Sandbox(sandbox) => {
                sandbox.network_ready = sandbox.network_ready.map(|at| at.plus(50 * MILLISECOND))
            }
            _ => {}
        });
        assert_eq!(failed(&trace, &record, ALL), ["network", "ready"]);

        let (mut trace, record) = ready();
        for span in trace
            .spans
            .iter_mut()
            .filter(|span| matches!(span.detail, Detail::Lookup(_)))
        {
            span.end = span.end.map(|end| end.plus(30 * MILLISECOND));
        }
        assert_eq!(failed(&trace, &record, ALL), ["lookup"]);

        let (mut trace, record) = ready();
        trace
            .spans
            .retain(|span| !matches!(span.detail, Detail::Lookup(_) | Detail::Connect(_)));
        assert_eq!(
            failed(&trace, &record, ALL),
            ["network", "backends", "stall", "lookup", "connect"]
        );
        let blind = Seen {
            dns: false,
            connect: false,
            conntrack: false,
            drops: false,
            stdio: false,
            waits: false,
            requests: false,
        };
        assert!(failed(&trace, &record, blind).is_empty());

        let (trace, mut record) = ready();
        record.talked = Some(Err("no route".to_owned()));
        assert_eq!(failed(&trace, &record, ALL).len(), 6);
        record.talked = None;
        assert!(failed(&trace, &record, ALL).is_empty());
    }

    #[test]
    fn a_stall_must_not_be_blamed_on_conntrack() {
        let stalled = || talked(samples::stalled("shop", "checkout-0", 2, 1), true);
        let (trace, record) = stalled();
        assert_eq!(failed(&trace, &record, ALL), ["stall"]);
        let blame = |trace: &mut Trace, name: &str| {
            detail(trace, |detail| {
                if let Detail::Lookup(lookup) = detail
                    && let Some(cause) = &mut lookup.cause
                {
                    name.clone_into(&mut cause.cause);
                }
            });
        };
        let (mut trace, record) = stalled();
        blame(&mut trace, "packet_drop");
        assert!(failed(&trace, &record, ALL).is_empty());
        assert_eq!(failed(&trace, &record, Seen { drops: false, ..ALL }), ["stall"]);
        blame(&mut trace, "dns_server_silent");
        assert!(failed(&trace, &record, Seen { drops: false, ..ALL }).is_empty());
    }
}
