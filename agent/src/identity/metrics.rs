//! Counters of the identity's requests, by outcome.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Requests by outcome.
#[derive(Clone, Debug, Default)]
pub struct IdentityMetrics {
    questions: Family<OutcomeLabel, Counter>,
}

/// Label: the outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// [`Outcome::as_str`].
    pub outcome: &'static str,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The runtime described the sandbox.
    Answered,
    /// The runtime did not know it at any attempt.
    Unknown,
    /// The runtime answered with an error, or the answer is not valid.
    Failed,
    /// Too many requests were pending.
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
            "Sandboxes requested from the container runtime, by outcome",
            self.questions.clone(),
        );
    }

    /// How many requests had this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.questions.get_or_create(&label(outcome)).get()
    }

    pub(super) fn add(&self, outcome: Outcome) {
        self.questions.get_or_create(&label(outcome)).inc();
    }
}

fn label(outcome: Outcome) -> OutcomeLabel {
    OutcomeLabel {
        outcome: outcome.as_str(),
    }
}
