//! The Linux source: attaches the probes, and joins what they need of one another.
//!
//! Started by `app`, by tests and by the benchmarks. Each probe takes the best rung of its ladder that this kernel offers and
//! reports in [`Health`] which one; only the process probe is required. Every probe has a thread of its own that turns its
//! records into events until the source is dropped.
//! Does not: interpret events (the correlator does), or read anything of processes that are no plugins.

mod api_server;
mod attached;
mod cgroups;
pub mod connect;
pub mod conntrack;
pub mod dns;
mod drops;
pub mod exec;
mod feed;
mod known_namespaces;
mod loader;
mod netns;
mod process_root;
mod record;
mod runtime_times;
mod start_error;
mod status;
mod symbols;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandglass_model::{Body, Event};

use self::attached::AttachedProbe;
use self::conntrack::Conntrack;
pub use self::conntrack::FlowOptions;
use self::dns::DnsProbe;
use self::exec::ExecProbe;
use self::known_namespaces::KnownNamespaces;
use self::loader::error::LoadError;
pub use self::loader::family::Rung;
use self::loader::family::{ProbeLoader, with_kernel_types};
pub use self::loader::run_time::{ProgramTime, enable_run_time};
use self::netns::NetnsWatch;
use self::runtime_times::RuntimeMeter;
pub use self::start_error::LinuxStartError;
use super::clock;
use super::namespace::NamespaceLook;
use super::queue::EventSender;
use super::settings::{SourceSettings, TrustSettings};
use super::windows::normalize::NamesFileError;
use crate::health::Health;
use crate::resident;

/// Options of the source. What has a configuration key has its default in `config::defaults` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxOptions {
    /// Bytes of the process probe's ring buffer; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Read what plugins read and wrote.
    pub stdio: bool,
    /// Rungs to try, best first.
    pub rungs: Vec<Rung>,
    /// Follow the set-up of TCP connections.
    pub connect: bool,
    /// Follow conntrack's flows and counters.
    pub conntrack: bool,
    /// How conntrack's flows reach the agent.
    pub flows: FlowOptions,
    /// Watch DNS messages.
    pub dns: bool,
    /// Watch dropped DNS packets and SYNs.
    pub drops: bool,
    /// Where the runtime's CRI socket may be; none: it is not read.
    pub cri_sockets: Vec<PathBuf>,
    /// How long a plugin runs before its waits are recorded; `None` records none.
    pub waits_after: Option<Duration>,
    /// Ports of DNS servers; at most 8 are watched.
    pub dns_ports: Vec<u16>,
    /// Which processes are trusted to be plugins besides those of the root namespaces.
    pub trust: TrustSettings,
    /// The node's network namespace, where it is not that of process 1: conntrack is followed there.
    pub node_netns: Option<PathBuf>,
    /// Directories where runtimes name network namespaces, as the runtimes write them. Others are watched from the first
    /// sandbox there on.
    pub netns_directories: Vec<String>,
}

impl LinuxOptions {
    /// The configured options.
    ///
    /// # Errors
    /// None here; on Windows the table of activity names may be unreadable.
    pub fn from_settings(settings: SourceSettings) -> Result<LinuxOptions, NamesFileError> {
        let mut options = LinuxOptions {
            rungs: Rung::ALL.to_vec(),
            flows: FlowOptions::LADDER,
            netns_directories: NETNS_DIRECTORIES.map(str::to_owned).to_vec(),
            ring_bytes: settings.ring_bytes,
            stdio: settings.stdio,
            dns: settings.dns,
            connect: settings.connect,
            conntrack: settings.conntrack,
            drops: settings.drops,
            cri_sockets: settings.cri_sockets,
            waits_after: settings.waits_after,
            dns_ports: settings.dns_ports,
            trust: settings.trust,
            node_netns: settings.node_netns,
        };
        options.netns_directories.extend(settings.netns_directories);
        Ok(options)
    }
}

/// Where runtimes and `ip netns` name network namespaces by default: one directory, as podman writes it and as containerd and
/// CRI-O do.
const NETNS_DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// The running source. Dropping it stops it: each thread drains what is in its ring buffer now, and the probes are detached.
#[derive(Debug)]
pub struct LinuxSource {
    /// The one probe without which there is no source.
    exec: ExecProbe,
    // `None`: switched off, or not accepted by this kernel; the health page shows which.
    connect: Option<AttachedProbe>,
    conntrack: Option<Conntrack>,
    dns: Option<DnsProbe>,
    drops: Option<AttachedProbe>,
    /// Shared with `netns` and `conntrack`; kept for looks at older sandboxes.
    namespaces: KnownNamespaces,
}

/// Attaches the probes and starts to send events.
///
/// # Errors
/// When the process probe cannot be attached. Every other probe is optional.
pub fn start(options: LinuxOptions, sender: EventSender, health: Health) -> Result<LinuxSource, LinuxStartError> {
    let load = |loader: &mut ProbeLoader<'_>| attach(loader, &options, sender, &health);
    // The process probe needs BTF (CO-RE relocations), so that without it nothing can be attached, and its status shows why.
    let started = with_kernel_types(&options.dns_ports, load).map_err(|error| {
        let error = LinuxStartError::NoBtf(error);
        health.set_probe(exec::unattached(&error));
        error
    })?;
    resident::trim();
    started
}

