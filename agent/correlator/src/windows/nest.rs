//! A nest: HNS or HCS activities that lie within one another and are attributed together; and the nests that wait for
//! an owner.
//!
//! Made by `activities.rs` when the outermost activity has ended. Does not: find the owner (`nest_end.rs`).

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;
use sandglass_model::windows::{ObjectKey, Service, is_failure};

use crate::windows::keys::identifies_sandbox;
use crate::windows::ongoing::Activity;

/// Activities that belong together, the outermost first. In each, `parent` is an index into this list.
#[derive(Debug)]
pub(crate) struct Nest {
    /// Never empty in a nest that is attributed.
    pub(super) activities: Vec<Activity>,
    /// Keys of all its activities that identify a sandbox, each once.
    pub(super) keys: Vec<ObjectKey>,
    /// Begin of the outermost activity.
    pub(super) start: Timestamp,
    /// Its end; the current time for a nest that still runs.
    pub(super) end: Timestamp,
}

/// Nests without an owner, in the order in which they ended.
#[derive(Debug, Default)]
pub(crate) struct Nests {
    /// Oldest first: eviction and expiry take from the front.
    pub(super) waiting: VecDeque<Nest>,
}

/// Bound on nests that wait.
pub(super) const MAX_WAITING: usize = 1_024;
/// How long a nest waits for an owner: the time within which a creation ends or fails on a node that works.
pub(super) const WAIT_NS: u64 = 120 * SECOND;

impl Nest {
    pub(crate) fn new(activities: Vec<Activity>) -> Nest {
        let mut keys: Vec<ObjectKey> = activities.iter().flat_map(|activity| activity.keys.clone()).collect();
        keys.retain(identifies_sandbox);
        keys.sort_unstable();
        keys.dedup();
        let start = activities.first().map(|outer| outer.start).unwrap_or_default();
        let end = activities.first().and_then(|outer| outer.end).unwrap_or(start);
        Nest {
            activities,
            keys,
            start,
            end,
        }
    }

    /// A nest of activities that have not ended, up to `now`.
    pub(crate) fn running(activities: Vec<Activity>, now: Timestamp) -> Nest {
        let nest = Nest::new(activities);
        let end = nest.start.max(now);
        Nest { end, ..nest }
    }

    /// The outermost activity is one of HNS.
    pub(super) fn is_of_hns(&self) -> bool {
        self.activities
            .first()
            .is_some_and(|outer| outer.service == Service::Hns)
    }

    /// It names a container, so it belongs to that container's sandbox and to no other.
    pub(super) fn names_container(&self) -> bool {
        self.keys.iter().any(|key| matches!(key, ObjectKey::Container(_)))
    }
}

impl Nests {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Endpoints that the nest created (`true`) or deleted, if it succeeded. By the names of its activities, or by the
/// method of the request to HNS, since names differ between builds.
pub(crate) fn endpoint_changes(nest: &[Activity]) -> Vec<(String, bool)> {
    // A request that failed, or did not end, has changed nothing.
    let of_hns = |activity: &&Activity| {
        activity.service == Service::Hns && activity.unfinished.is_none() && !activity.result.is_some_and(is_failure)
    };
    let Some(outer) = nest.first().filter(of_hns) else {
        return Vec::new();
    };
    let any_name_has = |words: [&str; 2]| {
        let mut names = nest.iter().map(|activity| &activity.name);
        names.any(|name| words.iter().any(|word| name.contains(word)))
    };
    let is_method = |method: &str| outer.method.eq_ignore_ascii_case(method);
    let made = if is_method("DELETE") || any_name_has(["DeleteEndpoint", "EndpointDelete"]) {
        false
    } else if is_method("POST") || any_name_has(["CreateEndpoint", "EndpointCreate"]) {
        true
    } else {
        return Vec::new();
    };
    let named = nest
        .iter()
        .flat_map(|activity| &activity.keys)
        .filter_map(|key| match key {
            ObjectKey::Endpoint(id) => Some((id.clone(), made)),
            ObjectKey::Namespace(_)
            | ObjectKey::Port(_)
            | ObjectKey::Network(_)
            | ObjectKey::Container(_)
            | ObjectKey::Silo(_)
            | ObjectKey::Job(_)
            | ObjectKey::Operation(_)
            | ObjectKey::Compartment(_) => None,
        });
    named.collect()
}
