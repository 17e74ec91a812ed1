//! The process probe: which processes are CNI plugins, what they start, how they end, what they read and wrote.
//!
//! Used by the Linux source, which cannot do without it. Takes the best rung of its ladder that the kernel accepts; what
//! plugins read and wrote is optional.
//! Three tracepoints of include/trace/events/sched.h: sched_process_fork, sched_process_exec, sched_process_exit. They are
//! called for every thread of the node; `probes/bpf/exec.bpf.c` decides after a lookup or two that most are of no concern.
//! Does not: interpret events, or read anything of processes that are no plugins.

mod addresses;
mod calibration;
pub mod cri;
mod daemons;
pub mod decode;
mod ends;
mod feed;
mod file_locks;
mod goroutines;
mod lock_paths;
mod locks;
mod looks;
pub mod running;
mod runtimes;
mod stdio;
mod tcp_sockets;
mod trust;
mod waits;

use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_model::Event;

use self::cri::CriRequests;
use self::daemons::Daemons;
use self::feed::{Channels, ExecFeed};
use self::waits::Waits;
use super::feed::{Follower, Outlet};
use super::loader::error::LoadError;
use super::loader::family::{Family, Object, Part, ProbeLoader, Rung};
use super::loader::maps::{RequestMaps, WaitMaps};
use super::loader::run_time::ProgramTime;
use super::netns::NetnsWatch;
use super::process_root::sees_all_processes;
use super::runtime_times::RuntimeMeter;
use super::start_error::LinuxStartError;
use super::status::{attached, missing, switched_off, unavailable};
use super::symbols::Symbols;
use crate::failure::Advice as _;
use crate::health::{Health, ProbeStatus};
use crate::sources::TrustSettings;
use crate::sources::queue::EventSender;

/// The running probe. Dropping it detaches it.
#[derive(Debug)]
pub struct ExecProbe {
    // Dropped first: the thread drains the ring once more.
    _follower: Follower,
    /// Shared with the feed, which attaches the programs of waits.
    family: Arc<Mutex<Family>>,
    rung: Rung,
}

/// The probe between its attachment and the start of its thread.
pub struct Attached {
    family: Family,
    rung: Rung,
    channels: Channels,
    /// What follows waits, where that is wanted and possible.
    waits: Option<WaitParts>,
    /// What follows requests to daemons, where waits are wanted and that is possible.
    requests: Option<RequestMaps>,
    /// What reads the runtime's CRI socket, where that is wanted and possible.
    cri: Option<CriRequests>,
}

/// What the feed needs to follow waits.
struct WaitParts {
    symbols: Symbols,
    maps: WaitMaps,
    after: Duration,
    /// The iterator over tasks is loaded.
    looks: bool,
    /// The programs see waits for locks on files.
    sees_file_locks: bool,
}

/// Attaches the best of `rungs`, and reports in `health` what came of it and of `stdio`.
///
/// # Errors
/// When the kernel accepts none of the rungs.
pub fn attach(
    rungs: &[Rung],
    ring_bytes: u32,
    (stdio, waits_after, cri_sockets): (bool, Option<Duration>, &[PathBuf]),
    loader: &mut ProbeLoader<'_>,
    health: &Health,
) -> Result<Attached, LinuxStartError> {
    let mut rejected = Vec::new();
    for rung in rungs {
        match attach_rung(*rung, ring_bytes, stdio, loader) {
            Ok((mut probe, no_stdio)) => {
                health.set_probe(in_use(*rung, rejected.first()));
                let outcome = match no_stdio {
                    Some(error) => Err(error.to_string()),
                    None => probe.calibrate(loader),
                };
                health.set_probe(stdio_status(outcome, stdio));
                for status in probe.prepare_waits(*rung, waits_after, loader) {
                    health.set_probe(status);
                }
                health.set_probe(probe.attach_extack(*rung, loader));
                health.set_probe(probe.prepare_daemons(*rung, waits_after.is_some(), loader));
                health.set_probe(probe.attach_cri(*rung, cri_sockets, loader));
                return Ok(probe);
            }
            Err(error) => rejected.push(error),
        }
    }
    // The error of the best rung: the others failed for the same reason.
    let error = LinuxStartError::from_load_error(rejected.into_iter().next().unwrap_or_else(no_rung));
    health.set_probe(unattached(&error));
    Err(error)
}

