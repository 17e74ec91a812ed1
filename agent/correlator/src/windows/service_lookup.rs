//! One lookup as the DNS client service reports it, and the table of open ones.
//!
//! Used by `dns_client.rs`. The service logs whole lookups without messages: of Microsoft-Windows-DNS-Client the events
//! 3006 (a query is called), 3008 (it completed, with status and results), 3010 (sent to a server), 3011 (a server
//! responded), and 1013 to 1015 (servers timed out). Ids and fields: the manifest of Windows builds 17763 to 28000
//! (jdu2600/Windows10EtwEvents). Bounded.
//! Does not: see retransmissions themselves; a query after a timeout counts as one.

use std::net::{IpAddr, SocketAddr};

use sandglass_model::network::{Initiator, Transport};
use sandglass_model::trace::{Cause, Confidence, JourneyReason, LookupDetail, LookupResult};
use sandglass_model::windows::{LookupChange, LookupStep};
use sandglass_model::{ProcessKey, Timestamp};

use crate::keys::TraceKey;
use crate::notes::{self, Note, NoteKind, type_name};
use crate::owner::Owner;
use crate::windows::library_calls::LibraryCalls;

/// Open lookups, oldest first, and the library's calls.
#[derive(Debug)]
pub(crate) struct ServiceLookups {
    /// In order of begin. Few are open at once, so a search by name is short.
    pub(super) open: Vec<ServiceLookup>,
    /// Bound on open lookups: that of the configuration, at most 1,024.
    pub(super) max: usize,
    /// Calls of the socket library that have begun, for the begin of their lookups.
    pub(super) calls: LibraryCalls,
}

/// An open lookup of the service.
#[derive(Debug)]
pub(super) struct ServiceLookup {
    /// Serial number, of the sequence that all exchanges share.
    pub(super) serial: u64,
    /// GUID of the silo; empty for the node.
    pub(super) silo: String,
    /// The process that resolves; its start is not known, so uses of one pid cannot be distinguished.
    pub(super) process: ProcessKey,
    pub(super) name: String,
    /// The owner of its silo.
    pub(super) owner: Owner,
    /// The trace of its sandbox's creation, before its network is ready.
    pub(super) home: Option<TraceKey>,
    /// When the program called the library, if that was seen, else the service's first event.
    pub(super) start: Timestamp,
    /// Record types without a result yet.
    pub(super) waiting: Vec<u16>,
    /// All record types that were resolved.
    pub(super) types: Vec<u16>,
    /// Servers that were queried, in order of the first query.
    pub(super) servers: Vec<SocketAddr>,
    /// Addresses of all types, each once.
    pub(super) addresses: Vec<IpAddr>,
    /// Queries that were sent (event 3010).
    pub(super) queries: u32,
    /// Queries that followed a timeout.
    pub(super) retransmissions: u32,
    /// Timeouts that the service logged.
    pub(super) timeouts: u32,
    /// Response code of the last server that failed.
    pub(super) error: Option<u16>,
    /// The best result of a type; `None` while no type has one.
    pub(super) result: Option<LookupResult>,
    /// The last step.
    pub(super) end: Timestamp,
    /// Its instants, for span events.
    pub(super) notes: Vec<Note>,
    /// Records were lost while it was open.
    pub(super) lost: bool,
}

/// Bound on servers, and on addresses, of one lookup.
const MAX_LISTED: usize = 8;
/// Bound on record types of one lookup.
const MAX_TYPES: usize = 8;
/// The events have no port; the service always uses the assigned one (RFC 1035 4.2).
const DNS_PORT: u16 = 53;
/// The default compartment, which is the node's own.
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

    /// The place of the open lookup that a step belongs to. Events 3006 and 3008 are logged in the process that
    /// resolves, the others in the service's own process, so for them the name in the silo is enough.
    pub(super) fn place(&self, step: &LookupStep) -> Option<usize> {
        let same = |lookup: &ServiceLookup| lookup.silo == step.silo && lookup.name == step.name;
        let by_process = |lookup: &ServiceLookup| same(lookup) && lookup.process.pid == step.process.pid;
        let found = self.open.iter().rposition(by_process);
        match step.step {
            // These are logged in the process that resolves.
            LookupChange::Started | LookupChange::Called | LookupChange::Returned { .. } => found,
            LookupChange::Sent { .. }
            | LookupChange::Answered { .. }
            | LookupChange::TimedOut { .. }
            | LookupChange::Finished { .. } => found.or_else(|| self.open.iter().rposition(same)),
        }
    }
}

