//! Which closed traces OTLP export sends: all of them, or the bad ones and a share of the good ones.
//!
//! Used by the OTLP sink, which offers it every closed trace, and by the Prometheus sink for exemplars: an exemplar leads only to a
//! trace that is sent, and the numbers are the same whatever is sent. Both share one [`Sampling`], whose policy a reload of the
//! configuration replaces between two traces.
//! A bad trace ([`super::worth`]) is sent with probability 1 (`ot=th:0`). A good one that continues the runtime's trace is sent if
//! the runtime recorded that (parent-based, with the runtime's threshold); any other good one if the random bits of its id are
//! not below the threshold, as every other participant decides that uses it (OpenTelemetry specification,
//! trace/tracestate-probability-sampling.md, "Decision algorithm").
//! Does not: count, queue or encode.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use sandglass_correlator::EndedSpan;
use sandglass_model::sampling::{self, CallerSampling, RANDOM, SAMPLED};
use sandglass_model::{Trace, TraceId};

use super::worth::{self, Judge, SLOW_NS};

/// Which traces are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All.
    All,
    /// The bad ones, and some of the good ones.
    Bad {
        /// How many of a thousand good ones.
        good_per_thousand: u32,
        /// A creation, a network or an operation that takes longer is slow, in nanoseconds.
        slow_ns: u64,
    },
}

impl Policy {
    /// From how many nanoseconds on something is slow.
    fn slow_ns(self) -> u64 {
        match self {
            Policy::All => SLOW_NS,
            Policy::Bad { slow_ns, .. } => slow_ns,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::All => f.write_str("all"),
            Policy::Bad {
                good_per_thousand,
                slow_ns,
            } => write!(
                f,
                "bad, {good_per_thousand} of 1000 good, slow from {} ms",
                slow_ns / 1_000_000
            ),
        }
    }
}

/// The policy in force; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub struct Sampling(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    policy: RwLock<Policy>,
    judge: Mutex<Judge>,
}

/// A trace that is sent, with what its spans' contexts say about the decision.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The trace.
    pub trace: Arc<Trace>,
    /// It is bad.
    pub bad: bool,
    /// Flags of W3C Trace Context.
    pub flags: u8,
    /// OpenTelemetry's entry of `tracestate`; empty for none.
    pub tracestate: String,
}

impl Sampling {
    /// Sends what `policy` says.
    #[must_use]
    pub fn new(policy: Policy) -> Sampling {
        Sampling(Arc::new(Shared {
            policy: RwLock::new(policy),
            judge: Mutex::new(Judge::new(policy.slow_ns())),
        }))
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        *self.0.policy.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what `policy` says, from the next closed trace on.
    pub fn set_policy(&self, policy: Policy) {
        // The judge first and under its lock, so that no trace is judged by one policy and chosen by another.
        let mut judge = self.judge();
        judge.set_slow_ns(policy.slow_ns());
        *self.0.policy.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    /// Whether a closed trace is sent, and with which contexts. Learns from it either way.
    #[must_use]
    pub fn choose(&self, trace: &Arc<Trace>) -> Option<Chosen> {
        let chosen = |bad, flags, tracestate| {
            Some(Chosen {
                trace: Arc::clone(trace),
                bad,
                flags,
                tracestate,
            })
        };
        let (bad, policy) = {
            let mut judge = self.judge();
            (judge.judge(trace).is_some(), self.policy())
        };
        let Policy::Bad { good_per_thousand, .. } = policy else {
            return chosen(bad, SAMPLED, String::new());
        };
        if !bad && !keeps_good(trace.id, trace.caller, good_per_thousand) {
            return None;
        }
        // The ids of the agent's own traces are hashes, whose last 56 bits are as good as random.
        let random = trace.caller.map_or(RANDOM, |caller| caller.flags & RANDOM);
        let own = || Some(sampling::threshold(good_per_thousand));
        let threshold = match trace.caller {
            _ if bad => Some(0),
            Some(caller) => caller.threshold,
            None => own(),
        };
        let randomness = trace.caller.and_then(|caller| caller.randomness);
        chosen(bad, SAMPLED | random, sampling::tracestate(threshold, randomness))
    }

    /// The id of a trace, open or closed, if that trace is or will be sent for certain.
    #[must_use]
    pub fn exemplar(&self, trace: &Trace) -> Option<TraceId> {
        let sent = match self.policy() {
            Policy::All => true,
            Policy::Bad {
                good_per_thousand,
                slow_ns,
            } => worth::lasting(trace, slow_ns).is_some() || keeps_good(trace.id, trace.caller, good_per_thousand),
        };
        sent.then_some(trace.id)
    }

    /// The id of the trace of a span, if that trace will be sent for certain: it takes no less time than the span.
    #[must_use]
    pub fn exemplar_of_span(&self, span: &EndedSpan) -> Option<TraceId> {
        let sent = match self.policy() {
            Policy::All => true,
            Policy::Bad {
                good_per_thousand,
                slow_ns,
            } => {
                let slow = span.end.since(span.start) > slow_ns;
                slow || span.incomplete || keeps_good(span.trace, span.caller, good_per_thousand)
            }
        };
        sent.then_some(span.trace)
    }

    /// The id of the trace that shows a lookup or connection, if it will be sent for certain: a journey is bad, and so is
    /// a trace with a cause in it.
    #[must_use]
    pub fn exemplar_of_exchange(&self, trace: Option<TraceId>, journey: bool, has_cause: bool) -> Option<TraceId> {
        trace.filter(|_| self.policy() == Policy::All || journey || has_cause)
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.0.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a good trace is sent.
fn keeps_good(id: TraceId, caller: Option<CallerSampling>, good_per_thousand: u32) -> bool {
    match caller {
        Some(caller) => caller.is_sampled(),
        None => sampling::randomness(id) >= sampling::threshold(good_per_thousand),
    }
}

#[cfg(test)]
mod tests;
