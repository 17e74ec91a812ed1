//! The Linux source: which processes are CNI plugins, what they start, how they end; straight from the kernel.
//!
//! `start` takes the best rung of the ladder of hooks this kernel offers, says which one in [`Health`], and leaves a
//! thread behind that turns records into events until [`LinuxSource::stop`].
//! Does not: interpret events (the correlator does), or read anything of processes that are no plugins.

mod cgroups;
pub mod connect;
pub mod conntrack;
pub mod dns;
mod drops;
pub mod exec;
mod feed;
mod loader;
mod netns;
mod record;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandglass_model::{Body, Event};

use self::connect::ConnectProbe;
pub use self::conntrack::FlowOptions;
use self::conntrack::{Conntrack, KnownNamespaces};
use self::dns::DnsProbe;
use self::drops::DropProbe;
use self::exec::{RingThread, calibration};
use self::loader::family::{Loader, with_kernel_types};
use self::loader::{Attached, LoadError, PROBE};
pub use self::loader::{ProgramTime, Rung, enable_run_time};
use self::netns::NetnsWatch;
use super::{EventSender, NamespaceLook, clock};
use crate::failure::{Advice, Exit, causes_in_short};
use crate::health::{Health, ProbeStatus};
use crate::resident;

/// What can be chosen about the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of the ring buffer in bytes; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Read what plugins say on standard output.
    pub stdio: bool,
    /// Rungs to try, best first.
    pub rungs: Vec<Rung>,
    /// Follow the set-up of TCP connections.
    pub connect: bool,
    /// Follow conntrack's flows and counters.
    pub conntrack: bool,
    /// How conntrack's flows come to the agent.
    pub flows: FlowOptions,
    /// Watch DNS messages.
    pub dns: bool,
    /// Watch dropped DNS packets and SYNs.
    pub drops: bool,
    /// Ports of DNS servers; at most 8 are watched.
    pub dns_ports: Vec<u16>,
    /// The node's network namespace, where it is not that of process 1: conntrack is followed there.
    pub node_netns: Option<PathBuf>,
    /// Where runtimes give names to network namespaces, as they call these directories. Others become known by the first
    /// sandbox there.
    pub netns_directories: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ring_bytes: defaults::RING_BUFFER_BYTES,
            stdio: true,
            rungs: Rung::ALL.to_vec(),
            connect: true,
            conntrack: true,
            flows: FlowOptions::default(),
            dns: true,
            drops: true,
            dns_ports: vec![defaults::DNS_PORT],
            node_netns: None,
            netns_directories: NETNS_DIRECTORIES.map(str::to_owned).to_vec(),
        }
    }
}

impl Options {
    /// The configured options.
    ///
    /// # Errors
    /// None here; on Windows the table of activity names may be unreadable.
    pub fn from_settings(settings: SourceSettings) -> Result<Options, NamesFileError> {
        let mut options = Options {
            ring_bytes: settings.ring_bytes,
            stdio: settings.stdio,
            dns: settings.dns,
            connect: settings.connect,
            conntrack: settings.conntrack,
            drops: settings.drops,
            dns_ports: settings.dns_ports,
            node_netns: settings.node_netns,
            ..Options::default()
        };
        options.netns_directories.extend(settings.netns_directories);
        Ok(options)
    }
}

