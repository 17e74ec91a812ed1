//! Connects and interfaces (Microsoft-Windows-TCPIP), and sessions of the NAT (Microsoft-Windows-WinNat). Manifests:
//! jdu2600/Windows10EtwEvents.
//!
//! `netns` of these events is the id of the network compartment. Does not: know flows of the virtual switch ([`super::vfp`]).

use sandglass_etw::EtwEvent;
use sandglass_model::network::{ConnectFailure, ConnectStep, Flow, FlowChange, Initiator, Step};
use sandglass_model::windows::InterfaceStep;
use sandglass_model::{Body, ProcessKey};

/// A step of a connect or an interface. `Tcb` is the address of the connection's control block, unique while the connection
/// lives. There is no event for a retransmitted SYN, so that their number is 0. Event ids: 1031 connect proceeding, 1033
/// complete, 1034 failure, 1045 timeout, 1061 and 1062 interface added and deleted.
pub(super) fn tcpip(event: &EtwEvent) -> Option<Body> {
    let step = match event.id {
        1031 => Step::Started,
        1033 => Step::Established,
        1034 => Step::Failed(failure(event.code("Status").unwrap_or(0))),
        1045 => Step::Failed(ConnectFailure::TimedOut),
        1061 | 1062 => {
            return Some(Body::InterfaceSeen(InterfaceStep {
                compartment: event.u32("CompartmentId").unwrap_or(0),
                index: event.u32("InterfaceIndex")?,
                added: event.id == 1061,
            }));
        }
        _ => return None,
    };
    // The event may be logged in the context of another process (an interrupt): the field names the socket's owner.
    let pid = event.u32("ProcessId").unwrap_or(event.pid);
    let initiator = Initiator {
        process: ProcessKey::new(pid, 0),
        comm: Default::default(),
    };
    Some(Body::ConnectSeen(Box::new(ConnectStep {
        netns: event.u64("Compartment").unwrap_or(0),
        socket: event.u64("Tcb").unwrap_or(0),
        local: event.get("LocalAddress")?.socket_addr()?,
        remote: event.get("RemoteAddress")?.socket_addr()?,
        initiator: (step == Step::Started).then_some(initiator),
        step,
        retransmits: 0,
    })))
}

/// The failure that an NTSTATUS stands for (ntstatus.h): STATUS_CONNECTION_REFUSED, STATUS_IO_TIMEOUT,
/// STATUS_NETWORK_UNREACHABLE and STATUS_HOST_UNREACHABLE, STATUS_CONNECTION_RESET and STATUS_CONNECTION_DISCONNECTED,
/// STATUS_CANCELLED and STATUS_CONNECTION_ABORTED.
fn failure(status: u32) -> ConnectFailure {
    match status {
        0xc000_0236 => ConnectFailure::Refused,
        0xc000_00b5 => ConnectFailure::TimedOut,
        0xc000_023c | 0xc000_023d => ConnectFailure::Unreachable,
        0xc000_020d | 0xc000_020c => ConnectFailure::Reset,
        0xc000_0120 | 0xc000_0241 => ConnectFailure::Abandoned,
        _ => ConnectFailure::Other,
    }
}

/// A session of the NAT, in the terms of conntrack: the internal side is the original direction, the external side the reply's.
/// WinNat reports no number of a session, hence id 0. Event ids: 1001 create, 1005 delete;
/// 1017 and 1018 are the same in the operational channel.
pub(super) fn nat(event: &EtwEvent) -> Option<Body> {
    let change = match event.id {
        1001 | 1017 => FlowChange::New,
        1005 | 1018 => FlowChange::Destroyed,
        _ => return None,
    };
    let address = |field| event.get(field).and_then(sandglass_etw::Value::socket_addr);
    let source = address("InternalSrcAddr")?;
    let destination = address("InternalDstAddr")?;
    Some(Body::FlowSeen(Box::new(Flow {
        netns: event.u64("InternalCompartmentId").unwrap_or(0),
        id: 0,
        change,
        protocol: event
            .u32("TransportProtocol")
            .and_then(|number| number.try_into().ok())
            .unwrap_or(0),
        source,
        destination,
        // Without its external side a session is reported as one that translates nothing.
        reply_source: address("ExternalDstAddr").unwrap_or(destination),
        reply_destination: address("ExternalSrcAddr").unwrap_or(source),
        replied: false,
    })))
}
