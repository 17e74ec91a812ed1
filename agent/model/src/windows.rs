//! What ETW says on a Windows node, as facts: activities of HNS and HCS, silos, the runtime's own words, interfaces.
//!
//! Made by the Windows source from live sessions and from `.etl` files alike. Which sandbox a fact belongs to is the
//! correlator's finding; facts only carry the keys that can tell it. Processes, connections and conntrack facts are those
//! of every system ([`crate::event`], [`crate::network`]); `netns` is the id of the network compartment there.

use serde::{Deserialize, Serialize};

use crate::cni::PodIdentity;
use crate::id::{ProcessKey, SandboxId};
use crate::text_list::TextPairs;
use crate::time::Timestamp;

/// What a code of HNS, HCS or Windows means, in words; `None` for one that is not in the table.
///
/// Those of HNS and HCS after MicrosoftDocs/Virtualization-Documentation (hcn and hcs reference, error codes).
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

/// The code says that something failed: of HRESULT and NTSTATUS those with the highest bit set, but for
/// `HCS_E_OPERATION_PENDING`, which only says that the answer comes later.
#[must_use]
pub fn is_failure(code: u32) -> bool {
    code & 0x8000_0000 != 0 && !matches!(code, 0xc037_0103 | 0x8037_0117)
}

/// Which service an activity is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// The Host Network Service: networks, endpoints, policies.
    Hns,
    /// The Host Compute Service: compute systems, which are containers and their pauses.
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

/// A WIL activity began, ended, or said something in between.
///
/// HNS and HCS both log them with opcode 1 at the begin and opcode 2 with `hresult` at the end
/// (microsoft/wil, include/wil/Tracelogging.h). Activity ids may be zero or used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityStep {
    /// Whose.
    pub service: Service,
    /// As the provider names it, e.g. `EndpointAttachShared`.
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
    /// What it says of which object: keys that join it to others.
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
    /// It ended; `None` when it was closed without a result.
    Stopped {
        /// HRESULT or NTSTATUS; 0 is success.
        result: Option<u32>,
        /// What went wrong, in the service's words; empty when it said nothing.
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

/// A key that joins facts about one object. GUIDs in lower case without braces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKey {
    /// An HCN namespace: `CNI_NETNS`.
    Namespace(String),
    /// An HNS endpoint.
    Endpoint(String),
    /// A port of the virtual switch.
    Port(String),
    /// An HNS network.
    Network(String),
    /// A compute system: the id of a container or sandbox.
    Container(String),
    /// A silo: what ETW tags the events of a container's processes with.
    Silo(String),
    /// A job object: joins silos of Kernel-Process and the container library.
    Job(u32),
    /// An operation of the Host Compute Service.
    Operation(u64),
    /// A network compartment.
    Compartment(u32),
}

/// A line of the runtime's log, as containerd and its shim write it to ETW.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeReport {
    /// A sandbox is asked for.
    RunBegan {
        /// The pod.
        identity: PodIdentity,
        /// The kubelet's count of attempts, from 0.
        attempt: u32,
    },
    /// It is there.
    RunReturned {
        /// The pod.
        identity: PodIdentity,
        /// Its sandbox.
        sandbox: SandboxId,
    },
    /// It failed.
    RunFailed {
        /// The pod.
        identity: PodIdentity,
        /// Why, in the runtime's words.
        message: String,
    },
    /// A sandbox is to be stopped: its network is torn down.
    StopBegan {
        /// The sandbox.
        sandbox: SandboxId,
    },
    /// It was stopped, or that failed.
    StopReturned {
        /// The sandbox.
        sandbox: SandboxId,
        /// Why it failed; empty when it did not.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// A container was made within a sandbox: it is a compute system of its own, with a silo of its own.
    ContainerOf {
        /// The sandbox.
        sandbox: SandboxId,
        /// The container's id.
        container: String,
    },
    /// A namespace was made for, or found to be of, a sandbox.
    NamespaceOf {
        /// The sandbox.
        sandbox: SandboxId,
        /// The HCN namespace.
        namespace: String,
    },
    /// An endpoint was added to a namespace.
    EndpointOf {
        /// The HCN namespace.
        namespace: String,
        /// The HNS endpoint.
        endpoint: String,
    },
    /// A shim was started for a sandbox.
    ShimLaunched {
        /// The sandbox.
        sandbox: SandboxId,
        /// The shim.
        pid: u32,
    },
    /// A span of the shim's own tracing that ended.
    Span(Box<RuntimeSpan>),
}

/// A span that the shim (RunHCS) made itself and wrote to ETW when it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeSpan {
    /// Its name, e.g. `HcsCreateComputeSystem`.
    pub name: String,
    /// Its trace id, 32 hexadecimal digits.
    pub trace: String,
    /// Its span id, 16 hexadecimal digits.
    pub span: String,
    /// The container or sandbox it is for; empty when it does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Begin.
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// Why it failed; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A step in the life of a silo (Microsoft-Windows-Kernel-Process 13, 14, 22 to 26).
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
    /// Its job was made.
    Started,
    /// Its state changed to this number.
    State(u16),
    /// A driver was told of its creation and has begun to work on it.
    CallbackStarted {
        /// The driver's monitor.
        monitor: String,
    },
    /// The driver is done.
    CallbackStopped {
        /// The driver's monitor.
        monitor: String,
        /// NTSTATUS.
        status: u32,
    },
    /// Its job ended.
    Terminated,
}

/// A network interface came or went in a compartment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStep {
    /// The compartment; 0 when the event does not say.
    pub compartment: u32,
    /// Its index.
    pub index: u32,
    /// It came; otherwise it went.
    pub added: bool,
}

/// A step of a lookup, as the DNS client service tells it: there are no messages to see, but the whole lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupStep {
    /// The silo whose process asked; empty for the node's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub silo: String,
    /// Who asked; the start is not known there, so `start_ticks` is 0.
    pub process: ProcessKey,
    /// The name.
    pub name: String,
    /// Record type.
    pub kind: u16,
    /// Which step.
    pub step: LookupChange,
}

/// What happened to a lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupChange {
    /// A program asked its socket library (`getaddrinfo`), which may go on to ask the service.
    Called,
    /// The library returned to the program.
    Returned {
        /// Winsock status; 0 is success.
        status: u32,
        /// Addresses found.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<std::net::IpAddr>,
    },
    /// A program asked.
    Started,
    /// A query went to a server.
    Sent {
        /// The server.
        server: String,
    },
    /// A server answered.
    Answered {
        /// The server.
        server: String,
        /// Win32 or DNS status; 0 is success.
        status: u32,
    },
    /// A server did not answer in time.
    TimedOut {
        /// The server; empty for all of them.
        server: String,
    },
    /// The program got its answer.
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
