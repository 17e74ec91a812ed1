//! Calls of `getaddrinfo` that have begun: a lookup of the DNS client service began with its program's call.
//!
//! Used by `dns_client.rs`. From Microsoft-Windows-Winsock-NameResolution, events 1000 (begin) and 1001 (end). By silo,
//! process and name. A call that the service does not see (a name in the hosts file, an address) is no lookup: nothing
//! goes to a server, so it proves nothing about a network. Bounded to 512.

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;
use sandglass_model::windows::LookupStep;

/// Open calls, oldest first.
#[derive(Debug, Default)]
pub(super) struct LibraryCalls(VecDeque<LibraryCall>);

/// One call, with the time at which it began.
#[derive(Debug)]
struct LibraryCall {
    /// The silo's GUID; empty for the node.
    silo: String,
    /// Process that called.
    pid: u32,
    /// The name as the program passed it, in lower case.
    name: String,
    /// Time of event 1000.
    at: Timestamp,
}

/// Bound on open calls; the oldest is evicted, and its lookup then begins with the service's first event.
const MAX_CALLS: usize = 512;
/// The library passes a call on to the service at once; what is older belongs to an earlier call.
const REACH_NS: u64 = 5 * SECOND;

impl LibraryCall {
    /// The step is of this call: same silo, process and name.
    fn is_of(&self, step: &LookupStep) -> bool {
        self.pid == step.process.pid && self.name == step.name && self.silo == step.silo
    }
}

impl LibraryCalls {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A call began.
    pub(super) fn begin(&mut self, at: Timestamp, step: &LookupStep) {
        // The library logs event 1000 more than once for a call.
        if self
            .0
            .iter()
            .any(|call| call.is_of(step) && at.since(call.at) <= REACH_NS)
        {
            return;
        }
        self.end(step);
        if self.0.len() >= MAX_CALLS {
            self.0.pop_front();
        }
        self.0.push_back(LibraryCall {
            silo: step.silo.clone(),
            pid: step.process.pid,
            name: step.name.clone(),
            at,
        });
    }

    /// The calls of this name in this process are over.
    pub(super) fn end(&mut self, step: &LookupStep) {
        self.0.retain(|call| !call.is_of(step));
    }

    /// When the program called for the lookup that the service logs now; `None` if no call fits.
    pub(super) fn begun(&mut self, at: Timestamp, step: &LookupStep) -> Option<Timestamp> {
        let place = self.0.iter().position(|call| call.is_of(step))?;
        let called = self.0.remove(place)?.at;
        (called <= at && at.since(called) <= REACH_NS).then_some(called)
    }
}
