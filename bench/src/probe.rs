//! The attached probe with the kernel's run-time statistics enabled: runs and run time of each program.
//!
//! Used by the exec, DNS and ADD parts. Events are discarded. The statistics count all runs on the machine. Does not: separate
//! runs by cause; the parts do.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use prometheus_client::metrics::gauge::Gauge;
use sandglass::app::settings::default_source;
use sandglass::failure::Advice as _;
use sandglass::health::Health;
use sandglass::sources;
use sandglass::sources::linux::{self, LinuxOptions, LinuxSource};

/// The program that runs for every packet that a socket sends; the one for packets that it receives; the one for drops.
pub const SEND: &str = "on_send";
/// See [`SEND`].
pub const RECEIVE: &str = "on_receive";
/// See [`SEND`].
pub const DROP: &str = "on_drop";
/// The one for drops within a run of [`DROP`], which runs at each of them.
pub const DROP_WITHIN: &str = "on_drop_within";

/// The probe. Detached when dropped.
pub struct Probe {
    source: LinuxSource,
    _counting: OwnedFd,
}

/// Runs of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Its name.
    pub program: String,
    /// Number of runs.
    pub count: u64,
    /// Their time in nanoseconds, the cost of the measurement included.
    pub ns: u64,
}

impl Probe {
    /// Attaches it; the inner error says why this machine does not allow that.
    pub fn attach() -> Result<Result<Probe, String>> {
        Probe::attach_with(LinuxOptions {
            connect: false,
            conntrack: false,
            dns: false,
            drops: false,
            ..default_source()?
        })
    }

    /// The same with chosen traffic probes.
    pub fn attach_with(options: LinuxOptions) -> Result<Result<Probe, String>> {
        let (sender, receiver) = sources::channel(1024, Gauge::default());
        let source = match linux::start(options, sender, Health::default()) {
            Ok(source) => source,
            Err(error) => return Ok(Err(format!("{error} ({})", error.hint()))),
        };
        std::thread::spawn(move || while receiver.receive(Duration::from_secs(3600)).is_ok() {});
        let counting = linux::enable_run_time().context("cannot switch the kernel's run-time statistics on")?;
        Ok(Ok(Probe {
            source,
            _counting: counting,
        }))
    }

    /// Runs of each program so far.
    pub fn runs(&self) -> Vec<Runs> {
        let traffic = self.source.traffic_run_time();
        let times = self.source.bpf_run_time().into_iter().chain(traffic).map(|time| Runs {
            program: time.program,
            count: time.run_count,
            ns: time.run_time_ns,
        });
        let mut runs: Vec<Runs> = times.collect();
        runs.sort_by(|a, b| a.program.cmp(&b.program));
        runs
    }
}

/// Runs of each program since `before`.
pub fn since(before: &[Runs], after: &[Runs]) -> Vec<Runs> {
    let less = |now: &Runs| {
        let old = before.iter().find(|old| old.program == now.program);
        let (count, ns) = old.map_or((0, 0), |old| (old.count, old.ns));
        Runs {
            program: now.program.clone(),
            count: now.count.saturating_sub(count),
            ns: now.ns.saturating_sub(ns),
        }
    };
    after.iter().map(less).collect()
}
