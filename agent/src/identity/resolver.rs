//! The task with the connection to the container runtime: lists the sandboxes once, then resolves requests one at a time.
//!
//! Reconnects with growing pauses. A sandbox that the runtime does not know yet is requested again after each pause of
//! [`IdentityOptions::ask_again`](super::IdentityOptions::ask_again).

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandglass_model::SandboxId;
use sandglass_model::event::SandboxDescription;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::IdentityOptions;
use super::emitter::RuntimeResponse;
use super::metrics::{IdentityMetrics, Outcome};
use super::{describe, older};
use crate::cri::{Cri, CriError, Endpoint, RuntimeChoice};
use crate::failure::{Advice, causes};
use crate::health::{Health, ProbeStatus};

/// A sandbox to resolve: its pod is requested from the runtime.
struct PendingRequest {
    sandbox: SandboxId,
    /// How often the runtime did not know this sandbox.
    unknown: usize,
    due: Instant,
}

/// The task.
pub(super) struct Resolver {
    options: IdentityOptions,
    health: Health,
    metrics: IdentityMetrics,
    requests: mpsc::Receiver<SandboxId>,
    pending: VecDeque<PendingRequest>,
    /// Sandboxes older than the agent whose network namespace is not yet located.
    older: VecDeque<SandboxId>,
    responses: mpsc::Sender<RuntimeResponse>,
    started_unix_ns: u64,
    runtime_listed: bool,
}

/// Why a conversation with the runtime ended.
enum End {
    /// The [`super::Identity`] or the pipeline is gone.
    Stopped,
    /// The connection broke, or could not be made.
    Broken(CriError),
}

impl Resolver {
    pub(super) fn new(
        options: IdentityOptions,
        health: Health,
        metrics: IdentityMetrics,
        requests: mpsc::Receiver<SandboxId>,
        responses: mpsc::Sender<RuntimeResponse>,
    ) -> Resolver {
        Resolver {
            options,
            health,
            metrics,
            requests,
            pending: VecDeque::new(),
            older: VecDeque::new(),
            responses,
            started_unix_ns: unix_now_ns(),
            runtime_listed: false,
        }
    }

