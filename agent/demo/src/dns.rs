//! DNS messages as the demo's client and server write and read them (RFC 1035): one question, addresses for an answer.
//!
//! Apart from the agent's own decoder: what is held against the agent must not be made by it. Total on any bytes.

use std::net::Ipv4Addr;

/// Record type of IPv4 addresses.
pub const A: u16 = 1;
/// Record type of IPv6 addresses.
pub const AAAA: u16 = 28;
/// There is such a name.
pub const NOERROR: u8 = 0;
/// There is no such name.
pub const NXDOMAIN: u8 = 3;

/// A question with the id of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Message id.
    pub id: u16,
    /// The name, without its last dot.
    pub name: String,
    /// Record type.
    pub kind: u16,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Message id.
    pub id: u16,
    /// Response code.
    pub rcode: u8,
    /// The first address, if there is one.
    pub address: Option<Ipv4Addr>,
}

impl Query {
    /// As bytes: recursion desired, class IN.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.id.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in self.name.split('.').filter(|label| !label.is_empty()) {
            let label = &label.as_bytes()[..label.len().min(63)];
            bytes.push(u8::try_from(label.len()).unwrap_or(63));
            bytes.extend_from_slice(label);
        }
        bytes.push(0);
        bytes.extend_from_slice(&self.kind.to_be_bytes());
        bytes.extend_from_slice(&[0, 1]);
        bytes
    }

    /// From bytes; `None` when they are no query.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Query> {
        let is_query = bytes.get(2)? & 0x80 == 0 && bytes.get(4..6)? == [0, 1];
        let (name, after) = name(bytes, HEADER)?;
        is_query.then_some(Query {
            id: half(bytes, 0)?,
            name,
            kind: half(bytes, after)?,
        })
    }

    /// The answer to it, with an address if there is one.
    #[must_use]
    pub fn answer(&self, rcode: u8, address: Option<Ipv4Addr>) -> Vec<u8> {
        let mut bytes = self.bytes();
        bytes[2..4].copy_from_slice(&[0x85, 0x80 | rcode]);
        if let Some(address) = address {
            bytes[7] = 1;
            // The question's name again, type A, class IN, 5 s, four bytes.
            bytes.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
            bytes.extend_from_slice(&address.octets());
        }
        bytes
    }
}

impl Reply {
    /// From bytes; `None` when they are no answer.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Reply> {
        if bytes.get(2)? & 0x80 == 0 {
            return None;
        }
        let (_, after) = name(bytes, HEADER)?;
        let mut at = after + 4;
        let mut address = None;
        for _ in 0..half(bytes, 6)?.min(16) {
            let (_, after) = name(bytes, at)?;
            let length = usize::from(half(bytes, after + 8)?);
            let value = bytes.get(after + 10..after + 10 + length)?;
            if let (A, Ok(octets)) = (half(bytes, after)?, <[u8; 4]>::try_from(value)) {
                address = address.or(Some(Ipv4Addr::from(octets)));
            }
            at = after + 10 + length;
        }
        Some(Reply {
            id: half(bytes, 0)?,
            rcode: bytes.get(3)? & 15,
            address,
        })
    }
}

const HEADER: usize = 12;

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The name at `at` and where it ends; what a pointer points to is not followed.
fn name(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => return Some((labels.join("."), at + 1)),
            1..=63 => labels.push(String::from_utf8_lossy(bytes.get(at + 1..at + 1 + length)?).to_lowercase()),
            _ => return Some((labels.join("."), at + 2)),
        }
        at += 1 + length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_read_back() {
        let query = Query {
            id: 4711,
            name: "orders.shop.svc.cluster.local".to_owned(),
            kind: A,
        };
        assert_eq!(Query::read(&query.bytes()), Some(query.clone()));
        assert_eq!(Reply::read(&query.bytes()), None);
        let address = Ipv4Addr::new(10, 213, 96, 80);
        let answer = query.answer(NOERROR, Some(address));
        let reply = |rcode, address| {
            Some(Reply {
                id: 4711,
                rcode,
                address,
            })
        };
        assert_eq!(Reply::read(&answer), reply(NOERROR, Some(address)));
        assert_eq!(Reply::read(&query.answer(NXDOMAIN, None)), reply(NXDOMAIN, None));
        assert_eq!(Query::read(&answer), None);
        for end in 0..answer.len() {
            assert_eq!(Reply::read(&answer[..end]), None, "{end}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            let _ = (Query::read(&bytes), Reply::read(&bytes));
        }
    }
}
