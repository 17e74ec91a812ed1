//! Watches the CNI configuration and sends what it says as an event, at start and after every change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sandglass_model::{Body, Event};

use crate::cni_conf;
use crate::sources::{EventSender, clock};

/// The watching thread: it may block on the pipeline, so it is no task.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often the directory is looked at.
const PERIOD: Duration = Duration::from_secs(5);

impl Watch {
    /// Starts watching.
    pub fn start(options: cni_conf::Options, sender: EventSender) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("networks".into()).spawn(move || watch(&options, &sender, &stopped));
        match thread {
            Ok(thread) => Watch { stop, thread: Some(thread) },
            Err(error) => {
                tracing::warn!(%error, "cannot watch the CNI configuration: networks are not named");
                Watch { stop, thread: None }
            }
        }
    }

    /// Stops watching.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            // A panic there has been reported; it ends nothing else.
            let _ = thread.join();
        }
    }
}

fn watch(options: &cni_conf::Options, sender: &EventSender, stopped: &AtomicBool) {
    let mut watcher = cni_conf::Watcher::new(options.clone());
    while !stopped.load(Ordering::Relaxed) {
        if let Some(networks) = watcher.poll() {
            let event = Event { at: clock::now(), body: Body::NetworksConfigured { networks } };
            if sender.send(event).is_err() {
                return;
            }
        }
        std::thread::park_timeout(PERIOD);
    }
}