/// Loads one rung's object and attaches its programs. The second value is why the exit program that also reads pipes is not
/// attached: what plugins read and wrote is optional, the exit itself is not.
///
/// # Errors
/// When the kernel rejects the object or one of the other programs. Nothing stays attached then.
fn attach_rung(
    rung: Rung,
    ring_bytes: u32,
    stdio: bool,
    loader: &mut ProbeLoader<'_>,
) -> Result<(Attached, Option<LoadError>), LoadError> {
    let object = Object {
        probe: PROBE,
        hook: rung.name(),
        bytes: match rung {
            Rung::TpBtf => sandglass_probes::EXEC_TP_BTF,
            Rung::RawTp => sandglass_probes::EXEC_RAW_TP,
        },
    };
    let mut family = Family::load(object, ring_bytes, loader)?;
    // The exit first and the fork last: the exit of every process that is tracked is then seen.
    let no_stdio = match stdio {
        true => {
            let programs = ("on_exit_stdio", "on_exit_stdio_within");
            family.attach_twice(programs, "sched_process_exit", loader).err()
        }
        false => Some(LoadError::NotWanted),
    };
    if no_stdio.is_some() {
        family.attach_twice(("on_exit", "on_exit_within"), "sched_process_exit", loader)?;
    }
    family.attach_twice(("on_exec", "on_exec_within"), "sched_process_exec", loader)?;
    family.attach_twice(("on_fork", "on_fork_within"), "sched_process_fork", loader)?;
    let channels = Channels {
        stream: family.stream()?,
        roles: family.roles()?,
        pages: family.pages()?,
        trust: family.trust()?,
    };
    let probe = Attached {
        family,
        rung,
        channels,
        waits: None,
        requests: None,
        cri: None,
    };
    Ok((probe, no_stdio))
}

impl Attached {
    /// Finds where the pages of pipes lie. Before the thread is started: the calibration uses the same maps.
    fn calibrate(&mut self, loader: &ProbeLoader<'_>) -> Result<(), String> {
        calibration::run(&mut self.family, &mut self.channels.pages, loader)
    }

    /// Loads the programs that follow waits, and locks with them; the feed attaches them at times. Returns their statuses.
    fn prepare_waits(&mut self, rung: Rung, after: Option<Duration>, loader: &mut ProbeLoader<'_>) -> Vec<ProbeStatus> {
        let consequence = "traces do not say what plugins waited for";
        let Some(after) = after else {
            return vec![switched_off(waits::PROBE, consequence, "waits.enabled")];
        };
        if rung != Rung::TpBtf {
            let hint = "a kernel of 5.11 or newer takes tp_btf";
            return vec![missing(
                waits::PROBE,
                format!("{consequence}: only tp_btf follows waits"),
                hint,
            )];
        }
        let family = &mut self.family;
        // In this order they are attached: what on_waking remembers of a thread must be seen to end.
        let outcome = family
            .prepare(Part::Waits, "on_switch", "sched_switch", loader)
            .and_then(|()| family.prepare(Part::Waits, "on_waking", "sched_waking", loader))
            .and_then(|()| family.wait_maps())
            .and_then(|maps| Ok((maps, loader.named_symbols()?)));
        match outcome {
            Ok((maps, symbols)) => {
                // What lasts has no record: without looks a stuck operation does not say what it waits for.
                let looks = self.family.prepare_iterator(waits::LOOK, loader);
                let mut status = attached(waits::PROBE, "tp_btf, while a plugin is slow");
                if let Err(error) = &looks {
                    status.consequence =
                        format!("an operation that still runs does not say what it waits for: {error}");
                    status.hint = "a kernel of 5.8 or newer has iterators over tasks".to_owned();
                }
                let looks = looks.is_ok();
                let (locks, sees_file_locks) = locks::prepare(&mut self.family, loader);
                self.waits = Some(WaitParts {
                    symbols,
                    maps,
                    after,
                    looks,
                    sees_file_locks,
                });
                vec![status, locks]
            }
            Err(error) => {
                let hint = "the kernel must name its functions to a BPF program (Linux 5.9)";
                vec![unavailable(waits::PROBE, consequence, hint, &error)]
            }
        }
    }

