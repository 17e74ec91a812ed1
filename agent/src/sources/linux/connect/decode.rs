//! Decodes the records of the connection probe. Pure; any bytes give a step or an error, never a panic.
//!
//! Used by the probe's feed and by tests. One record is one step: started, then established or failed. The kernel side leaves
//! out all other states of a socket.
//! Does not: rename sockets, or join the steps of a connection (the feed and the correlator do).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sandglass_model::network::{ConnectFailure, ConnectStep, Initiator, Step};
use sandglass_model::{ProcessKey, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::COMM_LEN;
use sandglass_probes::wire::connect::{
    CONNECT_CLOSED, CONNECT_SOCKET_IS_ADDRESS, ConnectRecord, KIND_CONNECT_ESTABLISHED, KIND_CONNECT_FAILED,
    KIND_CONNECT_STARTED,
};

use crate::sources::linux::record::{DecodeError, text};

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedConnect {
    /// When the socket changed its state, on the boot clock.
    pub at: Timestamp,
    /// The step. Addresses are those of the socket, before any translation.
    pub step: ConnectStep,
    /// The socket is named by its address in the kernel, which must not leave the agent: it would defeat the randomisation of
    /// the kernel's addresses.
    pub socket_is_address: bool,
}

/// Decodes one record.
///
/// # Errors
/// When the bytes are shorter than a record, or of a kind that is not one of the three of this probe.
pub fn decode(bytes: &[u8]) -> Result<DecodedConnect, DecodeError> {
    let (record, _) = ConnectRecord::read(bytes).ok_or(DecodeError::Short {
        kind: 0,
        bytes: bytes.len(),
    })?;
    let (step, initiator) = match record.header.kind {
        KIND_CONNECT_STARTED => (Step::Started, Some(initiator(&record))),
        KIND_CONNECT_ESTABLISHED => (Step::Established, None),
        KIND_CONNECT_FAILED => (Step::Failed(failure(&record)), None),
        kind => return Err(DecodeError::UnknownKind(kind)),
    };
    Ok(DecodedConnect {
        at: Timestamp(record.header.at_ns),
        step: ConnectStep {
            netns: u64::from(record.netns),
            socket: record.socket,
            local: address(record.family, record.local, record.local_port),
            remote: address(record.family, record.remote, record.remote_port),
            initiator,
            step,
            retransmits: record.retransmits,
        },
        socket_is_address: record.flags & CONNECT_SOCKET_IS_ADDRESS != 0,
    })
}

/// The process that called connect(2). The kernel side notes it at the first step only: the later ones run in the context of
/// whatever process the softirq interrupted.
fn initiator(record: &ConnectRecord) -> Initiator {
    // `task_struct.comm` is filled with zeros to its end; a name of full length has none (include/linux/sched.h,
    // TASK_COMM_LEN).
    let comm_len = record.comm.iter().position(|byte| *byte == 0).unwrap_or(COMM_LEN);
    Initiator {
        process: ProcessKey::new(record.header.pid, record.header.start_ns),
        comm: text(&record.comm[..comm_len]).into(),
    }
}

/// The class of the socket's error. A socket without an error was closed by the program that gave up, or connect(2) itself
/// failed for want of a port, a route or a permission. An error counts before the close: a program closes its socket because of
/// it.
fn failure(record: &ConnectRecord) -> ConnectFailure {
    match record.error {
        libc::ECONNREFUSED => ConnectFailure::Refused,
        libc::ETIMEDOUT => ConnectFailure::TimedOut,
        // What ICMP and ICMPv6 report as unreachable, by code (net/ipv4/icmp.c, icmp_err_convert; net/ipv6/icmp.c,
        // tab_unreach), and ENETDOWN for a device of the node that is down.
        libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN | libc::ENOPROTOOPT => {
            ConnectFailure::Unreachable
        }
        libc::ECONNRESET => ConnectFailure::Reset,
        _ if record.flags & CONNECT_CLOSED != 0 => ConnectFailure::Abandoned,
        _ => ConnectFailure::Other,
    }
}

/// An address of the record. Anything but IPv6 is read as IPv4: the kernel side reports no other family.
fn address(family: u32, bytes: [u8; 16], port: u16) -> SocketAddr {
    let address = match family {
        AF_INET6 => IpAddr::V6(Ipv6Addr::from(bytes)),
        _ => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
    };
    SocketAddr::new(address, port)
}

/// include/linux/socket.h. `libc::AF_INET6` is signed.
const AF_INET6: u32 = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sandglass_probes::wire::RecordHeader;

    use super::*;

    fn record(kind: u32, error: i32, flags: u32) -> ConnectRecord {
        let mut comm = [0; COMM_LEN];
        comm[..4].copy_from_slice(b"curl");
        let mut local = [0xaa; 16];
        local[..4].copy_from_slice(&[10, 0, 0, 2]);
        let mut remote = [0xbb; 16];
        remote[..4].copy_from_slice(&[10, 96, 0, 1]);
        ConnectRecord {
            header: RecordHeader {
                kind,
                pid: 7,
                at_ns: 5_000,
                start_ns: 20_000_000,
                ring_bytes: 0,
            },
            socket: 9,
            netns: 4_026_531_840,
            flags,
            error,
            retransmits: 2,
            family: 2,
            local_port: 40_000,
            remote_port: 443,
            local,
            remote,
            comm,
        }
    }

    /// Later steps run in an interrupt: what the record holds of a process then is not the program's.
    #[test]
    fn the_first_step_names_the_process_and_the_others_do_not() {
        let started = decode(record(KIND_CONNECT_STARTED, 0, 0).bytes()).unwrap();
        let initiator = started.step.initiator.unwrap();
        assert_eq!(initiator.comm, "curl");
        assert_eq!(initiator.process, ProcessKey::new(7, 20_000_000));
        assert_eq!(started.step.local.to_string(), "10.0.0.2:40000");
        assert_eq!(started.step.remote.to_string(), "10.96.0.1:443");
        assert_eq!(started.step.netns, 4_026_531_840);
        let established = decode(record(KIND_CONNECT_ESTABLISHED, 0, 0).bytes()).unwrap();
        assert_eq!(
            (established.step.step, established.step.initiator),
            (Step::Established, None)
        );
        assert_eq!(established.step.retransmits, 2);
    }

    #[test]
    fn ipv6_addresses_are_read_whole() {
        let mut six = record(KIND_CONNECT_ESTABLISHED, 0, 0);
        six.family = 10;
        six.remote = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets();
        assert_eq!(decode(six.bytes()).unwrap().step.remote.to_string(), "[fd00::1]:443");
    }

    /// ENETUNREACH with the close is unreachable, not abandoned: the program closed because of it. EACCES has no class of its
    /// own.
    #[test]
    fn failures_are_classified_by_the_sockets_error() {
        for (error, flags, wanted) in [
            (libc::ECONNREFUSED, 0, ConnectFailure::Refused),
            (libc::ETIMEDOUT, 0, ConnectFailure::TimedOut),
            (libc::EHOSTUNREACH, 0, ConnectFailure::Unreachable),
            (libc::ENETUNREACH, CONNECT_CLOSED, ConnectFailure::Unreachable),
            (libc::ECONNRESET, 0, ConnectFailure::Reset),
            (0, CONNECT_CLOSED, ConnectFailure::Abandoned),
            (0, 0, ConnectFailure::Other),
            (libc::EACCES, 0, ConnectFailure::Other),
        ] {
            let failed = decode(record(KIND_CONNECT_FAILED, error, flags).bytes()).unwrap();
            assert_eq!(failed.step.step, Step::Failed(wanted), "errno {error}");
        }
    }

    /// The mark is what makes the feed rename the socket: an address without it would leave the agent.
    #[test]
    fn the_address_of_a_socket_is_marked() {
        let marked = decode(record(KIND_CONNECT_ESTABLISHED, 0, CONNECT_SOCKET_IS_ADDRESS).bytes()).unwrap();
        assert!(marked.socket_is_address);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 15_u32..20) {
            let _ = decode(&bytes);
            let mut bytes = bytes;
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&kind.to_ne_bytes());
                let fits = bytes.len() >= size_of::<ConnectRecord>();
                prop_assert_eq!(decode(&bytes).is_ok(), fits && (16..=18).contains(&kind));
            }
        }
    }
}
