//! Resolves sandboxes to pods through the container runtime; its responses enter the pipeline as events.
//!
//! Started by the app beside the sources. At its start it lists the sandboxes that are older than the agent and locates
//! their network namespaces, which no plugin has named to the agent. Later it resolves sandboxes on the correlator's
//! request, mostly for labels: `CNI_ARGS` already names the pod. All else works without a runtime. Does not: block the
//! pipeline, or block the asynchronous runtime (a thread does the blocking send).

mod describe;
mod emitter;
mod metrics;
mod older;
mod resolver;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use sandglass_model::{SandboxId, Timestamp};
use tokio::sync::mpsc;

use crate::cri::RuntimeChoice;
use crate::health::Health;
use crate::sources::{EventSender, NamespaceLook};
use emitter::Emitter;
use resolver::{MAX_PENDING, Resolver, without};

pub use metrics::{IdentityMetrics, Outcome, OutcomeLabel};

/// How the runtime is reached, and how often a request is repeated.
#[derive(Clone, Debug)]
pub struct IdentityOptions {
    /// Which runtime.
    pub runtime: RuntimeChoice,
    /// Deadline of each call.
    pub timeout: Duration,
    /// Shortest and longest pause between attempts to connect.
    pub backoff: (Duration, Duration),
    /// Pauses after which a sandbox that the runtime did not know is requested again.
    pub ask_again: Vec<Duration>,
    /// Below which directory the default sockets are looked for, normally `/`.
    pub root: PathBuf,
    /// Looks at the network namespaces of sandboxes that are older than the agent, where the system has such.
    pub namespaces: Option<NamespaceLook>,
}

impl IdentityOptions {
    /// Options with the built-in pauses; `timeout` holds for each call.
    #[must_use]
    pub fn new(runtime: RuntimeChoice, timeout: Duration) -> IdentityOptions {
        IdentityOptions {
            runtime,
            timeout,
            backoff: (Duration::from_secs(1), Duration::from_secs(60)),
            // The correlator requests a sandbox when it sees it run; the runtime may record it later than that.
            ask_again: [1, 4, 15, 60, 240].map(Duration::from_secs).to_vec(),
            root: PathBuf::from("/"),
            namespaces: None,
        }
    }
}

/// A handle for requests; cheap to clone. When the last one is dropped, task and thread end.
#[derive(Clone, Debug)]
pub struct Identity {
    requests: mpsc::Sender<SandboxId>,
    metrics: IdentityMetrics,
}

impl Identity {
    /// Starts the task and the thread. Panics outside of a tokio runtime. Events are stamped with `clock`.
    #[must_use]
    pub fn start(options: IdentityOptions, sender: EventSender, health: Health, clock: fn() -> Timestamp) -> Identity {
        let (requests, received) = mpsc::channel(MAX_PENDING);
        let metrics = IdentityMetrics::default();
        let emitter = Emitter {
            sender,
            clock,
            namespaces: options.namespaces.clone(),
            metrics: metrics.clone(),
        };
        match emitter.start() {
            Ok(responses) => {
                let resolver = Resolver::new(options, health, metrics.clone(), received, responses);
                tokio::spawn(resolver.run());
            }
            Err(error) => health.set_probe(without(
                &format!("cannot start a thread: {error}"),
                "raise the limit on threads",
            )),
        }
        Identity { requests, metrics }
    }

    /// Requests the pod of a sandbox. Never blocks: a request beyond the bound is shed and counted. The answer, if any,
    /// enters the pipeline as an event.
    pub fn resolve(&self, sandbox: SandboxId) {
        if self.requests.try_send(sandbox).is_err() {
            self.metrics.add(Outcome::Shed);
        }
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &IdentityMetrics {
        &self.metrics
    }
}
