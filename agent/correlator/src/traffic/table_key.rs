//! Keys of open exchanges: addresses, message ids, names and sockets, each as one hash.
//!
//! Used as the index of [`ExchangeTable`](crate::traffic::table::ExchangeTable). Each kind of key has a seed of its
//! own, so that one value in two senses gives two keys. A key is a hash only: callers compare what they find. Addresses
//! must be canonical (IPv4, not mapped IPv6).

use std::net::SocketAddr;

use sandglass_model::network::Transport;

use crate::collections::bounded::Hashed;
use crate::collections::mix::mix;
use crate::traffic::packet::TCP;

/// A hash of one thing that identifies an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableKey(u64);

impl TableKey {
    /// The DNS message with this id from this end.
    pub(crate) fn message(client: SocketAddr, transport: Transport, id: u16) -> TableKey {
        end(1, client, u64::from(id) << 1 | u64::from(transport == Transport::Tcp))
    }

    /// The DNS message with this id of the socket with this cookie, whatever its packets were translated to.
    pub(crate) fn message_by(cookie: u64, transport: Transport, id: u16) -> TableKey {
        let more = u64::from(id) << 1 | u64::from(transport == Transport::Tcp);
        TableKey(mix(mix(12, &cookie.to_le_bytes()), &more.to_le_bytes()))
    }

    /// A packet of this protocol from or to this address.
    pub(crate) fn client(protocol: u8, client: SocketAddr) -> TableKey {
        end(2, client, u64::from(protocol))
    }

    /// A DNS message with this id from any end.
    pub(crate) fn id(id: u16) -> TableKey {
        TableKey(mix(3, &id.to_le_bytes()))
    }

    /// The name that was queried from this end.
    pub(crate) fn name_from(client: SocketAddr, name: &str) -> TableKey {
        end(4, client, mix(0, name.as_bytes()))
    }

    /// The name that this client queried, from any of its sockets.
    pub(crate) fn name_by(client: Client, name: &str) -> TableKey {
        TableKey(mix(client.0 ^ 5, name.as_bytes()))
    }

    /// Names with this first label that this client queried: the search path changes only what follows.
    pub(crate) fn label_by(client: Client, name: &str) -> TableKey {
        let label = name.split('.').next().unwrap_or_default();
        TableKey(mix(client.0 ^ 6, label.as_bytes()))
    }

    /// Any query of this client.
    pub(crate) fn by(client: Client) -> TableKey {
        TableKey(mix(client.0, &[7]))
    }

    /// A socket that connects.
    pub(crate) fn socket(cookie: u64) -> TableKey {
        TableKey(mix(8, &cookie.to_le_bytes()))
    }

    /// A socket that connects: by its cookie, or by its local end where the system has no cookies.
    pub(crate) fn connecting_socket(cookie: u64, local: SocketAddr) -> TableKey {
        match cookie {
            0 => TableKey::client(TCP, local),
            cookie => TableKey::socket(cookie),
        }
    }

    /// A connect from any port of one address to another.
    pub(crate) fn remote(local: SocketAddr, remote: SocketAddr) -> TableKey {
        let mut address = local;
        address.set_port(0);
        end(9, remote, end(0, address, 0).0)
    }

    /// A connect to an address that this lookup resolved.
    pub(crate) fn after(lookup: u64) -> TableKey {
        TableKey(mix(10, &lookup.to_le_bytes()))
    }
}

impl Hashed for TableKey {
    fn hash(&self) -> u64 {
        self.0
    }
}

/// Who sends queries: a process where it is known, else an address of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(u64);

impl Client {
    /// The start time of the process is part of it, since pids are reused.
    pub(crate) fn of(netns: u64, process: Option<sandglass_model::ProcessKey>, client: SocketAddr) -> Client {
        match process {
            Some(process) => Client(mix(
                netns ^ u64::from(process.pid) << 32,
                &process.start_ticks.to_le_bytes(),
            )),
            None => {
                let mut address = client;
                address.set_port(0);
                Client(end(11, address, netns).0)
            }
        }
    }
}

/// The hash of an address with its port and one more number; `tag` is the seed of the kind of key.
fn end(tag: u64, end: SocketAddr, more: u64) -> TableKey {
    let mut bytes = [0; 26];
    match end.ip() {
        std::net::IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        std::net::IpAddr::V6(address) => bytes[..16].copy_from_slice(&address.octets()),
    }
    bytes[16..18].copy_from_slice(&end.port().to_le_bytes());
    bytes[18..].copy_from_slice(&more.to_le_bytes());
    TableKey(mix(tag << 1 | u64::from(end.is_ipv6()), &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_thing_in_different_senses_differ() {
        let client = SocketAddr::from(([10, 0, 0, 1], 4_000));
        let other = SocketAddr::from(([10, 0, 0, 1], 4_001));
        let (one, another) = (Client::of(1, None, client), Client::of(1, None, other));
        assert_eq!(one, another);
        assert_ne!(one, Client::of(2, None, client));
        let keys = [
            TableKey::client(17, client),
            TableKey::client(6, client),
            TableKey::client(17, other),
            TableKey::name_from(client, "a.b"),
            TableKey::name_by(one, "a.b"),
            TableKey::label_by(one, "a.b"),
            TableKey::by(one),
            TableKey::remote(client, other),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{index}");
        }
        assert_eq!(TableKey::remote(client, other), TableKey::remote(other, other));
        assert_eq!(TableKey::label_by(one, "a.b"), TableKey::label_by(one, "a.c"));
    }
}
