//! The demo: real pod sandboxes on a private node, traced, shown and checked.
//!
//! The command line starts it and hands in the agent; it starts the node ([`crate::rig`]), makes and deletes pods on it
//! ([`crate::scenarios`]), prints each waterfall, and with `--once` holds every trace against the caller's own clock
//! ([`crate::verify`]). Whatever ends it (Ctrl-C, SIGTERM, an error, a panic), the node is taken down again.
//! Does not: know how the agent is built; it sees an [`Observer`].

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_model::id::RootId;
use sandglass_model::trace::Trace;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::pods::CallRecord;
use crate::rig::{Rig, RigError, RigOptions, TeardownError};
use crate::scenarios;
use crate::verify::network::{self, Seen};
use crate::verify::{self, Check, Report, Wrong};
use sandglass::cri::{Cri, CriError};
use sandglass::failure::{Advice, ExitReason, Failure};
use sandglass::grpc::CallError;

/// Options of the demo.
#[derive(Clone, Debug, Default)]
pub struct DemoOptions {
    /// Check everything and end, instead of staying up.
    pub once: bool,
    /// The node.
    pub rig: RigOptions,
}

/// The agent as the demo sees it. Dropping it stops the agent.
pub struct Observer {
    /// Address of the page.
    pub page: Option<String>,
    /// Where else to look: one line each.
    pub beside: Vec<String>,
    /// All traces so far, open ones too, in the order they began.
    pub traces: Box<dyn Fn() -> Vec<Arc<Trace>> + Send + Sync>,
    /// One trace as a waterfall for the terminal.
    pub waterfall: Box<dyn Fn(&Trace) -> String + Send + Sync>,
    /// Which traffic it sees here.
    pub seen: Seen,
    /// Whatever keeps the agent running.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

/// How the demo ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `--once`: every check passed.
    Passed,
    /// `--once`: some did not.
    Failed,
    /// By a signal.
    Interrupted,
}

