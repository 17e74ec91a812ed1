//! What ETW reports on a Windows node, as facts: activities of HNS and HCS, silos, the runtime's log, interfaces,
//! lookups.
//!
//! Emitted by the Windows source from live sessions and from `.etl` files alike. The correlator finds out which sandbox
//! a fact belongs to; facts only carry the keys that can identify it. Processes, connects and conntrack are those of
//! every system ([`crate::event`], [`crate::network`]); `netns` is the id of the network compartment there.

mod runtime;

use serde::{Deserialize, Serialize};

use crate::id::ProcessKey;
use crate::text_list::TextPairs;

pub use self::runtime::{RuntimeReport, RuntimeSpan};

/// The meaning of a code of HNS, HCS or Windows in words; `None` if the table (`windows/results.tsv`) does not have it.
///
/// Codes of HNS and HCS are those of MicrosoftDocs/Virtualization-Documentation (hcn and hcs reference, error codes).
#[must_use]
pub fn result_text(code: u32) -> Option<&'static str> {
    let text_of = |code: u32| {
        let mut rows = include_str!("windows/results.tsv")
            .lines()
            .filter_map(|row| row.split_once('\t'));
        rows.find_map(|(known, text)| {
            let known = u32::from_str_radix(known.strip_prefix("0x")?, 16).ok()?;
            (known == code).then_some(text)
        })
    };
    // HCS gives its codes as HRESULT and as NTSTATUS.
    let of_hcs = code >> 16 == 0xc037;
    text_of(code).or_else(|| of_hcs.then(|| text_of(code & !0x4000_0000)).flatten())
}

/// The code means that something failed: HRESULT and NTSTATUS with the highest bit set (MS-ERREF, sections 2.1 and 2.3), except
/// `HCS_E_OPERATION_PENDING`, after which the result follows.
#[must_use]
pub fn is_failure(code: u32) -> bool {
    code & 0x8000_0000 != 0 && !matches!(code, 0xc037_0103 | 0x8037_0117)
}

/// The service that logs an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// The Host Network Service: networks, endpoints, policies.
    Hns,
    /// The Host Compute Service: compute systems, that is, containers.
    Hcs,
    /// The container library inside the Host Compute Service: silos.
    Silo,
}

impl Service {
    /// Name in span names and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Service::Hns => "hns",
            Service::Hcs => "hcs",
            Service::Silo => "silo",
        }
    }
}

/// A WIL activity began, ended, or logged something in between.
///
/// HNS and HCS both log them with opcode 1 at the begin and opcode 2 with `hresult` at the end (microsoft/wil,
/// include/wil/Tracelogging.h). Activity ids may be zero or used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityStep {
    /// The service that logs it.
    pub service: Service,
    /// The provider's name for it, e.g. `EndpointAttachShared`.
    pub name: String,
    /// Activity id in lower-case GUID text; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub activity: String,
    /// The activity that caused this one; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub related: String,
    /// Process that logged it.
    pub pid: u32,
    /// Thread that logged it.
    pub tid: u32,
    /// What happened.
    pub step: ActivityChange,
    /// Keys of the objects that it names, by which it is joined to others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ObjectKey>,
    /// Other fields of interest, bounded.
    #[serde(default, skip_serializing_if = "TextPairs::is_empty")]
    pub fields: TextPairs,
}

/// What happened to an activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityChange {
    /// It began.
    Started,
    /// It ended, with or without a result.
    Stopped {
        /// HRESULT or NTSTATUS; 0 is success.
        result: Option<u32>,
        /// What went wrong, in the service's words; empty when it logged none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// A failure inside it that need not be its own end (`ActivityError`), or a single event without an end.
    Noted {
        /// HRESULT or NTSTATUS, where it has one.
        result: Option<u32>,
        /// What went wrong, in the service's words.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
}

/// A key of one object, by which facts are joined. GUIDs are in lower case without braces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKey {
    /// An HCN namespace; the runtime passes it as `CNI_NETNS`.
    Namespace(String),
    /// An HNS endpoint.
    Endpoint(String),
    /// A port of the virtual switch.
    Port(String),
    /// An HNS network.
    Network(String),
    /// A compute system: the id of a container or sandbox.
    Container(String),
    /// A silo's GUID, with which ETW tags the events of a container's processes
    /// (`EVENT_ENABLE_PROPERTY_SOURCE_CONTAINER_TRACKING`).
    Silo(String),
    /// A job object's number: joins the silos of Kernel-Process to those of the container library.
    Job(u32),
    /// An operation of the Host Compute Service. Numbers are reused.
    Operation(u64),
    /// A network compartment.
    Compartment(u32),
}