/// Where runtimes and `ip netns` give names to network namespaces if they are not told otherwise: one directory, by the
/// name that podman and that containerd and CRI-O call it by.
const NETNS_DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// The running source. Dropping it stops it too.
#[derive(Debug)]
pub struct LinuxSource {
    attached: Attached,
    connect: Option<ConnectProbe>,
    conntrack: Option<Conntrack>,
    dns: Option<DnsProbe>,
    drops: Option<DropProbe>,
    namespaces: KnownNamespaces,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Why the source could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel does not describe its types.
    #[error("cannot attach probe 'exec'")]
    NoBtf(#[source] LoadError),
    /// This process may not load BPF programs.
    #[error("cannot attach probe 'exec'")]
    NoPrivilege(#[source] LoadError),
    /// This kernel, or its policy, does not let the probe in.
    #[error("cannot attach probe 'exec'")]
    NotSupported(#[source] LoadError),
    /// The agent's own side could not be set up.
    #[error("cannot start the thread that reads the ring buffer")]
    Thread(#[source] io::Error),
}

impl Advice for StartError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            StartError::NoBtf(_) => {
                "needs a kernel built with CONFIG_DEBUG_INFO_BTF=y, and /sys/kernel/btf visible to the agent"
            }
            StartError::NoPrivilege(_) => "needs CAP_BPF and CAP_PERFMON: run it as root, or add both capabilities",
            StartError::NotSupported(_) => {
                "needs Linux 5.10 or newer with BPF tracing, not shut off by lockdown or a security module; \
                 `sandglass doctor` says which part is missing"
            }
            StartError::Thread(_) => "the node is out of threads or file descriptors: raise the limits of the agent",
        };
        hint.into()
    }

    fn exit(&self) -> Exit {
        match self {
            StartError::NoBtf(_) | StartError::NotSupported(_) => Exit::Unavailable,
            StartError::NoPrivilege(_) => Exit::NoPermission,
            StartError::Thread(_) => Exit::Runtime,
        }
    }
}

/// Attaches the probes and starts to send events.
pub fn start(options: Options, sender: EventSender, health: Health) -> Result<LinuxSource, StartError> {
    let load = |loader: &mut Loader<'_>| attach(loader, &options, sender, &health);
    let started = with_kernel_types(&options.dns_ports, load).map_err(|error| {
        let error = StartError::NoBtf(error);
        health.set_probe(unattached(&error));
        error
    })?;
    resident::trim();
    started
}

fn attach(
    loader: &mut Loader<'_>,
    options: &Options,
    sender: EventSender,
    health: &Health,
) -> Result<LinuxSource, StartError> {
    let outcome = loader::attach(&options.rungs, options.ring_bytes, options.stdio, loader);
    let (mut attached, refused) = outcome.map_err(|refused| {
        let error = classify(refused);
        health.set_probe(unattached(&error));
        error
    })?;
    let mut channels = attached.channels().map_err(StartError::NotSupported)?;
    health.set_probe(in_use(attached.rung(), &refused));
    let stdio = match attached.no_stdio() {
        Some(error) => Err(error.to_string()),
        None => calibration::run(&mut channels.processes, &mut channels.pages).map_err(str::to_owned),
    };
    health.set_probe(stdio_status(stdio, options.stdio));

    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| StartError::Thread(error.into()))?);
    let namespaces = KnownNamespaces::default();
    let netns = NetnsWatch::start(sender.clone(), namespaces.clone(), &options.netns_directories)
        .map_err(StartError::Thread)?;
    health.set_probe(netns.status());
    // Reading begins before the rest is attached, which takes a second or more: what waited for that would reach the
    // pipeline after newer events of the others, and be late.
    let (tell, all_attached) = mpsc::channel();
    let ring = RingThread::new(channels, sender.clone(), health.clone(), netns, all_attached);
    let stopped = Arc::clone(&stop);
    let thread = Builder::new()
        .name("ring".to_owned())
        .spawn(move || ring.run(&stopped))
        .map_err(StartError::Thread)?;
    let connect = ConnectProbe::start(options.connect, &options.rungs, loader, &sender, health);
    let conntrack = within(options.node_netns.as_deref(), || {
        let known = namespaces.clone();
        Conntrack::start(options.conntrack, &options.flows, known, loader, (&sender, health))
    });
    let ports = &options.dns_ports;
    let drops = DropProbe::start(options.drops, ports, loader, &sender, health);
    let dns = DnsProbe::start(options.dns, ports, options.ring_bytes / 2, loader, (&sender, health));
    if connect.is_some() || dns.is_some() {
        // Said by the ring's thread: the channel may be full already, and whoever empties it starts after this. The
        // thread is gone only when the pipeline is.
        let _ = tell.send(traffic_watched(options.node_netns.as_deref()));
    }
    Ok(LinuxSource {
        attached,
        connect,
        conntrack,
        dns,
        drops,
        namespaces,
        stop,
        thread: Some(thread),
    })
}

