//! Watches the CNI configuration: sends its networks and what is wrong with it as events, at start and after every change.
//!
//! Started by the app. The correlator says with the problems why a sandbox failed for which no plugin ran; `CniState` shows them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use sandglass_model::cni::ConfigProblem;
use sandglass_model::{Body, Event};

use crate::cni_conf::{CniOptions, Problem, Watch};
use crate::cni_state::CniState;
use crate::sources::{EventSender, clock};

/// The watching thread. It may block on the pipeline, so it is not a task.
#[derive(Debug)]
pub struct NetworkWatch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often the directory is read.
const PERIOD: Duration = Duration::from_secs(5);

impl NetworkWatch {
    /// Starts watching.
    pub fn start(options: CniOptions, sender: EventSender, state: CniState) -> NetworkWatch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("networks".into())
            .spawn(move || watch(&options, &sender, &state, &stopped));
        match thread {
            Ok(thread) => NetworkWatch {
                stop,
                thread: Some(thread),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot watch the CNI configuration: networks are not named");
                NetworkWatch { stop, thread: None }
            }
        }
    }

    /// Stops watching.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            // A panic there has been logged; the agent stops all the same.
            let _ = thread.join();
        }
    }
}

fn watch(options: &CniOptions, sender: &EventSender, state: &CniState, stopped: &AtomicBool) {
    let mut watcher = Watch::new(options.clone());
    let mut sent: Vec<ConfigProblem> = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        let networks = watcher.poll();
        let changed = watcher
            .changed()
            .and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
        let changed_ns = changed.map_or(0, |changed| u64::try_from(changed.as_nanos()).unwrap_or(u64::MAX));
        state.judged(watcher.problems(), changed_ns, clock::anchor());
        let problems: Vec<ConfigProblem> = watcher.problems().iter().filter_map(Problem::to_event).collect();
        let judged = (problems != sent).then(|| Body::CniConfigJudged {
            problems: problems.clone(),
        });
        sent = problems;
        let networks = networks.map(|networks| Body::NetworksConfigured { networks });
        for body in networks.into_iter().chain(judged) {
            let at = clock::now();
            if sender.send(Event { at, body }).is_err() {
                return;
            }
        }
        std::thread::park_timeout(PERIOD);
    }
}
