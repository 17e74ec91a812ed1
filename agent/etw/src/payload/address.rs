//! Addresses and security ids in payloads.
//!
//! Used by `payload`. Families and layouts are those of Windows (ws2def.h, winnt.h), whatever system this runs on. Does not:
//! resolve them.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bytes::{Cursor, array_at, u16_at, u32_at};
use crate::event::Value;

/// A `SOCKADDR_IN`, `SOCKADDR_IN6` or `SOCKADDR_STORAGE`, else by its length an IP address. Families and layouts are
/// those of Windows, whatever system this runs on.
pub fn read(bytes: &[u8]) -> Option<Value> {
    let family = u16_at(bytes, 0);
    if family == Some(AF_INET) && bytes.len() >= 16 {
        let ip = Ipv4Addr::from(array_at::<4>(bytes, 4)?);
        return Some(Value::SocketAddr(SocketAddr::new(ip.into(), port(bytes)?)));
    }
    if family == Some(AF_INET6) && bytes.len() >= 24 {
        let ip = Ipv6Addr::from(array_at::<16>(bytes, 8)?);
        let flow = u32_at(bytes, 4)?;
        let scope = u32_at(bytes, 24).unwrap_or_default();
        return Some(Value::SocketAddr(
            SocketAddrV6::new(ip, port(bytes)?, flow, scope).into(),
        ));
    }
    match bytes.len() {
        4 => Some(Value::Ip(IpAddr::from(array_at::<4>(bytes, 0)?))),
        16 => Some(Value::Ip(IpAddr::from(array_at::<16>(bytes, 0)?))),
        _ => None,
    }
}

/// `sin_port` or `sin6_port`, in network order.
fn port(bytes: &[u8]) -> Option<u16> {
    array_at(bytes, 2).map(u16::from_be_bytes)
}

/// How many bytes the security id at the start of `bytes` has: eight, and four for each sub-authority (winnt.h, `SID`).
pub fn sid_length(bytes: &[u8]) -> Option<usize> {
    let sub_authorities = usize::from(*bytes.get(1)?);
    Some(8 + 4 * sub_authorities)
}

/// A security id as text, `S-1-5-18`.
pub fn sid(bytes: &[u8]) -> Option<Box<str>> {
    let mut cursor = Cursor::new(bytes);
    let revision = cursor.u8()?;
    let count = cursor.u8()?;
    let authority: [u8; 6] = cursor.array()?;
    let authority = authority
        .iter()
        .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    let mut text = format!("S-{revision}-{authority}");
    for _ in 0..count {
        let sub_authority = cursor.u32()?;
        write!(text, "-{sub_authority}").ok()?;
    }
    Some(text.into())
}

/// Windows' numbers of the address families.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 23;
