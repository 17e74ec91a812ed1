//! Requests to the runtime to make a sandbox that have no response yet, and what a creation knows of its own.
//!
//! The state of `requests.rs`, which decides. Bounded by [`REQUESTS_MAX`]. Does not: know a trace but by its key.

use std::collections::VecDeque;

use sandglass_model::{PodIdentity, ProcessKey, Timestamp};

use crate::keys::TraceKey;

/// Requests without a response, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Requests(pub(crate) VecDeque<Request>);

/// A request without a response.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) at: Timestamp,
    pub(crate) stream: u32,
    pub(crate) runtime: ProcessKey,
    pub(crate) pod: PodIdentity,
    /// The trace that it was joined with.
    pub(crate) trace: Option<TraceKey>,
}

/// What a creation knows of its request.
#[derive(Debug, Default)]
pub(crate) struct OwnRequest {
    /// When the runtime received it.
    pub(crate) at: Option<Timestamp>,
    /// Its response is waited for.
    pub(crate) pending: bool,
    /// When the runtime responded.
    pub(crate) responded: Option<Timestamp>,
    /// The response was an error.
    pub(crate) failed: bool,
}

/// More requests than a runtime has at once.
pub(crate) const REQUESTS_MAX: usize = 1_024;
/// The kubelet withdraws a request after four minutes (`runtimeRequestTimeout`, 2 min, twice for RunPodSandbox); others may wait for
/// longer. One that is older has lost its response.
pub(crate) const REQUEST_AGE_DEADLINES: u64 = 2;
