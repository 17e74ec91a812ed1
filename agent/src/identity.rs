//! Asks the container runtime who sandboxes belong to; its answers enter the pipeline as events.
//!
//! Started by the app beside the sources. At its start it lists the sandboxes that are older than the agent, and asks
//! where their network namespaces are: no plugin has named those to the agent. Later it answers the correlator's
//! questions about sandboxes that have come into being (labels, mostly: `CNI_ARGS` already names the pod). Everything
//! works without a runtime too, only with less. Does not: block the pipeline (questions beyond the bound are shed and
//! counted), or block the asynchronous runtime (a thread of its own does the blocking send).

mod describe;
mod older;
#[cfg(test)]
#[cfg(unix)]
mod tests;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sandglass_model::event::SandboxDescription;
use sandglass_model::{Body, Event, SandboxId, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cri::{Cri, CriError, Endpoint, RuntimeChoice};
use crate::failure::{Advice, causes};
use crate::health::{Health, ProbeStatus};
use crate::sources::{EventSender, NamespaceLook, NamespacePlace};

/// How to reach the runtime.
#[derive(Clone, Debug)]
pub struct IdentityOptions {
    /// Which runtime.
    pub runtime: RuntimeChoice,
    /// Deadline of each call.
    pub timeout: Duration,
    /// Shortest and longest pause between attempts to connect.
    pub backoff: (Duration, Duration),
    /// Pauses after which a sandbox that the runtime did not know yet is asked for again.
    pub ask_again: Vec<Duration>,
    /// Where well-known sockets are looked for, normally `/`.
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
            // The correlator asks when it sees the sandbox run; the runtime may record it later than that.
            ask_again: [1, 4, 15, 60, 240].map(Duration::from_secs).to_vec(),
            root: PathBuf::from("/"),
            namespaces: None,
        }
    }
}

/// The questions' end. When the last one is dropped, everything behind it stops.
#[derive(Clone, Debug)]
pub struct Identity {
    questions: mpsc::Sender<SandboxId>,
    metrics: IdentityMetrics,
}

/// What became of the questions.
#[derive(Clone, Debug, Default)]
pub struct IdentityMetrics {
    questions: Family<OutcomeLabel, Counter>,
}

/// Label: what became of a question.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// [`Outcome::as_str`].
    pub outcome: &'static str,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The runtime described the sandbox.
    Answered,
    /// The runtime did not know it, however often it was asked.
    Unknown,
    /// The runtime refused, or its answer made no sense.
    Failed,
    /// Too many questions were waiting.
    Shed,
}

impl Outcome {
    /// Value of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Unknown => "unknown",
            Outcome::Failed => "failed",
            Outcome::Shed => "shed",
        }
    }
}

impl IdentityMetrics {
    /// Registers the counters; all outcomes start at 0.
    pub fn register(&self, registry: &mut Registry) {
        for outcome in [Outcome::Answered, Outcome::Unknown, Outcome::Failed, Outcome::Shed] {
            let _ = self.count(outcome);
        }
        registry.register(
            "identity_questions",
            "Sandboxes the container runtime was asked about, by outcome",
            self.questions.clone(),
        );
    }

    /// How many questions came to this.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.questions.get_or_create(&label(outcome)).get()
    }

    fn add(&self, outcome: Outcome) {
        self.questions.get_or_create(&label(outcome)).inc();
    }
}

impl Identity {
    /// Starts asking. Needs a tokio runtime around it. `clock` gives the time events are stamped with.
    #[must_use]
    pub fn start(options: IdentityOptions, sender: EventSender, health: Health, clock: fn() -> Timestamp) -> Identity {
        let (questions, asked) = mpsc::channel(MAX_WAITING);
        let metrics = IdentityMetrics::default();
        let delivery = Delivery {
            sender,
            clock,
            namespaces: options.namespaces.clone(),
            metrics: metrics.clone(),
        };
        match delivery.start() {
            Ok(answers) => {
                let asking = Asking {
                    runtime_listed: false,
                    started_unix_ns: unix_now_ns(),
                    options,
                    health,
                    metrics: metrics.clone(),
                    asked,
                    waiting: VecDeque::new(),
                    older: VecDeque::new(),
                    answers,
                };
                tokio::spawn(asking.run());
            }
            Err(error) => health.set_probe(without(
                &format!("cannot start a thread: {error}"),
                "raise the limit on threads",
            )),
        }
        Identity { questions, metrics }
    }

