//! The HTTP server with what it shows, and the signs of life behind `/healthz` and `/readyz`.
//!
//! Used by the composition root and by `replay --serve`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use tokio::sync::watch;

use crate::failure::Failure;
use crate::health::{Health, ProbeStatus};
use crate::http::{self, HttpOptions, Services};
use crate::sinks::journal::Journal;
use crate::sinks::otlp::OtlpSink;
use crate::sinks::prometheus::Metrics;
use crate::sources::clock;
use crate::view::Store;

/// Signs of life of the agent.
#[derive(Debug)]
pub struct Pulse {
    /// Boot time at which the pipeline last made progress, in nanoseconds.
    pub moved: AtomicU64,
    /// All probes are attached and read: no process that begins from now on is missed.
    pub started: AtomicBool,
}

impl Pulse {
    /// Of an agent that starts now.
    #[must_use]
    pub fn starting() -> Pulse {
        Pulse {
            moved: AtomicU64::new(clock::now().0),
            started: AtomicBool::new(false),
        }
    }

    /// Of a replay that has ended: its pipeline counts as alive and ready for good.
    #[must_use]
    pub fn of_replay() -> Pulse {
        Pulse {
            moved: AtomicU64::new(u64::MAX),
            started: AtomicBool::new(true),
        }
    }

    /// The error names how long the pipeline has made no progress.
    fn alive(&self) -> Result<(), String> {
        let silent = clock::now().0.saturating_sub(self.moved.load(Ordering::Relaxed)) / 1_000_000_000;
        if silent < STALLED_SECONDS {
            Ok(())
        } else {
            Err(format!("the pipeline has not moved for {silent} s"))
        }
    }
}

/// What the server shows.
#[derive(Debug)]
pub struct Shown {
    /// The traces.
    pub store: Store,
    /// Probes and counters.
    pub health: Health,
    /// The registry behind `/metrics`.
    pub metrics: Metrics,
    /// OTLP export, when there is one.
    pub otlp: Option<Arc<OtlpSink>>,
    /// The journal of open traces, when there is one.
    pub journal: Option<Journal>,
    /// Signs of life.
    pub pulse: Arc<Pulse>,
}

/// Starts the HTTP server; it runs until `stop` is true.
///
/// # Errors
/// An address cannot be listened on, or a file that limits who may read cannot be used.
pub async fn serve(options: HttpOptions, shown: Shown, stop: watch::Receiver<bool>) -> Result<http::Running, Failure> {
    let Shown {
        store,
        health,
        metrics,
        otlp,
        journal,
        pulse,
    } = shown;
    let (probes, starting) = (health.clone(), Arc::clone(&pulse));
    let services = Services {
        store,
        health,
        metrics: Arc::new(move || metrics.encode()),
        alive: Arc::new(move || pulse.alive()),
        ready: Arc::new(move || readiness(&probes.probes(), starting.started.load(Ordering::Relaxed))),
        journal,
        otlp: Arc::new(move || {
            let status = otlp.as_ref().map(|otlp| serde_json::to_value(otlp.status()));
            status.and_then(Result::ok).unwrap_or(Value::Null)
        }),
    };
    Ok(http::serve(options, services, stop).await?)
}

/// Whether the agent observes what begins from now on. On Windows the provider sessions suffice without the kernel
/// logger's session.
fn readiness(probes: &[ProbeStatus], started: bool) -> Result<(), String> {
    let mut essential = probes
        .iter()
        .filter(|probe| matches!(probe.probe.as_str(), "exec" | "etw"));
    match essential.any(|probe| probe.attached) {
        true if started => Ok(()),
        // Attaching the others takes a second or more, and until then the pipeline does not run.
        true => Err("not all probes are attached yet".to_owned()),
        false => Err("the process probe is not attached".to_owned()),
    }
}

/// `/healthz` fails when the pipeline has not moved for this long.
const STALLED_SECONDS: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_that_nothing_is_missed_any_more() {
        let exec = |attached| ProbeStatus {
            probe: "exec".to_owned(),
            hook: "tp_btf".to_owned(),
            attached,
            consequence: String::new(),
            hint: String::new(),
        };
        let reason = |probes: &[ProbeStatus], started| readiness(probes, started).err().unwrap_or_default();
        assert_eq!(reason(&[], false), "the process probe is not attached");
        assert_eq!(reason(&[exec(false)], true), "the process probe is not attached");
        assert_eq!(reason(&[exec(true)], false), "not all probes are attached yet");
        assert_eq!(reason(&[exec(true)], true), "");
    }
}