/// Runs `start` in another network namespace; in this one when that cannot be entered.
fn within<T: Send>(netns: Option<&Path>, start: impl FnOnce() -> T + Send) -> T {
    let Some(netns) = netns.and_then(|path| File::open(path).ok()) else {
        return start();
    };
    std::thread::scope(|scope| {
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
    /// Stops reading after what is in the ring buffer now, and detaches the probe.
    pub fn stop(self) {}

    /// Looks at the network namespaces of sandboxes that are older than the agent.
    #[must_use]
    pub fn namespace_look(&self) -> Option<NamespaceLook> {
        Some(netns::look_at_older(self.namespaces.clone()))
    }

    /// Takes the probes off the kernel's hooks, or puts them on again, within a millisecond or two; loaded they stay. So
    /// what they cost can be measured (bench/). In between nothing is seen, and who is followed must not end. What
    /// conntrack announces comes all the same: it is asked for through a socket.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        self.attached.set_hooked(hooked)?;
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
        self.attached.rung()
    }

    /// Kernel time of each program of the process probe; counts only while [`enable_run_time`]'s descriptor is open somewhere on the node.
    #[must_use]
    pub fn bpf_run_time(&self) -> Vec<ProgramTime> {
        self.attached.run_time()
    }

    /// The same of the programs that watch traffic.
    #[must_use]
    pub fn traffic_run_time(&self) -> Vec<ProgramTime> {
        let connect = self.connect.iter().flat_map(ConnectProbe::run_time);
        connect
            .chain(self.conntrack.iter().flat_map(Conntrack::run_time))
            .chain(self.dns.iter().flat_map(DnsProbe::run_time))
            .chain(self.drops.iter().flat_map(DropProbe::run_time))
            .collect()
    }
}

impl Drop for LinuxSource {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The error of the best rung counts: the others failed for the same reason, or for not being better.
fn classify(refused: Vec<LoadError>) -> StartError {
    let Some(first) = refused.into_iter().next() else {
        let what = "no rung was to be tried".to_owned();
        return StartError::NotSupported(LoadError::Unexpected {
            probe: PROBE,
            hook: "none",
            what,
        });
    };
    let refused_by_policy = matches!(first.os_error(), Some(libc::EPERM | libc::EACCES));
    if refused_by_policy && !may_load() {
        return StartError::NoPrivilege(first);
    }
    StartError::NotSupported(first)
}

/// Whether this process holds CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON.
fn may_load() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let has = |capability: u32| bits & (1 << capability) != 0;
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

fn in_use(rung: Rung, refused: &[LoadError]) -> ProbeStatus {
    let mut status = ProbeStatus {
        probe: PROBE.to_owned(),
        hook: rung.name().to_owned(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    };
    if let Some(error) = refused.first() {
        status.consequence = format!("a lower rung is in use, which sees the same at a little more cost: {error}");
        status.hint = "a kernel of 5.11 or newer takes tp_btf".to_owned();
    }
    if !sees_all_processes() {
        status.consequence =
            "process ids are those of another pid namespace: nothing can be read from /proc".to_owned();
        status.hint = "run the agent in the node's own pid namespace (hostPID: true)".to_owned();
    }
    status
}

fn stdio_status(outcome: Result<(), String>, wanted: bool) -> ProbeStatus {
    let probe = "stdio".to_owned();
    match outcome {
        Ok(()) => ProbeStatus {
            probe,
            hook: "pipe pages at exit".to_owned(),
            attached: true,
            consequence: String::new(),
            hint: String::new(),
        },
        Err(reason) => ProbeStatus {
            probe,
            hook: "none".to_owned(),
            attached: false,
            consequence: format!("no error messages, network names and addresses from plugins: {reason}"),
            hint: match wanted {
                true => "needs x86_64 and the node's own pid namespace; exit codes and times are seen without it",
                false => "set probes.stdio to true; exit codes and times are seen without it",
            }
            .to_owned(),
        },
    }
}

/// A probe that is optional and could not be had.
fn unavailable(probe: &str, consequence: &str, hint: &str, error: &LoadError) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("{consequence}: {}", causes_in_short(error)),
        hint: hint.to_owned(),
    }
}

/// A probe that the configuration does without.
fn switched_off(probe: &str, consequence: &str, key: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("{consequence}: switched off"),
        hint: format!("set {key} to true"),
    }
}

fn unattached(error: &StartError) -> ProbeStatus {
    ProbeStatus {
        probe: PROBE.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: "no plugin or command can be seen: no traces from this node".to_owned(),
        hint: error.hint().into_owned(),
    }
}

/// Whether `/proc` shows the initial pid namespace, whose ids the kernel side reports.
fn sees_all_processes() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == INITIAL_PID_NAMESPACE)
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
// include/linux/proc_ns.h: PROC_PID_INIT_INO.
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;
