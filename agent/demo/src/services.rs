//! What the demo's pods talk to: a DNS server and a backend on the demo's node, each behind a service address.
//!
//! A thread of this program in the *node's* network namespace ([`super::rig`]) serves both; `iptables` there translates
//! the service addresses to theirs, as kube-proxy would. Nothing of it exists on the host's own network, and all of it
//! ends with the namespace. Does not: know pods, or answer for any name but those of [`NAMES`].

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::dns::{A, NOERROR, NXDOMAIN, Query};

/// The DNS server as pods know it.
pub const DNS_SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 213, 96, 10), 53);
/// The DNS server itself.
pub const DNS_BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 213, 53, 2), 53);
/// The service that [`NAMES`] lead to.
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 213, 96, 80), 80);
/// The backend behind it.
pub const BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 213, 53, 3), 8080);
/// Addresses of all services: what pods need a route to.
pub const SERVICES: &str = "10.213.96.0/24";
/// Names that exist.
pub const NAMES: [&str; 1] = ["orders.shop.svc.cluster.local"];

/// The running services. Dropping them ends them; only then can the node's namespace go.
#[derive(Debug)]
pub struct Services {
    netns: PathBuf,
    search: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Services {
    /// Starts them in the network namespace at `netns`; `search` is where `ip` and `iptables` are looked for.
    pub fn start(netns: &Path, search: &str) -> io::Result<Services> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, search_path) = (Arc::clone(&stop), search.to_owned());
        let thread = enter(netns, "services", move || {
            lay_out(&search_path)?;
            let dns = UdpSocket::bind(DNS_BACKEND)?;
            let backend = TcpListener::bind(BACKEND)?;
            backend.set_nonblocking(true)?;
            Ok(move || serve(&dns, &backend, &stopped))
        })?;
        Ok(Services {
            netns: netns.to_owned(),
            search: search.to_owned(),
            stop,
            thread: Some(thread),
        })
    }

    /// Lets the node's firewall drop the next DNS query from `pod`, and no other.
    pub fn drop_next_query(&self, pod: Ipv4Addr) -> io::Result<()> {
        let (search, pod) = (self.search.clone(), pod.to_string());
        let server = DNS_BACKEND.ip().to_string();
        let thread = enter(&self.netns, "firewall", move || {
            // Behind the translation, as a policy on the node would: the limit is used up by one packet.
            let rule = format!(
                "-w -I INPUT -s {pod} -d {server} -p udp --dport 53 -m limit --limit 1/day --limit-burst 1 -j DROP"
            );
            run(&search, "iptables", &rule)?;
            Ok(|| ())
        })?;
        drop(thread.join());
        Ok(())
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A thread in another network namespace: returns when `prepare` has succeeded there, and goes on with what it gave.
fn enter<Rest: FnOnce() + 'static>(
    netns: &Path,
    name: &str,
    prepare: impl FnOnce() -> io::Result<Rest> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let namespace = std::fs::File::open(netns)?;
    let (sender, prepared) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        // Open, it would keep the namespace alive.
        drop(namespace);
        match entered.map_err(io::Error::from).and_then(|()| prepare()) {
            Ok(rest) => {
                let _ = sender.send(Ok(()));
                rest();
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        }
    })?;
    prepared.recv().map_err(|_| io::Error::other("the thread died"))??;
    Ok(thread)
}

/// Addresses and rules, in the namespace of this thread.
fn lay_out(search: &str) -> io::Result<()> {
    for address in [DNS_BACKEND.ip(), BACKEND.ip()] {
        run(search, "ip", &format!("address add {address}/32 dev lo"))?;
    }
    for (service, backend, protocol) in [(DNS_SERVICE, DNS_BACKEND, "udp"), (SERVICE, BACKEND, "tcp")] {
        let (address, port) = (service.ip(), service.port());
        let rule = format!(
            "-w -t nat -A PREROUTING -d {address}/32 -p {protocol} --dport {port} -j DNAT --to-destination {backend}"
        );
        run(search, "iptables", &rule)?;
    }
    Ok(())
}

fn run(search: &str, program: &str, arguments: &str) -> io::Result<()> {
    let output = Command::new(program)
        .args(arguments.split(' '))
        .env_clear()
        .env("PATH", search)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {arguments}: {}", message.trim())))
}

/// Answers queries and accepts connections until `stop` is set.
fn serve(dns: &UdpSocket, backend: &TcpListener, stop: &AtomicBool) {
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    while !stop.load(Ordering::Relaxed) {
        let mut sockets = [PollFd::new(dns, PollFlags::IN), PollFd::new(backend, PollFlags::IN)];
        if poll(&mut sockets, Some(&wait)).is_err() {
            continue;
        }
        let [query, connection] = sockets.map(|socket| socket.revents().contains(PollFlags::IN));
        if query {
            // An answer that cannot be sent is a query that the client sends again.
            let _ = answer(dns);
        }
        if connection {
            drop(backend.accept());
        }
    }
}

fn answer(dns: &UdpSocket) -> io::Result<()> {
    let mut bytes = [0; 512];
    let (length, client): (usize, SocketAddr) = dns.recv_from(&mut bytes)?;
    let Some(query) = Query::read(&bytes[..length]) else {
        return Ok(());
    };
    let answer = match (NAMES.contains(&query.name.as_str()), query.kind) {
        (true, A) => query.answer(NOERROR, Some(*SERVICE.ip())),
        (true, _) => query.answer(NOERROR, None),
        (false, _) => query.answer(NXDOMAIN, None),
    };
    dns.send_to(&answer, client).map(drop)
}
