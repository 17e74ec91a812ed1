//! A node between a client and its servers: a network namespace that forwards, and translates service addresses as kube-proxy
//! does, so that everything through it has a conntrack entry.
//!
//! Used by `lookup_cost`. Does not: measure, or change the machine's own network.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tcp_flow::{ADDRESSES, Link, inside, ip};

/// The namespace. It is removed when this is dropped.
#[derive(Debug)]
pub struct Node {
    /// Below `/run/netns`.
    pub name: String,
}

impl Node {
    /// Makes a client's and a server's namespace, and the node between them.
    pub fn between() -> Result<(Link, Node)> {
        let link = Link::unjoined()?;
        let node = Node {
            name: format!("sgbench{}n", std::process::id()),
        };
        ip(&["netns", "add", &node.name])?;
        let [client, server] = &link.ends;
        for (end, device, (address, gateway)) in [
            (client, "client", (ADDRESSES[0], GATEWAYS[0])),
            (server, "server", (BEHIND_NODE, GATEWAYS[1])),
        ] {
            let peer = ["type", "veth", "peer", "name", "eth0", "netns", end];
            ip(&[&["-n", &node.name, "link", "add", device][..], &peer].concat())?;
            ip(&["-n", &node.name, "addr", "add", &format!("{gateway}/24"), "dev", device])?;
            ip(&["-n", &node.name, "link", "set", device, "up"])?;
            ip(&["-n", end, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", end, "link", "set", "eth0", "up"])?;
            ip(&["-n", end, "route", "add", "default", "via", gateway])?;
        }
        inside(&node.name, translate)??;
        Ok((link, node))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Forwards, and translates both services to the server, in the namespace of the calling thread.
fn translate() -> Result<()> {
    // /proc/sys/net shows the namespace of the thread that opens it (proc(5)).
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot switch forwarding on")?;
    // A port comes again within seconds; an entry that still exists then would serve a second lookup or connection.
    for timeout in ["udp_timeout", "udp_timeout_stream", "tcp_timeout_time_wait"] {
        std::fs::write(format!("/proc/sys/net/netfilter/nf_conntrack_{timeout}"), "1")
            .with_context(|| format!("cannot set nf_conntrack_{timeout}"))?;
    }
    let [dns, service] = SERVICES;
    let rules = format!(
        "table ip t {{ chain n {{ type nat hook prerouting priority -100;
           ip daddr {dns} udp dport 53 dnat to {BEHIND_NODE};
           ip daddr {service} tcp dport {SERVICE_PORT} dnat to {BEHIND_NODE};\n}}\n}}"
    );
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run nft")?;
    nft.stdin
        .take()
        .context("no input for nft")?
        .write_all(rules.as_bytes())?;
    ensure!(nft.wait()?.success(), "nft does not take the rules");
    Ok(())
}

/// Addresses of the services.
pub const SERVICES: [&str; 2] = ["10.155.0.53", "10.155.0.80"];
/// Port of the second one.
pub const SERVICE_PORT: u16 = 8_080;
/// Address of the server.
pub const BEHIND_NODE: &str = "10.154.1.2";
/// Addresses of the node.
const GATEWAYS: [&str; 2] = ["10.154.0.254", "10.154.1.254"];
