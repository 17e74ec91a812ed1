//! Reads and writes netlink messages as bytes (Documentation/userspace-api/netlink/intro.rst). Any bytes give the messages and
//! attributes that are in them, never a panic.
//!
//! Used by the other modules of `conntrack`. Not a crate's reader: this one borrows and allocates nothing for the tens of
//! thousands of messages a second of a busy node, of which a dozen attributes are read.
//! Does not: know what messages mean.

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetlinkMessage<'a> {
    /// Type; for netfilter the subsystem in the upper byte.
    pub kind: u16,
    /// Number of the request it answers.
    pub sequence: u32,
    /// What follows the header; shorter than the header states where the bytes end.
    pub payload: &'a [u8],
}

/// The messages in `bytes`. The last one may be cut.
pub fn messages(bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(take(rest, 0)?)).ok()?;
        let message = NetlinkMessage {
            kind: u16::from_ne_bytes(take(rest, 4)?),
            sequence: u32::from_ne_bytes(take(rest, 8)?),
            payload: rest.get(HEADER..length.min(rest.len()))?,
        };
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `bytes`: type without its flags, and value. Ends at the first that is cut or malformed.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(take(rest, 0)?));
        let kind = u16::from_ne_bytes(take(rest, 2)?) & TYPE_MASK;
        let value = rest.get(ATTRIBUTE..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// `N` bytes at `from`.
pub fn take<const N: usize>(bytes: &[u8], from: usize) -> Option<[u8; N]> {
    bytes.get(from..from.checked_add(N)?)?.try_into().ok()
}

/// A request to netfilter with no attributes.
pub fn request(kind: u16, flags: u16, sequence: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&20_u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    // Family, version and number of struct nfgenmsg stay 0.
    bytes
}

/// The length with its padding: both messages and attributes are aligned to 4 bytes (include/uapi/linux/netlink.h,
/// NLMSG_ALIGNTO, NLA_ALIGNTO).
fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// Bytes of `struct nlmsghdr` (include/uapi/linux/netlink.h, as for the other constants here).
const HEADER: usize = 16;
/// Bytes of `struct nlattr`.
const ATTRIBUTE: usize = 4;
/// Without NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const TYPE_MASK: u16 = 0x3fff;
/// The message is a request.
const NLM_F_REQUEST: u16 = 1;
/// The response is a list.
pub const NLM_F_DUMP: u16 = 0x300;
/// A response of this type holds the error of the request, 0 for none.
pub const NLMSG_ERROR: u16 = 2;
/// The end of a list.
pub const NLMSG_DONE: u16 = 3;
/// Bytes of `struct nfgenmsg`, before the attributes of every netfilter message.
pub const NFGENMSG: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER + payload.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    #[test]
    fn several_messages_are_separated_and_the_last_may_be_cut() {
        let mut bytes = message(1, b"abcde");
        bytes.extend(message(2, b"fgh"));
        let read: Vec<_> = messages(&bytes)
            .map(|message| (message.kind, message.payload))
            .collect();
        assert_eq!(read, [(1, &b"abcde"[..]), (2, b"fgh")]);
        let cut = &bytes[..bytes.len() - 2];
        assert_eq!(messages(cut).last().unwrap().payload, b"fg");
        assert_eq!(messages(&bytes[..10]).count(), 0);
    }

    #[test]
    fn attributes_end_where_one_is_cut() {
        let bytes = [6, 0, 1, 0x80, 0xaa, 0xbb, 0, 0, 5, 0, 2, 0, 0xcc];
        assert_eq!(
            attributes(&bytes).collect::<Vec<_>>(),
            [(1, &[0xaa, 0xbb][..]), (2, &[0xcc][..])]
        );
        assert_eq!(attributes(&bytes[..12]).count(), 1);
        // A length below that of its own header would go round for ever.
        assert_eq!(attributes(&[0, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0, 9, 9]).count(), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut seen = 0;
            for message in messages(&bytes) {
                seen += 1 + attributes(message.payload).count();
            }
            prop_assert!(seen <= bytes.len());
        }
    }
}
