//! A nest: activities that lie in one another, and those that wait for an owner.

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;
use sandglass_model::windows::{ObjectKey, Service, is_failure};

use crate::windows::keys::identifies_sandbox;
use crate::windows::ongoing::Activity;

/// Activities that belong together, the outermost first; `parent` is a place in the list.
#[derive(Debug)]
pub(crate) struct Nest {
    pub(super) activities: Vec<Activity>,
    pub(super) keys: Vec<ObjectKey>,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
}

/// Nests that nobody is known for.
#[derive(Debug, Default)]
pub(crate) struct Nests {
    pub(super) waiting: VecDeque<Nest>,
}

/// Most nests that wait.
pub(super) const MAX_WAITING: usize = 1_024;
/// How long one waits.
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

    /// Of activities that run on.
    pub(crate) fn running(activities: Vec<Activity>, now: Timestamp) -> Nest {
        let nest = Nest::new(activities);
        let end = nest.start.max(now);
        Nest { end, ..nest }
    }

    pub(super) fn is_of_hns(&self) -> bool {
        self.activities
            .first()
            .is_some_and(|outer| outer.service == Service::Hns)
    }

    /// It names a container: only whose that is may have it.
    pub(super) fn names_container(&self) -> bool {
        self.keys.iter().any(|key| matches!(key, ObjectKey::Container(_)))
    }
}

impl Nests {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Endpoints that the activities of a nest made or deleted, by what they are called or by the method of the request.
pub(crate) fn endpoint_changes(nest: &[Activity]) -> Vec<(String, bool)> {
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