    pub(super) async fn run(mut self) {
        let (shortest, longest) = self.options.backoff;
        let mut pause = shortest;
        let mut last = String::new();
        loop {
            let status = match self.options.runtime.endpoint(&self.options.root) {
                None => self.no_runtime(),
                Some(endpoint) => match self.serve(endpoint, &mut pause).await {
                    End::Stopped => return,
                    End::Broken(error) => without(&causes(&error), &error.hint()),
                },
            };
            if last != status.consequence {
                tracing::warn!(
                    probe = "identity",
                    consequence = status.consequence,
                    hint = status.hint,
                    "no container runtime"
                );
                last.clone_from(&status.consequence);
            }
            self.health.set_probe(status);
            if self.rest(pause).await.is_err() {
                return;
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn no_runtime(&self) -> ProbeStatus {
        match self.options.runtime {
            RuntimeChoice::Off => without("switched off by configuration", "set the runtime's endpoint to auto"),
            RuntimeChoice::Auto | RuntimeChoice::At(_) => without(
                "no CRI socket found at the well-known paths",
                "set the runtime's endpoint, or mount its socket into the agent's container",
            ),
        }
    }

    /// Connects, lists the sandboxes once, then resolves requests until the connection breaks.
    async fn serve(&mut self, endpoint: Endpoint, pause: &mut Duration) -> End {
        let cri = match Cri::connect_to(endpoint, self.options.timeout).await {
            Ok(cri) => cri,
            Err(error) => return End::Broken(error),
        };
        if !self.runtime_listed
            && let Err(end) = self.list(&cri).await
        {
            return end;
        }
        self.runtime_listed = true;
        *pause = self.options.backoff.0;
        self.health.set_probe(ProbeStatus {
            probe: PROBE.to_owned(),
            hook: "cri".to_owned(),
            attached: true,
            consequence: String::new(),
            hint: String::new(),
        });
        tracing::info!(endpoint = %cri.endpoint(), "asking the container runtime");
        self.resolve_all(&cri).await
    }

    async fn list(&mut self, cri: &Cri) -> Result<(), End> {
        let sandboxes = cri.list_pod_sandbox().await.map_err(End::Broken)?;
        for sandbox in sandboxes.into_iter().take(MAX_LISTED) {
            let Some(mut description) = describe::listed(sandbox) else {
                continue;
            };
            // The agent observed the creation of younger ones; this runtime was found late.
            description.preexisting = description.created_unix_ns < self.started_unix_ns;
            if description.preexisting && description.ready && self.options.namespaces.is_some() {
                self.older.push_back(description.sandbox.clone());
            }
            self.send(RuntimeResponse::Described(description)).await?;
        }
        Ok(())
    }

    async fn send(&self, response: RuntimeResponse) -> Result<(), End> {
        self.responses.send(response).await.map_err(|_| End::Stopped)
    }

    async fn resolve_all(&mut self, cri: &Cri) -> End {
        loop {
            let due = self.pending.iter().map(|request| request.due).min();
            tokio::select! {
                request = self.requests.recv() => match request {
                    Some(sandbox) => self.enqueue(sandbox),
                    None => return End::Stopped,
                },
                () = at(due) => {
                    if let Err(end) = self.resolve_next(cri).await {
                        return end;
                    }
                }
                () = std::future::ready(()), if !self.older.is_empty() => {
                    if let Err(end) = self.locate_next(cri).await {
                        return end;
                    }
                }
            }
        }
    }

    async fn resolve_next(&mut self, cri: &Cri) -> Result<(), End> {
        let now = Instant::now();
        let Some(index) = self.pending.iter().position(|request| request.due <= now) else {
            return Ok(());
        };
        let Some(mut request) = self.pending.remove(index) else {
            return Ok(());
        };
        match cri.pod_sandbox_status(&request.sandbox.0, false).await {
            Ok(response) => match response.status.and_then(describe::status) {
                // The runtime accepts a short id and answers with the full one; the correlator knows the former.
                Some(description) => {
                    self.metrics.add(Outcome::Answered);
                    let description = SandboxDescription {
                        sandbox: request.sandbox,
                        ..description
                    };
                    self.send(RuntimeResponse::Described(description)).await?;
                }
                None => self.metrics.add(Outcome::Failed),
            },
            Err(error) if error.is_not_found() => match self.options.ask_again.get(request.unknown) {
                Some(pause) => {
                    request.unknown += 1;
                    request.due = now + *pause;
                    self.pending.push_back(request);
                }
                None => self.metrics.add(Outcome::Unknown),
            },
            Err(error) if error.status().is_some() => {
                tracing::debug!(error = causes(&error), "the container runtime refused an answer");
                self.metrics.add(Outcome::Failed);
            }
            Err(error) => {
                // Requested again when the runtime is back.
                self.pending.push_front(request);
                return Err(End::Broken(error));
            }
        }
        Ok(())
    }

    /// Locates the network namespace of an older sandbox. Without it the sandbox's traffic is attributed to the node;
    /// the outcome is counted, nothing else is affected.
    async fn locate_next(&mut self, cri: &Cri) -> Result<(), End> {
        let Some(sandbox) = self.older.pop_front() else {
            return Ok(());
        };
        let outcome = match cri.pod_sandbox_status(&sandbox.0, true).await {
            Ok(response) => match older::place(sandbox, &response) {
                Some(Ok(place)) => return self.send(RuntimeResponse::Namespace(place)).await,
                Some(Err(older::OnNode)) => Outcome::Answered,
                None => Outcome::Failed,
            },
            Err(error) if error.is_not_found() => Outcome::Unknown,
            Err(error) if error.status().is_some() => Outcome::Failed,
            Err(error) => {
                // Not requested again: if this sandbox broke the connection, the others would never be located.
                self.metrics.add(Outcome::Failed);
                return Err(End::Broken(error));
            }
        };
        self.metrics.add(outcome);
        Ok(())
    }

    /// Waits and queues requests meanwhile. `Err` when the [`super::Identity`] is gone.
    async fn rest(&mut self, pause: Duration) -> Result<(), ()> {
        let end = Instant::now() + pause;
        loop {
            tokio::select! {
                request = self.requests.recv() => match request {
                    Some(sandbox) => self.enqueue(sandbox),
                    None => return Err(()),
                },
                () = tokio::time::sleep_until(end) => return Ok(()),
            }
        }
    }

    fn enqueue(&mut self, sandbox: SandboxId) {
        if self.pending.iter().any(|request| request.sandbox == sandbox) {
            return;
        }
        if self.pending.len() >= MAX_PENDING {
            self.metrics.add(Outcome::Shed);
            return;
        }
        self.pending.push_back(PendingRequest {
            sandbox,
            unknown: 0,
            due: Instant::now(),
        });
    }
}

/// Ready at `due`; never without one.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

pub(super) fn without(why: &str, hint: &str) -> ProbeStatus {
    ProbeStatus {
        probe: PROBE.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("no labels, sandboxes older than the agent are not listed: {why}"),
        hint: hint.to_owned(),
    }
}

fn unix_now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Name in [`ProbeStatus`].
const PROBE: &str = "identity";
/// Most pending requests, in the channel and again in the task.
pub(super) const MAX_PENDING: usize = 1024;
/// Most sandboxes taken from the first list.
const MAX_LISTED: usize = 4096;