/// A step in the life of a silo (Microsoft-Windows-Kernel-Process, events 13, 14 and 22 to 26).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiloStep {
    /// The silo's GUID.
    pub silo: String,
    /// Its job.
    pub job: u32,
    /// Which step.
    pub step: SiloChange,
}

/// What happened to a silo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SiloChange {
    /// Its job was created (event 13).
    Started,
    /// Its state changed to this number.
    State(u16),
    /// A driver's callback for its creation or termination began (events 23, 25).
    CallbackStarted {
        /// The driver's monitor.
        monitor: String,
    },
    /// The driver's callback returned (events 24, 26).
    CallbackStopped {
        /// The driver's monitor.
        monitor: String,
        /// NTSTATUS.
        status: u32,
    },
    /// Its job ended (event 14).
    Terminated,
}

/// A network interface was added to a compartment or removed from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStep {
    /// The compartment; 0 when the event does not name it.
    pub compartment: u32,
    /// Its index.
    pub index: u32,
    /// It was added; otherwise it was removed.
    pub added: bool,
}

/// A step of a lookup, as the DNS client service logs it: whole lookups, no messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupStep {
    /// The silo whose process resolves; empty for a process of the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub silo: String,
    /// The process that resolves. Its start is not logged, so `start_ticks` is 0.
    pub process: ProcessKey,
    /// The name.
    pub name: String,
    /// Record type (RFC 1035 3.2.2); 0 for a call of the library, which names none.
    pub kind: u16,
    /// Which step.
    pub step: LookupChange,
}

/// What happened to a lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupChange {
    /// A program called its socket library (`getaddrinfo`), which may go on to the service.
    Called,
    /// The library returned to the program.
    Returned {
        /// Winsock status; 0 is success.
        status: u32,
        /// Addresses found.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<std::net::IpAddr>,
    },
    /// The lookup began (event 3006).
    Started,
    /// A query was sent to a server (event 3010).
    Sent {
        /// The server.
        server: String,
    },
    /// A server answered (event 3011).
    Answered {
        /// The server.
        server: String,
        /// Win32 or DNS status; 0 is success.
        status: u32,
    },
    /// A server did not answer in time (events 1013 to 1015).
    TimedOut {
        /// The server; empty for all of them.
        server: String,
    },
    /// The lookup ended (event 3008).
    Finished {
        /// Win32 or DNS status; 0 is success, 9003 is NXDOMAIN.
        status: u32,
        /// Addresses found.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<std::net::IpAddr>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_words_once_each() {
        let codes: Vec<u32> = include_str!("windows/results.tsv")
            .lines()
            .map(|row| u32::from_str_radix(&row[2..10], 16).unwrap())
            .collect();
        for code in &codes {
            assert!(result_text(*code).is_some_and(|text| !text.is_empty()), "{code:#x}");
        }
        let distinct: std::collections::BTreeSet<&u32> = codes.iter().collect();
        assert_eq!(distinct.len(), codes.len());
        assert!(codes.len() > 80, "{}", codes.len());
    }

    #[test]
    fn a_code_of_hcs_is_known_in_both_forms_and_pending_is_no_failure() {
        assert_eq!(result_text(0xc037_010e), result_text(0x8037_010e));
        assert_eq!(result_text(0xc037_0103), Some("operation pending"));
        assert_eq!((result_text(0xc03b_0014), result_text(0)), (None, None));
        assert!(is_failure(0x8037_0118) && is_failure(0xc037_0106));
        assert!(!is_failure(0xc037_0103) && !is_failure(0x8037_0117) && !is_failure(0));
    }
}
