//! LibraryCalls of `getaddrinfo` that have begun: a lookup that the DNS client service tells of began with its program's call.
//!
//! By silo, process and name. A call that the service hears nothing of (a name in the hosts file, an address) is no
//! lookup: nothing of it goes to a server, and it says nothing of a network. Bounded.

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;
use sandglass_model::windows::LookupStep;

/// Open calls, oldest first.
#[derive(Debug, Default)]
pub(super) struct LibraryCalls(VecDeque<LibraryCall>);

#[derive(Debug)]
struct LibraryCall {
    silo: String,
    pid: u32,
    name: String,
    at: Timestamp,
}

const MAX_CALLS: usize = 512;
/// Nobody waits longer for the library before it asks the service.
const REACH_NS: u64 = 5 * SECOND;

impl LibraryCall {
    fn is_of(&self, step: &LookupStep) -> bool {
        self.pid == step.process.pid && self.name == step.name && self.silo == step.silo
    }
}

impl LibraryCalls {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn begin(&mut self, at: Timestamp, step: &LookupStep) {
        // The library says it more than once on its way in.
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

    pub(super) fn end(&mut self, step: &LookupStep) {
        self.0.retain(|call| !call.is_of(step));
    }

    /// When the program called for this lookup, which the service tells of now.
    pub(super) fn begun(&mut self, at: Timestamp, step: &LookupStep) -> Option<Timestamp> {
        let place = self.0.iter().position(|call| call.is_of(step))?;
        let called = self.0.remove(place)?.at;
        (called <= at && at.since(called) <= REACH_NS).then_some(called)
    }
}
