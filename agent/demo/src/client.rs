//! The program in a demo's pod: resolves a name as glibc does, connects, and reads its own clock.
//!
//! Used by the scenarios. It runs as a thread named like its pod, in the pod's network namespace: A and AAAA from
//! one socket at once, the search path by `ndots`, and a query without an answer sent again after [`TIMER`]. Its clock is
//! what the trace is held against. Does not: use the host's resolver or its configuration.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::dns::{A, AAAA, NXDOMAIN, Query, Reply};
use super::services::DNS_SERVICE;
use super::timing::{CallTimes, Stopwatch};

/// Timeout of a query, after which it is sent again: glibc's default (resolv.conf(5)).
pub const TIMER: Duration = Duration::from_secs(5);
/// The kubelet's search path for a pod of namespace `shop`.
const SEARCH: [&str; 3] = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"];
/// Names with fewer dots are tried with the search path first.
const NDOTS: usize = 5;
/// How often a query is sent at most.
const ATTEMPTS: u32 = 2;

/// What a pod's program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Talk {
    /// The name it resolves, as its configuration would have it.
    pub name: &'static str,
    /// The port it connects to.
    pub port: u16,
    /// The node's firewall drops its first query.
    pub stalls: bool,
}

/// What it found, on its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Talked {
    /// From the first query to the last answer.
    pub lookup: CallTimes,
    /// Names it queried until one existed.
    pub names: u32,
    /// Queries it sent again.
    pub again: u32,
    /// The connection's set-up.
    pub connect: CallTimes,
    /// Its end of the connection.
    pub local: SocketAddr,
    /// The other end, as it knows it.
    pub remote: SocketAddrV4,
}

/// Runs it in the network namespace at `netns`. `before` is called with the pod's address before the first query.
pub fn talk(
    netns: &Path,
    pod: &str,
    talk: Talk,
    before: impl FnOnce(Ipv4Addr) -> io::Result<()> + Send,
) -> io::Result<Talked> {
    let namespace = File::open(netns)?;
    std::thread::scope(|scope| {
        let running = std::thread::Builder::new()
            .name(pod.to_owned())
            .spawn_scoped(scope, move || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                drop(namespace);
                run(talk, before)
            })?;
        running
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the pod's program died")))
    })
}

fn run(talk: Talk, before: impl FnOnce(Ipv4Addr) -> io::Result<()>) -> io::Result<Talked> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(DNS_SERVICE)?;
    if let SocketAddr::V4(own) = socket.local_addr()? {
        before(*own.ip())?;
    }
    let watch = Stopwatch::start();
    let mut resolver = Resolver {
        socket,
        id: 0x5a00,
        again: 0,
    };
    let mut names = 0;
    let mut address = None;
    for name in candidates(talk.name) {
        names += 1;
        address = resolver.resolve(&name)?;
        if address.is_some() {
            break;
        }
    }
    let lookup = watch.stop();
    let address = address.ok_or_else(|| io::Error::other(format!("{} does not exist", talk.name)))?;
    let remote = SocketAddrV4::new(address, talk.port);
    let watch = Stopwatch::start();
    let stream = TcpStream::connect_timeout(&remote.into(), TIMER)?;
    Ok(Talked {
        lookup,
        names,
        again: resolver.again,
        connect: watch.stop(),
        local: stream.local_addr()?,
        remote,
    })
}

/// The names to try, in order.
fn candidates(name: &str) -> Vec<String> {
    let mut names: Vec<String> = SEARCH.iter().map(|domain| format!("{name}.{domain}")).collect();
    let at = if name.matches('.').count() < NDOTS {
        names.len()
    } else {
        0
    };
    names.insert(at, name.to_owned());
    names
}

struct Resolver {
    socket: UdpSocket,
    id: u16,
    again: u32,
}

impl Resolver {
    /// Queries both kinds of address at once, and waits for both answers. `None` when there is no such name.
    fn resolve(&mut self, name: &str) -> io::Result<Option<Ipv4Addr>> {
        let mut open: Vec<Query> = [A, AAAA].map(|kind| self.query(name, kind)).into();
        let mut address = None;
        for attempt in 1..=ATTEMPTS {
            for query in &open {
                self.socket.send(&query.bytes())?;
            }
            self.again += if attempt > 1 {
                u32::try_from(open.len()).unwrap_or_default()
            } else {
                0
            };
            let deadline = Instant::now() + TIMER;
            while let Some(reply) = self.receive(deadline)? {
                open.retain(|query| query.id != reply.id);
                address = address.or(reply.address);
                if open.is_empty() {
                    return Ok(address.filter(|_| reply.rcode != NXDOMAIN));
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {name}")))
    }

    fn query(&mut self, name: &str, kind: u16) -> Query {
        self.id += 1;
        Query {
            id: self.id,
            name: name.to_owned(),
            kind,
        }
    }

    /// The next reply; `None` when none came in time.
    fn receive(&self, deadline: Instant) -> io::Result<Option<Reply>> {
        let mut bytes = [0; 512];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut bytes) {
                Ok(length) => {
                    if let Some(reply) = Reply::read(&bytes[..length]) {
                        return Ok(Some(reply));
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_path_comes_first_for_names_with_few_dots() {
        assert_eq!(
            candidates("orders.shop")[..2],
            ["orders.shop.shop.svc.cluster.local", "orders.shop.svc.cluster.local"]
        );
        assert_eq!(candidates("orders.shop")[3], "orders.shop");
        assert_eq!(candidates("a.b.c.d.e.f")[0], "a.b.c.d.e.f");
    }
}