impl ServiceLookup {
    /// The detail of its span. The transport is not logged; it is shown as UDP.
    pub(super) fn detail(&self, result: Option<LookupResult>) -> LookupDetail {
        LookupDetail {
            name: self.name.clone(),
            types: self.types.iter().map(|kind| type_name(*kind).into_owned()).collect(),
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
                comm: Default::default(),
            }),
            cause: None,
        }
    }

    /// A type is resolved too: the lookup is over when all types have a result.
    pub(super) fn add_type(&mut self, kind: u16) {
        if self.types.len() < MAX_TYPES && !self.types.contains(&kind) {
            self.types.push(kind);
        }
        if self.waiting.len() < MAX_TYPES && !self.waiting.contains(&kind) {
            self.waiting.push(kind);
        }
    }

    /// Takes over a step.
    pub(super) fn take(&mut self, at: Timestamp, step: &LookupStep) {
        self.end = self.end.max(at);
        match &step.step {
            LookupChange::Started | LookupChange::Called => {}
            LookupChange::Sent { server } => {
                // The service repeats a query after a timeout; without one, a further query is that of another type.
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
            // The return of the library ends all that was resolved, for a service that did not log it.
            LookupChange::Returned { .. } if self.result.is_some() && self.waiting.is_empty() => {}
            LookupChange::Finished { status, addresses } | LookupChange::Returned { status, addresses } => {
                self.waiting.retain(|kind| *kind != step.kind && step.kind != 0);
                for address in addresses {
                    if self.addresses.len() < MAX_LISTED && !self.addresses.contains(address) {
                        self.addresses.push(*address);
                    }
                }
                let result = result_of(*status);
                // A type with records decides, whatever the other type's result.
                if self.result != Some(LookupResult::Rcode(0)) {
                    self.result = Some(result);
                }
            }
        }
    }

    /// Why it becomes a journey; `None` if it went well. `slow_ns` is the threshold of a slow lookup.
    pub(super) fn reason(&self, result: LookupResult, slow_ns: u64) -> Option<JourneyReason> {
        if !result.is_answer() {
            Some(JourneyReason::Failed)
        } else if self.timeouts > 0 || self.retransmissions > 0 {
            Some(JourneyReason::Retried)
        } else {
            (self.end.since(self.start) > slow_ns).then_some(JourneyReason::Slow)
        }
    }

    /// The cause of a lookup that went badly. Weaker than on Linux: there are no messages, and no counters of
    /// conntrack.
    pub(super) fn cause(&self, result: LookupResult) -> Option<Cause> {
        // The events name no drop and no counter, so a silent server is the only explanation left.
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

/// The result of a status of the service or the library: a code of winerror.h, listed in Microsoft's "System Error Codes
/// (9000-11999)" and "Windows Sockets Error Codes".
fn result_of(status: u32) -> LookupResult {
    match status {
        NO_RECORDS | NO_DATA | 0 => LookupResult::Rcode(0),
        // DNS_ERROR_RCODE_FORMAT_ERROR to DNS_ERROR_RCODE_REFUSED: a response code (RFC 1035 4.1.1) above this base.
        9_001..=9_005 => LookupResult::Rcode((status - 9_000) as u16),
        HOST_NOT_FOUND => LookupResult::Rcode(3),
        TIMEOUT | CANCELLED | TIMED_OUT | TRY_AGAIN => LookupResult::Unanswered,
        _ => LookupResult::Rcode(OTHER),
    }
}

/// `DNS_INFO_NO_RECORDS`: the name exists and has no records of the type.
const NO_RECORDS: u32 = 9_501;
/// `WSANO_DATA`: the library's word for the same.
const NO_DATA: u32 = 11_004;
/// `WSAHOST_NOT_FOUND`: a server with authority said that the name does not exist.
const HOST_NOT_FOUND: u32 = 11_001;
/// `ERROR_TIMEOUT`: no server answered in time.
const TIMEOUT: u32 = 1_460;
/// `ERROR_CANCELLED`: the program gave up before an answer came.
const CANCELLED: u32 = 1_223;
/// `WSAETIMEDOUT`.
const TIMED_OUT: u32 = 10_060;
/// `WSATRY_AGAIN`: no answer of a server with authority came.
const TRY_AGAIN: u32 = 11_002;
/// Stands for any other status: the last response code for private use (RFC 6895 2.3), named `other`. One such status is
/// `DNS_ERROR_INVALID_NAME_CHAR` (9560), where no query is sent and no server was silent.
const OTHER: u16 = 0xfff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_an_answer_silence_or_an_error_of_its_own() {
        let rcode = LookupResult::Rcode;
        for (status, result) in [
            (0, rcode(0)),
            (9_501, rcode(0)),
            (11_004, rcode(0)),
            (9_001, rcode(1)),
            (9_003, rcode(3)),
            (9_005, rcode(5)),
            (11_001, rcode(3)),
            (1_460, LookupResult::Unanswered),
            (1_223, LookupResult::Unanswered),
            (10_060, LookupResult::Unanswered),
            (11_002, LookupResult::Unanswered),
            // A name that cannot be queried, and the base of the response codes, are no silence.
            (9_560, rcode(OTHER)),
            (9_000, rcode(OTHER)),
        ] {
            assert_eq!(result_of(status), result, "{status}");
        }
    }
}
