//! Messages put together as the kernel does it, and any bytes at all.

use proptest::prelude::*;

use super::*;
use crate::sources::linux::conntrack::netlink::messages;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | 0x8000, &parts.concat())
}

fn direction(kind: u16, protocol: u8, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let address = |address: IpAddr, v4, v6| match address {
        IpAddr::V4(address) => attribute(v4, &address.octets()),
        IpAddr::V6(address) => attribute(v6, &address.octets()),
    };
    let ip = nested(
        TUPLE_IP,
        &[
            address(source.ip(), V4_SOURCE, V6_SOURCE),
            address(destination.ip(), V4_DESTINATION, V6_DESTINATION),
        ],
    );
    let ports = nested(
        TUPLE_PROTOCOL,
        &[
            attribute(PROTOCOL_NUMBER, &[protocol]),
            attribute(SOURCE_PORT, &source.port().to_be_bytes()),
            attribute(DESTINATION_PORT, &destination.port().to_be_bytes()),
        ],
    );
    nested(kind, &[ip, ports])
}

fn message(kind: u16, protocol: u8, addresses: [&str; 4], more: &[Vec<u8>]) -> Vec<u8> {
    let [source, destination, reply_source, reply_destination] = addresses.map(|text| text.parse().unwrap());
    let mut payload = vec![2, 0, 0, 0];
    payload.extend(direction(TUPLE_ORIGINAL, protocol, source, destination));
    payload.extend(direction(TUPLE_REPLY, protocol, reply_source, reply_destination));
    payload.extend(attribute(ID, &0x1234_5678_u32.to_be_bytes()));
    payload.extend(more.concat());
    let mut bytes = u32::try_from(16 + payload.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(payload);
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Option<FlowEvent>, FlowError> {
    decode(&messages(bytes).next().unwrap(), 99)
}

const SERVICE: [&str; 4] = ["10.1.0.2:40000", "10.96.0.10:53", "10.1.0.9:1053", "10.1.0.2:40000"];

#[test]
fn a_translated_flow_is_reported_with_both_directions() {
    let bytes = message(NEW, UDP, SERVICE, &[attribute(STATUS, &0x1aa_u32.to_be_bytes())]);
    let event = decoded(&bytes).unwrap().unwrap();
    assert_eq!(event.unix_ns, None);
    let flow = event.flow;
    assert_eq!(
        (flow.change, flow.protocol, flow.netns, flow.id),
        (FlowChange::New, UDP, 99, 0x1234_5678)
    );
    assert_eq!(
        [flow.source, flow.destination, flow.reply_source, flow.reply_destination].map(|end| end.to_string()),
        SERVICE
    );
    assert!(flow.is_dnat() && !flow.is_snat() && flow.replied);
}

#[test]
fn ipv6_and_the_kernels_own_time_are_read() {
    let ends = ["[fd00::2]:40000", "[fd00::10]:53", "[fd00::9]:53", "[fd00::1]:1024"];
    let times = nested(
        TIMESTAMP,
        &[
            attribute(TIMESTAMP_START, &5_u64.to_be_bytes()),
            attribute(TIMESTAMP_STOP, &9_u64.to_be_bytes()),
        ],
    );
    let gone = decoded(&message(DELETE, TCP, ends, std::slice::from_ref(&times)))
        .unwrap()
        .unwrap();
    assert_eq!((gone.flow.change, gone.unix_ns), (FlowChange::Destroyed, Some(9)));
    assert!(gone.flow.is_dnat() && gone.flow.is_snat());
    let event = attribute(TIMESTAMP_EVENT, &7_u64.to_be_bytes());
    let new = decoded(&message(NEW, TCP, ends, &[times, event])).unwrap().unwrap();
    assert_eq!(new.unix_ns, Some(7));
}

#[test]
fn other_protocols_and_messages_are_nothing() {
    assert_eq!(decoded(&message(NEW, 1, SERVICE, &[])), Ok(None));
    assert_eq!(decoded(&message(0x101, UDP, SERVICE, &[])), Ok(None));
}

#[test]
fn what_is_cut_before_the_id_is_an_error_and_after_it_is_not() {
    let bytes = message(NEW, UDP, SERVICE, &[attribute(99, &[0; 64])]);
    assert!(decoded(&bytes[..bytes.len() - 10]).unwrap().is_some());
    assert!(decoded(&bytes[..60]).is_err());
    assert!(decoded(&bytes[..18]).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for message in messages(&bytes) {
            let _ = decode(&message, 1);
        }
    }

    #[test]
    fn any_byte_changed_is_decoded_or_refused(at in 0_usize..200, to in any::<u8>(), cut in 16_usize..220) {
        let mut bytes = message(NEW, UDP, SERVICE, &[attribute(STATUS, &[0; 4])]);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        }
        bytes.truncate(cut);
        for message in messages(&bytes) {
            let _ = decode(&message, 1);
        }
    }
}
