//! One lookup as the DNS client service reports it, and the open ones.
//!
//! The service reports whole lookups, without messages: which types it resolves, which servers it asks, and a status at the
//! end (provider Microsoft-Windows-DNS-Client, events 3006 to 3020). Bounded.

use std::net::{IpAddr, SocketAddr};

use sandglass_model::network::{Initiator, Transport};
use sandglass_model::trace::{Cause, Confidence, JourneyReason, LookupDetail, LookupResult};
use sandglass_model::windows::{LookupChange, LookupStep};
use sandglass_model::{ProcessKey, Timestamp};

use crate::keys::TraceKey;
use crate::notes::{self, Note, NoteKind, type_name};
use crate::owner::Owner;
use crate::windows::library_calls::LibraryCalls;

/// Open lookups, oldest first.
#[derive(Debug)]
pub(crate) struct ServiceLookups {
    pub(super) open: Vec<ServiceLookup>,
    pub(super) max: usize,
    pub(super) calls: LibraryCalls,
}

#[derive(Debug)]
pub(super) struct ServiceLookup {
    pub(super) serial: u64,
    pub(super) silo: String,
    pub(super) process: ProcessKey,
    pub(super) name: String,
    pub(super) owner: Owner,
    pub(super) home: Option<TraceKey>,
    pub(super) start: Timestamp,
    /// Types asked that have no answer yet.
    pub(super) waiting: Vec<u16>,
    pub(super) types: Vec<u16>,
    pub(super) servers: Vec<SocketAddr>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) queries: u32,
    pub(super) retransmissions: u32,
    pub(super) timeouts: u32,
    pub(super) error: Option<u16>,
    pub(super) result: Option<LookupResult>,
    pub(super) end: Timestamp,
    pub(super) notes: Vec<Note>,
    pub(super) lost: bool,
}

/// Most servers and addresses of one lookup.
const MAX_LISTED: usize = 8;
/// Most types asked in one lookup.
const MAX_TYPES: usize = 8;
const DNS_PORT: u16 = 53;
/// The node's own compartment.
pub(super) const NODE: u64 = 1;

impl ServiceLookups {
    pub(crate) fn new(max: usize) -> ServiceLookups {
        ServiceLookups {
            open: Vec::new(),
            max: max.clamp(1, 1_024),
            calls: LibraryCalls::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len() + self.calls.len()
    }

    /// The open lookup that a step is of. The service logs some of its steps under its own process.
    pub(super) fn place(&self, step: &LookupStep) -> Option<usize> {
        let same = |lookup: &ServiceLookup| lookup.silo == step.silo && lookup.name == step.name;
        let by_process = |lookup: &ServiceLookup| same(lookup) && lookup.process.pid == step.process.pid;
        let found = self.open.iter().rposition(by_process);
        match step.step {
            LookupChange::Started | LookupChange::Called | LookupChange::Returned { .. } => found,
            LookupChange::Sent { .. }
            | LookupChange::Answered { .. }
            | LookupChange::TimedOut { .. }
            | LookupChange::Finished { .. } => found.or_else(|| self.open.iter().rposition(same)),
        }
    }
}

impl ServiceLookup {
    pub(super) fn detail(&self, result: Option<LookupResult>) -> LookupDetail {
        LookupDetail {
            name: self.name.clone(),
            types: self.types.iter().map(|kind| type_name(*kind)).collect(),
            servers: self.servers.clone(),
            transport: Transport::Udp,
            result,
            queries: self.queries,
            retransmissions: self.retransmissions,
            unanswered: self.timeouts,
            search_names: 0,
            truncated: false,
            addresses: self.addresses.clone(),
            backend: None,
            initiator: Some(Initiator {
                process: self.process,
                comm: String::new(),
            }),
            cause: None,
        }
    }

    pub(super) fn add_type(&mut self, kind: u16) {
        if self.types.len() < MAX_TYPES && !self.types.contains(&kind) {
            self.types.push(kind);
        }
        if self.waiting.len() < MAX_TYPES && !self.waiting.contains(&kind) {
            self.waiting.push(kind);
        }
    }