/// Why the demo could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No node.
    #[error("cannot start the demo's node")]
    Rig(#[source] RigError),
    /// The agent did not start.
    #[error("cannot start the agent")]
    Agent(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The node's runtime does not answer.
    #[error("cannot reach the demo's containerd")]
    Cri(#[source] CriError),
    /// The node's runtime does not take the pause image.
    #[error("cannot query the demo's containerd for its pause image")]
    Image(#[source] CallError),
    /// Signals cannot be caught, so nothing could be cleaned up.
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
    /// The output cannot be written.
    #[error("cannot write the demo's output")]
    Output(#[source] io::Error),
    /// Something of the node is still there.
    #[error("the demo's node was not removed completely")]
    Teardown(#[source] TeardownError),
}

impl Advice for DemoError {
    fn hint(&self) -> Cow<'_, str> {
        match self {
            DemoError::Rig(error) => error.hint(),
            DemoError::Cri(error) => error.hint(),
            DemoError::Teardown(_) => "the next `make demo` tries again".into(),
            // A failed agent brings its own.
            DemoError::Agent(_) | DemoError::Image(_) | DemoError::Signals(_) | DemoError::Output(_) => "".into(),
        }
    }

    fn exit(&self) -> ExitReason {
        match self {
            DemoError::Rig(error) => error.exit(),
            DemoError::Agent(error) => error
                .downcast_ref::<Failure>()
                .map_or(ExitReason::Runtime, Failure::exit),
            _ => ExitReason::Runtime,
        }
    }
}

/// Shows the demo on `out`. `start_agent` is called when the node is up and before the first pod is made.
pub async fn run<W: Write>(
    options: &DemoOptions,
    out: &mut W,
    start_agent: impl AsyncFnOnce(&Rig) -> Result<Observer, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<Ended, DemoError> {
    // Caught from here on: a Ctrl-C while the node comes up ends the demo when it is up and can be taken down.
    let mut signals = Signals::catch().map_err(DemoError::Signals)?;
    say(
        out,
        "starting a private containerd, with its own network, images and state\n",
    )?;
    let rig_options = options.rig.clone();
    let rig = tokio::task::spawn_blocking(move || Rig::start(&rig_options))
        .await
        .map_err(|panic| DemoError::Agent(Box::new(panic)))?
        .map_err(DemoError::Rig)?;
    let shown = {
        let show = async {
            scenarios::wait_for_pause(&rig).await.map_err(DemoError::Image)?;
            let cri = Cri::connect(&rig.cri_socket().to_string_lossy(), Duration::from_secs(10)).await;
            let cri = Arc::new(cri.map_err(DemoError::Cri)?);
            scenarios::warm_up(&cri, &rig).await.map_err(DemoError::Cri)?;
            let observer = start_agent(&rig).await.map_err(DemoError::Agent)?;
            show(options, out, &rig, &cri, &observer).await
        };
        tokio::select! {
            shown = show => shown,
            () = signals.any() => Ok(Ended::Interrupted),
        }
    };
    let removed = tokio::task::spawn_blocking(move || rig.stop())
        .await
        .map_err(|panic| DemoError::Agent(Box::new(panic)))?;
    let ended = shown?;
    removed.map_err(DemoError::Teardown)?;
    if ended == Ended::Interrupted {
        say(out, "\nthe demo's node is gone again\n")?;
    }
    Ok(ended)
}

async fn show<W: Write>(
    options: &DemoOptions,
    out: &mut W,
    rig: &Rig,
    cri: &Arc<Cri>,
    observer: &Observer,
) -> Result<Ended, DemoError> {
    say(out, &addresses(observer))?;
    let mut show = Show {
        rig,
        cri,
        observer,
        records: Vec::new(),
        printed: Vec::new(),
    };
    let mut checks = show.round(1, out).await?;
    say(out, &format!("\n{}", checks.text(options.once)))?;
    if options.once {
        let mut round = 1;
        while checks.only_durations_failed() && round < ROUNDS {
            say(
                out,
                "\nonly durations disagree, as on a busy machine: everything again, with new pods\n",
            )?;
            round += 1;
            checks = show.round(round, out).await?;
            say(out, &format!("\n{}", checks.text(true)))?;
        }
        return Ok(if checks.passed() { Ended::Passed } else { Ended::Failed });
    }
    say(out, &format!("\n{}", addresses(observer)))?;
    say(out, "Ctrl-C ends the demo and removes everything it made\n")?;
    std::future::pending().await
}

/// Every address that a person may open, a line each.
fn addresses(observer: &Observer) -> String {
    let page = observer.page.iter().map(|page| format!("the page is at {page}\n"));
    page.chain(observer.beside.iter().map(|line| format!("{line}\n")))
        .collect()
}

/// What is shown, and the calls so far.
struct Show<'a> {
    rig: &'a Rig,
    cri: &'a Arc<Cri>,
    observer: &'a Observer,
    records: Vec<CallRecord>,
    printed: Vec<RootId>,
}

impl Show<'_> {
    /// Makes and deletes the pods of one round, prints their traces and checks them.
    async fn round<W: Write>(&mut self, round: u32, out: &mut W) -> Result<Checks, DemoError> {
        let first = self.records.len();
        // Empty where they cannot be read: the check then fails with the reason.
        let before = self.rig.runtime_metrics().unwrap_or_default();
        for pods in scenarios::steps(round) {
            let names: Vec<&str> = pods.iter().map(|pod| pod.identity.name.as_str()).collect();
            say(out, &format!("\nmaking {}\n", names.join(", ")))?;
            let made = scenarios::make(self.cri, self.rig, pods).await;
            wait_until_closed(self.observer, &made).await;
            self.records.extend(made);
            print_new(out, self.observer, &mut self.printed)?;
        }
        say(out, &format!("\ndeleting {}\n", scenarios::DELETED.join(", ")))?;
        for record in &mut self.records[first..] {
            if scenarios::DELETED.contains(&record.pod.identity.name.as_str()) {
                scenarios::delete(self.cri, record).await.map_err(DemoError::Cri)?;
            }
        }
        let checks = settle(self.rig, self.observer, &self.records, first, &before).await;
        print_new(out, self.observer, &mut self.printed)?;
        Ok(checks)
    }
}

/// Prints the traces that closed since the last time.
fn print_new<W: Write>(out: &mut W, observer: &Observer, printed: &mut Vec<RootId>) -> Result<(), DemoError> {
    for trace in (observer.traces)() {
        if trace.closed && !printed.contains(&trace.root_id()) && !network::is_of_the_node(&trace) {
            printed.push(trace.root_id());
            say(out, &format!("\n{}", (observer.waterfall)(&trace)))?;
        }
    }
    Ok(())
}

/// Waits a bounded time until the traces of `records` are closed; what is still open then is shown later.
async fn wait_until_closed(observer: &Observer, records: &[CallRecord]) {
    let deadline = Instant::now() + Duration::from_secs(12);
    while Instant::now() < deadline {
        let traces = (observer.traces)();
        if records
            .iter()
            .all(|record| verify::creation(&traces, record).is_ok_and(|trace| trace.closed))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Everything that `--once` looks at.
struct Checks {
    reports: Vec<Report>,
    containerd: Vec<Check>,
    strangers: usize,
}

impl Checks {
    /// Of the records from `first` on, with containerd's metrics `before` them; its counts and other work are of all.
    fn of(rig: &Rig, observer: &Observer, records: &[CallRecord], first: usize, before: &str) -> Checks {
        let traces = &(observer.traces)();
        let containerd = match rig.runtime_metrics() {
            Ok(metrics) => verify::clock::containerd(traces, records, &metrics, first, before),
            Err(error) => vec![Check {
                what: "containerd's metrics",
                result: Err(error.to_string().into()),
            }],
        };
        Checks {
            reports: verify::verify(traces, &records[first..], observer.seen),
            containerd,
            strangers: verify::strangers(traces, records),
        }
    }

    /// All checks passed, those aside that could not be judged, and nothing was traced that nobody made.
    fn passed(&self) -> bool {
        self.strangers == 0 && self.all().all(|check| check.result.is_ok() || check.is_unjudged())
    }

    /// What was traced is all there and in order; durations are off, or could not be judged.
    fn only_durations_failed(&self) -> bool {
        let mut wrong = self.all().filter_map(|check| check.result.as_ref().err()).peekable();
        self.strangers == 0 && wrong.peek().is_some() && wrong.all(Wrong::is_of_durations)
    }

    fn all(&self) -> impl Iterator<Item = &Check> {
        let reports = self.reports.iter().flat_map(|report| &report.checks);
        reports.chain(&self.containerd)
    }

    fn text(&self, verbose: bool) -> String {
        let mut text = String::from("every sandbox against its caller's own clock\n");
        for report in &self.reports {
            text.push_str(&report.text(verbose));
        }
        for check in &self.containerd {
            text.push_str(&check.text());
        }
        match self.strangers {
            0 => text.push_str("ok     strangers: no trace of other work\n"),
            number => text.push_str(&format!(
                "FAILED strangers: {number} traces of other work on this node\n"
            )),
        }
        text
    }
}

/// Waits for the last traces: the runtime cleans up behind calls that timed out, and the agent holds events back for a
/// moment to put them in order.
async fn settle(rig: &Rig, observer: &Observer, records: &[CallRecord], first: usize, before: &str) -> Checks {
    let deadline = Instant::now() + SETTLE;
    loop {
        let checks = Checks::of(rig, observer, records, first, before);
        // A closed trace does not change any more, so neither does a duration that is off.
        if checks.passed() || checks.only_durations_failed() || Instant::now() > deadline {
            return checks;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn say<W: Write>(out: &mut W, text: &str) -> Result<(), DemoError> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(DemoError::Output)
}

/// The signals that end a program which has something to clean up.
struct Signals([Signal; 3]);

impl Signals {
    fn catch() -> io::Result<Signals> {
        Ok(Signals([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// How often `--once` measures before it takes a disagreement of durations for the agent's. Facts are looked at once.
const ROUNDS: u32 = 3;
/// Longer than the agent's own deadlines for a trace that is not heard of any more.
const SETTLE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(wrong: &[Wrong]) -> Checks {
        let passed = Check {
            what: "trace",
            result: Ok(String::new()),
        };
        let failed = wrong.iter().map(|wrong| Check {
            what: "other",
            result: Err(wrong.clone()),
        });
        Checks {
            reports: vec![Report {
                pod: "shop/cart-0".to_owned(),
                sandbox: String::new(),
                checks: failed.chain([passed]).collect(),
            }],
            containerd: Vec::new(),
            strangers: 0,
        }
    }

    #[test]
    fn only_durations_are_measured_again() {
        let fact = || Wrong::Fact("begins before the call".to_owned());
        let duration = || Wrong::Duration("too short".to_owned());
        let busy = || Wrong::Busy("too short".to_owned());
        assert!(checks(&[]).passed() && !checks(&[]).only_durations_failed());
        assert!(!checks(&[duration()]).passed() && checks(&[duration(), busy()]).only_durations_failed());
        // What could not be judged is measured again, and is no failure of its own.
        assert!(checks(&[busy()]).passed() && checks(&[busy()]).only_durations_failed());
        assert!(!checks(&[fact(), duration()]).only_durations_failed() && !checks(&[fact()]).passed());
    }

    #[test]
    fn a_stranger_fails_and_is_not_measured_again() {
        let mut checks = checks(&[Wrong::Duration("too short".to_owned())]);
        checks.strangers = 1;
        assert!(!checks.only_durations_failed() && !checks.passed());
        checks.reports.clear();
        assert!(!checks.passed());
    }
}
