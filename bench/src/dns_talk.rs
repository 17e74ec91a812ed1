//! Lookups between a client and a server of this program, and the DNS messages of one (RFC 1035, section 4; EDNS: RFC 6891).
//!
//! Used by `dns_cost` and `lookup_cost`. Does not: measure.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};

/// A client and a server on loopback.
#[derive(Debug)]
pub struct Talk {
    client: UdpSocket,
    server: UdpSocket,
}

impl Talk {
    /// Both, the server on this port.
    pub fn on(port: u16) -> Result<Talk> {
        let server = UdpSocket::bind((SERVER, port)).with_context(|| format!("cannot bind {SERVER}:{port}"))?;
        let client = UdpSocket::bind((SERVER, 0))?;
        client.connect(server.local_addr()?)?;
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        }
        Ok(Talk { client, server })
    }

    /// `count` lookups, one after the other.
    pub fn lookups(&self, count: u32) -> Result<()> {
        let mut buffer = [0; 512];
        for number in 0..count {
            let id = number as u16;
            self.client.send(&query(id))?;
            let (_, from) = self.server.recv_from(&mut buffer)?;
            self.server.send_to(&answer(id, ADDRESS.into()), from)?;
            self.client.recv(&mut buffer)?;
        }
        Ok(())
    }
}

/// A query for `web-123.shop.svc.cluster.local`, type A, as of a stub resolver with EDNS.
pub fn query(id: u16) -> Vec<u8> {
    let mut query = head(id, 0x0100, 0);
    query.extend(OPT);
    query
}

/// The answer to it, with an IPv4 address.
pub fn answer(id: u16, address: IpAddr) -> Vec<u8> {
    let mut answer = head(id, 0x8180, 1);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4]);
    if let IpAddr::V4(address) = address {
        answer.extend(address.octets());
    }
    answer.extend(OPT);
    answer
}

fn head(id: u16, flags: u16, records: u16) -> Vec<u8> {
    let mut message: Vec<u8> = [id, flags, 1, records, 0, 1]
        .into_iter()
        .flat_map(u16::to_be_bytes)
        .collect();
    for label in ["web-123", "shop", "svc", "cluster", "local"] {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

const OPT: [u8; 11] = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
/// What names resolve to.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 7, 7);
/// A loopback address without a resolver.
pub const SERVER: &str = "127.9.9.9";