    pub(super) fn take(&mut self, at: Timestamp, step: &LookupStep) {
        self.end = self.end.max(at);
        match &step.step {
            LookupChange::Started | LookupChange::Called => {}
            LookupChange::Sent { server } => {
                let again = self.queries > 0 && self.timeouts > 0;
                self.queries = self.queries.saturating_add(1);
                self.retransmissions = self.retransmissions.saturating_add(u32::from(again));
                let Ok(ip) = server.parse::<IpAddr>() else {
                    return;
                };
                let server = SocketAddr::new(ip, DNS_PORT);
                if self.servers.len() < MAX_LISTED && !self.servers.contains(&server) {
                    self.servers.push(server);
                }
                let note = NoteKind::Query {
                    name: self.name.as_str().into(),
                    kind: step.kind,
                    id: 0,
                    server,
                    transport: Transport::Udp,
                    again,
                };
                notes::add(&mut self.notes, at, note);
            }
            LookupChange::Answered { status, .. } => {
                let rcode = match result_of(*status) {
                    LookupResult::Rcode(rcode) => rcode,
                    LookupResult::Unanswered | LookupResult::Unknown | LookupResult::Open => return,
                };
                if !LookupResult::Rcode(rcode).is_answer() {
                    self.error = Some(rcode);
                }
                let note = NoteKind::Answer {
                    kind: step.kind,
                    id: 0,
                    rcode,
                    truncated: false,
                    late: false,
                };
                notes::add(&mut self.notes, at, note);
            }
            LookupChange::TimedOut { .. } => self.timeouts = self.timeouts.saturating_add(1),
            // The end of all that was asked, should the service not have said so.
            LookupChange::Returned { .. } if self.result.is_some() && self.waiting.is_empty() => {}
            LookupChange::Finished { status, addresses } | LookupChange::Returned { status, addresses } => {
                self.waiting.retain(|kind| *kind != step.kind && step.kind != 0);
                for address in addresses {
                    if self.addresses.len() < MAX_LISTED && !self.addresses.contains(address) {
                        self.addresses.push(*address);
                    }
                }
                let result = result_of(*status);
                // What named something stands before what did not.
                if self.result != Some(LookupResult::Rcode(0)) {
                    self.result = Some(result);
                }
            }
        }
    }

    pub(super) fn reason(&self, result: LookupResult, slow_ns: u64) -> Option<JourneyReason> {
        if !result.is_answer() {
            Some(JourneyReason::Failed)
        } else if self.timeouts > 0 || self.retransmissions > 0 {
            Some(JourneyReason::Retried)
        } else {
            (self.end.since(self.start) > slow_ns).then_some(JourneyReason::Slow)
        }
    }

    pub(super) fn cause(&self, result: LookupResult) -> Option<Cause> {
        let (cause, confidence, evidence) = if self.timeouts > 0 || result == LookupResult::Unanswered {
            let times = self.timeouts.max(1);
            let evidence = format!("the DNS client gave up waiting for a server, {times} times");
            ("dns_server_silent", Confidence::Likely, evidence)
        } else if let (Some(rcode), false) = (self.error, result.is_answer()) {
            let evidence = format!("a server answered with {}", LookupResult::Rcode(rcode).as_str());
            ("dns_server_error", Confidence::Certain, evidence)
        } else if result.is_answer() && self.queries > 0 {
            (
                "dns_server_slow",
                Confidence::Possible,
                "nothing was asked twice".to_owned(),
            )
        } else {
            return None;
        };
        Some(Cause {
            cause: cause.to_owned(),
            confidence,
            evidence: vec![evidence],
        })
    }
}

/// Of a Win32, Winsock or DNS status (winerror.h): `DNS_ERROR_RCODE_*` begin at 9001.
fn result_of(status: u32) -> LookupResult {
    match status {
        // No records of the type: there is such a name.
        0 | 9_501 | 11_004 => LookupResult::Rcode(0),
        9_001..=9_005 => LookupResult::Rcode((status - 9_000) as u16),
        11_001 => LookupResult::Rcode(3),
        // Timeout, cancelled, try again.
        1_460 | 1_223 | 9_560 | 10_060 | 11_002 => LookupResult::Unanswered,
        _ => LookupResult::Rcode(OTHER),
    }
}

/// A response code that nobody gives: any other status.
const OTHER: u16 = 0xfff;
