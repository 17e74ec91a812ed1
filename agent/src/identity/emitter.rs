//! The thread that sends answers into the pipeline. It may block there, or on the path of a namespace; the task must not.

use sandglass_model::event::SandboxDescription;
use sandglass_model::{Body, Event, Timestamp};
use tokio::sync::mpsc;

use super::metrics::{IdentityMetrics, Outcome};
use crate::sources::{EventSender, NamespaceLook, NamespacePlace};

/// An answer of the runtime.
#[derive(Debug)]
pub(super) enum RuntimeResponse {
    Described(SandboxDescription),
    /// Where the namespace of a sandbox is that was described before.
    Namespace(NamespacePlace),
}

/// Sends answers as events.
pub(super) struct Emitter {
    pub(super) sender: EventSender,
    pub(super) clock: fn() -> Timestamp,
    pub(super) namespaces: Option<NamespaceLook>,
    pub(super) metrics: IdentityMetrics,
}

impl Emitter {
    pub(super) fn start(self) -> std::io::Result<mpsc::Sender<RuntimeResponse>> {
        let (responses, mut received) = mpsc::channel(16);
        std::thread::Builder::new().name("identity".to_owned()).spawn(move || {
            while let Some(response) = received.blocking_recv() {
                let Some(body) = self.body(response) else { continue };
                let at = (self.clock)();
                if self.sender.send(Event { at, body }).is_err() {
                    break;
                }
            }
        })?;
        Ok(responses)
    }

    fn body(&self, response: RuntimeResponse) -> Option<Body> {
        match response {
            RuntimeResponse::Described(description) => Some(Body::SandboxDescribed(Box::new(description))),
            RuntimeResponse::Namespace(place) => {
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