    /// Attaches the program that reads the kernel's messages about netlink requests, where the kernel has such a tracepoint. Returns
    /// its status: nothing else depends on it.
    fn attach_extack(&mut self, rung: Rung, loader: &ProbeLoader<'_>) -> ProbeStatus {
        let consequence = "traces do not show the kernel's messages about netlink requests";
        let hint = "a kernel of 5.12 or newer has them";
        if rung != Rung::TpBtf {
            return missing(NETLINK, format!("{consequence}: only tp_btf reads them"), hint);
        }
        match self.family.attach("on_extack", "netlink_extack", loader) {
            Ok(()) => attached(NETLINK, "tp_btf netlink_extack"),
            Err(error) => unavailable(NETLINK, consequence, hint, &error),
        }
    }

    /// As [`Attached::prepare_waits`], of the programs that follow requests to daemons.
    fn prepare_daemons(&mut self, rung: Rung, wanted: bool, loader: &mut ProbeLoader<'_>) -> ProbeStatus {
        // By scheduling alone a wait is known to be for another process, and which one ended it.
        let consequence =
            "a plugin that waits for a daemon shows the name of the process that woke it, not its request";
        if !wanted {
            return switched_off(daemons::PROBE, consequence, "waits.enabled");
        }
        let hint = "Linux 6.3 reports what sockets send and receive (sock_send_length), to tp_btf";
        if rung != Rung::TpBtf {
            return missing(
                daemons::PROBE,
                format!("{consequence}: only tp_btf follows requests"),
                hint,
            );
        }
        let family = &mut self.family;
        // Receiving first: of a request that is seen to be sent its answer is seen too.
        let outcome = family
            .prepare(Part::Requests, "on_sock_receive", "sock_recv_length", loader)
            .and_then(|()| family.prepare(Part::Requests, "on_sock_send", "sock_send_length", loader))
            .and_then(|()| family.request_maps());
        match outcome {
            Ok(maps) => {
                self.requests = Some(maps);
                attached(daemons::PROBE, "tp_btf, while a plugin is slow or a shim")
            }
            Err(error) => unavailable(daemons::PROBE, consequence, hint, &error),
        }
    }

    /// Attaches the programs that read the runtime's CRI socket, one of `sockets`. Returns their status: nothing else depends on them.
    fn attach_cri(&mut self, rung: Rung, sockets: &[PathBuf], loader: &ProbeLoader<'_>) -> ProbeStatus {
        let consequence = "a sandbox's creation begins with its network namespace and ends with its start: what the runtime does before and \
                           after that is not in it";
        if sockets.is_empty() {
            return switched_off(cri::PROBE, consequence, "probes.cri");
        }
        let hint = "Linux 6.3 reports what sockets send and receive (sock_recv_length), to tp_btf";
        if rung != Rung::TpBtf {
            return missing(cri::PROBE, format!("{consequence}: only tp_btf reads it"), hint);
        }
        let family = &mut self.family;
        // Sending first: of a request that is seen its response is seen too.
        let outcome = family
            .cri_maps()
            .and_then(|maps| family.attach("on_cri_send", "sock_send_length", loader).map(|()| maps))
            .and_then(|maps| {
                family
                    .attach("on_cri_receive", "sock_recv_length", loader)
                    .map(|()| maps)
            });
        match outcome {
            Ok(maps) => {
                self.cri = Some(CriRequests::new(maps, sockets));
                attached(cri::PROBE, "tp_btf sock_recv_length")
            }
            Err(error) => unavailable(cri::PROBE, consequence, hint, &error),
        }
    }

