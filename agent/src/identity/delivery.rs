//! The thread that sends answers into the pipeline. It may block there, or on the path of a namespace; the task must not.

use sandglass_model::event::SandboxDescription;
use sandglass_model::{Body, Event, Timestamp};
use tokio::sync::mpsc;

use super::metrics::{IdentityMetrics, Outcome};
use crate::sources::{EventSender, NamespaceLook, NamespacePlace};

/// An answer of the runtime.
#[derive(Debug)]
pub(super) enum Answer {
    Described(SandboxDescription),
    /// Where the namespace of a sandbox is that was described before.
    Namespace(NamespacePlace),
}

/// Sends answers as events.
pub(super) struct Delivery {
    pub(super) sender: EventSender,
    pub(super) clock: fn() -> Timestamp,
    pub(super) namespaces: Option<NamespaceLook>,
    pub(super) metrics: IdentityMetrics,
}

impl Delivery {
    pub(super) fn start(self) -> std::io::Result<mpsc::Sender<Answer>> {
        let (answers, mut received) = mpsc::channel(16);
        std::thread::Builder::new().name("identity".to_owned()).spawn(move || {
            while let Some(answer) = received.blocking_recv() {
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