/// Attaches all probes, the process probe first. The kernel's type information is in memory meanwhile, so nothing here waits.
fn attach(
    loader: &mut ProbeLoader<'_>,
    options: &LinuxOptions,
    sender: EventSender,
    health: &Health,
) -> Result<LinuxSource, LinuxStartError> {
    let exec = exec::attach(
        &options.rungs,
        options.ring_bytes,
        (options.stdio, options.waits_after, &options.cri_sockets),
        loader,
        health,
    )?;
    let namespaces = KnownNamespaces::default();
    let meter = options.waits_after.map(|_| RuntimeMeter::default());
    let directories = &options.netns_directories;
    let netns = NetnsWatch::start(sender.clone(), namespaces.clone(), directories, meter.clone())
        .map_err(LinuxStartError::Thread)?;
    health.set_probe(netns.status());
    // The process probe is read before the others are attached, which takes a second or more: its records of that second
    // would otherwise reach the pipeline behind newer events of the others, and be late.
    let (announce, announcements) = mpsc::channel();
    let trust = options.trust.clone();
    if let Some(known) = options.waits_after.and_then(|_| api_server::known()) {
        let _ = announce.send(known);
    }
    let exec = exec.start(netns, announcements, (trust, meter), (&sender, health))?;
    let connect = connect::start(options.connect, &options.rungs, loader, &sender, health);
    let conntrack = within(options.node_netns.as_deref(), || {
        let known = namespaces.clone();
        Conntrack::start(options.conntrack, &options.flows, known, loader, (&sender, health))
    });
    let ports = &options.dns_ports;
    let drops = drops::start(options.drops, ports, loader, &sender, health);
    let dns = DnsProbe::start(options.dns, ports, options.ring_bytes / 2, loader, (&sender, health));
    if connect.is_some() || dns.is_some() {
        // Sent by the thread of the process probe: the queue may be full, and the pipeline that empties it starts after
        // this function. That thread ends only when the pipeline has.
        let _ = announce.send(traffic_watched(options.node_netns.as_deref()));
    }
    Ok(LinuxSource {
        exec,
        connect,
        conntrack,
        dns,
        drops,
        namespaces,
    })
}

/// Calls `start` in the network namespace at this path; in the agent's own when there is none or it cannot be entered.
fn within<T: Send>(netns: Option<&Path>, start: impl FnOnce() -> T + Send) -> T {
    let Some(netns) = netns.and_then(|path| File::open(path).ok()) else {
        return start();
    };
    std::thread::scope(|scope| {
        // A thread of its own, because setns(2) moves the calling thread for good. Threads that `start` makes inherit the
        // namespace.
        let started = scope.spawn(move || {
            let _ = move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network));
            start()
        });
        match started.join() {
            Ok(started) => started,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The event that traffic is watched from now on: silence of a sandbox means from here on that it sends nothing. It also
/// names the node's own network namespace, that of process 1 unless configured; 0 when it cannot be seen.
fn traffic_watched(node: Option<&Path>) -> Event {
    let node = node.unwrap_or(Path::new("/proc/1/ns/net"));
    let netns = std::fs::metadata(node).or_else(|_| std::fs::metadata("/proc/self/ns/net"));
    Event {
        at: clock::now(),
        body: Body::TrafficWatched {
            node_netns: netns.map_or(0, |netns| netns.ino()),
        },
    }
}

impl LinuxSource {
    /// Stops the source, as dropping it does. Blocks until every thread has drained its ring buffer.
    pub fn stop(self) {}

    /// A look at the network namespaces of sandboxes that are older than the agent.
    #[must_use]
    pub fn namespace_look(&self) -> Option<NamespaceLook> {
        Some(netns::older::look(self.namespaces.clone()))
    }

    /// Detaches the programs or attaches them again, within a millisecond or two; they stay loaded. The benchmarks measure so
    /// what the hooks cost. While they are detached nothing is seen, and no tracked process may end. conntrack's messages
    /// still come: they are a socket's.
    ///
    /// # Errors
    /// When the kernel rejects a program.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        self.exec.set_hooked(hooked)?;
        if let Some(connect) = &mut self.connect {
            connect.set_hooked(hooked)?;
        }
        if let Some(dns) = &mut self.dns {
            dns.set_hooked(hooked)?;
        }
        if let Some(drops) = &mut self.drops {
            drops.set_hooked(hooked)?;
        }
        Ok(())
    }

    /// The rung in use.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.exec.rung()
    }

    /// Kernel time of each program of the process probe, counted while [`enable_run_time`] is on.
    #[must_use]
    pub fn bpf_run_time(&self) -> Vec<ProgramTime> {
        self.exec.run_time()
    }

    /// Kernel time of each program of the other probes.
    #[must_use]
    pub fn traffic_run_time(&self) -> Vec<ProgramTime> {
        let connect = self.connect.iter().flat_map(AttachedProbe::run_time);
        connect
            .chain(self.conntrack.iter().flat_map(Conntrack::run_time))
            .chain(self.dns.iter().flat_map(DnsProbe::run_time))
            .chain(self.drops.iter().flat_map(AttachedProbe::run_time))
            .collect()
    }
}