    /// Starts the thread. It forwards the events of `announcements` until that channel is closed, each before the records
    /// that come after it. `meter` measures the runtime's daemon.
    ///
    /// # Errors
    /// When the node is out of descriptors or threads.
    pub fn start(
        self,
        netns: NetnsWatch,
        announcements: Receiver<Event>,
        (trust, meter): (TrustSettings, Option<RuntimeMeter>),
        (sender, health): (&EventSender, &Health),
    ) -> Result<ExecProbe, LinuxStartError> {
        let outlet = Outlet::new(PROBE, sender.clone(), health.clone());
        let family = Arc::new(Mutex::new(self.family));
        let waits = self.waits.map(|parts| {
            Waits::new(
                Arc::clone(&family),
                (parts.maps, parts.symbols),
                parts.after,
                (parts.sees_file_locks, parts.looks),
            )
        });
        let daemons = self.requests.map(|maps| Daemons::new(Arc::clone(&family), maps));
        let channels = self.channels;
        let parts = (waits, daemons, self.cri, meter);
        let feed = ExecFeed::new(channels, outlet, health, trust, netns, announcements, parts);
        Ok(ExecProbe {
            _follower: Follower::start(PROBE, feed).map_err(LinuxStartError::Thread)?,
            family,
            rung: self.rung,
        })
    }
}

impl ExecProbe {
    fn family(&self) -> std::sync::MutexGuard<'_, Family> {
        self.family.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rung in use.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Detaches the programs, or attaches them again; they stay loaded.
    ///
    /// # Errors
    /// When the kernel rejects a program.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        self.family().set_hooked(hooked)
    }

    /// Kernel time of each program so far.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.family().run_time()
    }
}

/// The status without the probe.
pub fn unattached(error: &LinuxStartError) -> ProbeStatus {
    let consequence = "no plugin or command can be seen: no traces from this node";
    missing(PROBE, consequence.to_owned(), &error.hint())
}

/// The error of an empty ladder, which only tests and benchmarks configure.
fn no_rung() -> LoadError {
    LoadError::Unexpected {
        probe: PROBE,
        hook: "none",
        what: "no rung was to be tried".to_owned(),
    }
}

/// The status of the attached probe. Of two restrictions the graver one is shown: in another pid namespace hardly anything
/// works.
fn in_use(rung: Rung, rejected: Option<&LoadError>) -> ProbeStatus {
    let mut status = attached(PROBE, rung.name());
    if let Some(error) = rejected {
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

/// The status of what plugins read and wrote, which is a probe of its own on the health page: it fails for other reasons.
fn stdio_status(outcome: Result<(), String>, wanted: bool) -> ProbeStatus {
    let Err(reason) = outcome else {
        return attached(STDIO, "pipe pages at exit");
    };
    let hint = match wanted {
        true => {
            "needs x86_64 or arm64, a `struct page` of 64 bytes, and the node's own pid namespace; exit codes and times are seen without it"
        }
        false => "set probes.stdio to true; exit codes and times are seen without it",
    };
    let consequence = format!("no error messages, network names and addresses from plugins: {reason}");
    missing(STDIO, consequence, hint)
}

/// Name of the probe, in metrics (`probe="exec"`), on the health page and in `sandglass doctor`.
pub const PROBE: &str = "exec";
/// Names of its optional parts.
const STDIO: &str = "stdio";
/// See [`STDIO`].
const NETLINK: &str = "netlink";