    /// Asks who a sandbox belongs to. Never blocks; the answer, if any, arrives as an event.
    pub fn ask(&self, sandbox: SandboxId) {
        if self.questions.try_send(sandbox).is_err() {
            self.metrics.add(Outcome::Shed);
        }
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &IdentityMetrics {
        &self.metrics
    }
}

// === the thread that delivers ===

/// What the runtime told.
#[derive(Debug)]
enum Answer {
    Described(SandboxDescription),
    /// Of a sandbox that was described before.
    Namespace(NamespacePlace),
}

/// What may block: on the pipeline, or on the path of a namespace.
struct Delivery {
    sender: EventSender,
    clock: fn() -> Timestamp,
    namespaces: Option<NamespaceLook>,
    metrics: IdentityMetrics,
}

impl Delivery {
    fn start(self) -> std::io::Result<mpsc::Sender<Answer>> {
        let (answers, mut given) = mpsc::channel(16);
        std::thread::Builder::new().name("identity".to_owned()).spawn(move || {
            while let Some(answer) = given.blocking_recv() {
                let Some(body) = self.body(answer) else { continue };
                let at = (self.clock)();
                if self.sender.send(Event { at, body }).is_err() {
                    break;
                }
            }
        })?;
        Ok(answers)
    }

    fn body(&self, answer: Answer) -> Option<Body> {
        match answer {
            Answer::Described(description) => Some(Body::SandboxDescribed(Box::new(description))),
            Answer::Namespace(place) => {
                let found = self.namespaces.as_ref()?.at(&place);
                self.metrics.add(match found {
                    Some(_) => Outcome::Answered,
                    None => Outcome::Failed,
                });
                if found.is_none() {
                    tracing::debug!(sandbox = %place.sandbox.0, path = place.path, "cannot look at an older sandbox's network namespace");
                }
                found.map(|netns| Body::NetnsObserved(Box::new(netns)))
            }
        }
    }
}

// === the task that asks ===

struct Question {
    sandbox: SandboxId,
    /// How often the runtime said that it does not know this sandbox.
    unknown: usize,
    due: Instant,
}

struct Asking {
    options: IdentityOptions,
    health: Health,
    metrics: IdentityMetrics,
    asked: mpsc::Receiver<SandboxId>,
    waiting: VecDeque<Question>,
    /// Sandboxes older than the agent, whose network namespace is to be asked for.
    older: VecDeque<SandboxId>,
    answers: mpsc::Sender<Answer>,
    started_unix_ns: u64,
    runtime_listed: bool,
}

/// Why asking ended for now.
enum End {
    /// Nobody asks any more, or nobody listens.
    Stopped,
    /// The runtime is away.
    Broken(CriError),
}

impl Asking {
    async fn run(mut self) {
        let (shortest, longest) = self.options.backoff;
        let mut pause = shortest;
        let mut last = String::new();
        loop {
            let status = match self.options.runtime.endpoint(&self.options.root) {
                None => self.no_runtime(),
                Some(endpoint) => match self.converse(endpoint, &mut pause).await {
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

    /// Connects, lists once, then answers questions until the connection breaks.
    async fn converse(&mut self, endpoint: Endpoint, pause: &mut Duration) -> End {
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
        self.answer(&cri).await
    }

    async fn list(&mut self, cri: &Cri) -> Result<(), End> {
        let sandboxes = cri.list_pod_sandbox().await.map_err(End::Broken)?;
        for sandbox in sandboxes.into_iter().take(MAX_LISTED) {
            let Some(mut description) = describe::listed(sandbox) else {
                continue;
            };
            // Younger ones were seen coming into being: this runtime was found late.
            description.preexisting = description.created_unix_ns < self.started_unix_ns;
            if description.preexisting && description.ready && self.options.namespaces.is_some() {
                self.older.push_back(description.sandbox.clone());
            }
            self.tell(Answer::Described(description)).await?;
        }
        Ok(())
    }

    async fn tell(&self, answer: Answer) -> Result<(), End> {
        self.answers.send(answer).await.map_err(|_| End::Stopped)
    }

    async fn answer(&mut self, cri: &Cri) -> End {
        loop {
            let due = self.waiting.iter().map(|question| question.due).min();
            tokio::select! {
                asked = self.asked.recv() => match asked {
                    Some(sandbox) => self.enqueue(sandbox),
                    None => return End::Stopped,
                },
                () = at(due) => {
                    if let Err(end) = self.answer_one(cri).await {
                        return end;
                    }
                }
                () = std::future::ready(()), if !self.older.is_empty() => {
                    if let Err(end) = self.place_one(cri).await {
                        return end;
                    }
                }
            }
        }
    }

    async fn answer_one(&mut self, cri: &Cri) -> Result<(), End> {
        let now = Instant::now();
        let Some(index) = self.waiting.iter().position(|question| question.due <= now) else {
            return Ok(());
        };
        let Some(mut question) = self.waiting.remove(index) else {
            return Ok(());
        };
        match cri.pod_sandbox_status(&question.sandbox.0, false).await {
            Ok(answer) => match answer.status.and_then(describe::asked) {
                // The runtime may complete a short id; the answer is for the id that was asked.
                Some(description) => {
                    self.metrics.add(Outcome::Answered);
                    let description = SandboxDescription {
                        sandbox: question.sandbox,
                        ..description
                    };
                    self.tell(Answer::Described(description)).await?;
                }
                None => self.metrics.add(Outcome::Failed),
            },
            Err(error) if error.is_not_found() => match self.options.ask_again.get(question.unknown) {
                Some(pause) => {
                    question.unknown += 1;
                    question.due = now + *pause;
                    self.waiting.push_back(question);
                }
                None => self.metrics.add(Outcome::Unknown),
            },
            Err(error) if error.status().is_some() => {
                tracing::debug!(error = causes(&error), "the container runtime refused an answer");
                self.metrics.add(Outcome::Failed);
            }
            Err(error) => {
                // Not the sandbox's fault: it is asked again when the runtime is back.
                self.waiting.push_front(question);
                return Err(End::Broken(error));
            }
        }
        Ok(())
    }

    /// Asks where the network namespace of an older sandbox is. Without an answer its traffic counts as the node's: that
    /// is counted, and nothing else suffers from it.
    async fn place_one(&mut self, cri: &Cri) -> Result<(), End> {
        let Some(sandbox) = self.older.pop_front() else {
            return Ok(());
        };
        let outcome = match cri.pod_sandbox_status(&sandbox.0, true).await {
            Ok(answer) => match older::place(sandbox, &answer) {
                Some(Ok(place)) => return self.tell(Answer::Namespace(place)).await,
                Some(Err(older::OnNode)) => Outcome::Answered,
                None => Outcome::Failed,
            },
            Err(error) if error.is_not_found() => Outcome::Unknown,
            Err(error) if error.status().is_some() => Outcome::Failed,
            Err(error) => {
                // Not asked again: were this sandbox the reason, the others would never have their turn.
                self.metrics.add(Outcome::Failed);
                return Err(End::Broken(error));
            }
        };
        self.metrics.add(outcome);
        Ok(())
    }

    /// Waits, taking questions meanwhile. `Err` when nobody asks any more.
    async fn rest(&mut self, pause: Duration) -> Result<(), ()> {
        let end = Instant::now() + pause;
        loop {
            tokio::select! {
                asked = self.asked.recv() => match asked {
                    Some(sandbox) => self.enqueue(sandbox),
                    None => return Err(()),
                },
                () = tokio::time::sleep_until(end) => return Ok(()),
            }
        }
    }

    fn enqueue(&mut self, sandbox: SandboxId) {
        if self.waiting.iter().any(|question| question.sandbox == sandbox) {
            return;
        }
        if self.waiting.len() >= MAX_WAITING {
            self.metrics.add(Outcome::Shed);
            return;
        }
        self.waiting.push_back(Question {
            sandbox,
            unknown: 0,
            due: Instant::now(),
        });
    }
}

fn label(outcome: Outcome) -> OutcomeLabel {
    OutcomeLabel {
        outcome: outcome.as_str(),
    }
}

/// Ready at `due`; never when there is nothing due.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn without(why: &str, hint: &str) -> ProbeStatus {
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
/// Most questions that wait, once in the channel and once in the task.
const MAX_WAITING: usize = 1024;
/// Most sandboxes that are taken from the first list.
const MAX_LISTED: usize = 4096;
