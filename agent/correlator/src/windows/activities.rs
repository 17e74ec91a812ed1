//! Steps of HNS's and HCS's activities into nests: which stop ends which start, and which activity caused which.
//!
//! Ids may be zero or used again: a stop ends the innermost start of its name on its thread. What an activity caused lies
//! in it by the related id, else by thread. A nest is whole when its outermost activity ends; `nests.rs` finds out whose.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::trace::{Link, Relation};
use sandglass_model::windows::{
    ActivityChange, ActivityStep, ObjectKey, RuntimeSpan, Service, SiloChange, SiloStep, is_failure,
};

use super::nests::Nest;
use super::ongoing::Activity;
use crate::correlator::{Correlator, Output};
use crate::traffic::{ActivityEnded, Traffic};

/// Most keys of one activity.
const MAX_KEYS: usize = 16;

fn add_keys(activity: &mut Activity, keys: Vec<ObjectKey>) {
    for key in keys {
        if activity.keys.len() < MAX_KEYS && !activity.keys.contains(&key) {
            activity.keys.push(key);
        }
    }
}

impl Correlator {
    pub(crate) fn activity_seen(&mut self, at: Timestamp, step: ActivityStep) {
        if step.service == Service::Hns {
            self.hns_logged(at, step.pid);
        }
        match &step.step {
            ActivityChange::Started => self.activity_began(at, step),
            ActivityChange::Stopped { .. } => self.activity_ended(at, step),
            ActivityChange::Noted { .. } => self.activity_noted(at, step),
        }
    }

    fn activity_began(&mut self, at: Timestamp, step: ActivityStep) {
        self.effects.counters.evicted_windows += self.windows.activities.forget(at);
        let parent = self.windows.activities.around(at, &step);
        let method = step.fields.get("method").unwrap_or_default().to_owned();
        let mut activity = Activity {
            service: step.service,
            name: self.names.get(&step.name),
            id: step.activity,
            pid: step.pid,
            tid: step.tid,
            start: at,
            end: None,
            result: None,
            message: String::new(),
            keys: Vec::new(),
            method,
            parent,
            children: Vec::new(),
            link: None,
            unfinished: None,
        };
        add_keys(&mut activity, step.keys);
        self.windows.activities.begin(activity);
    }

    fn activity_ended(&mut self, at: Timestamp, step: ActivityStep) {
        let Some(number) = self.windows.activities.ended_by(&step) else {
            self.effects.counters.orphan += 1;
            return;
        };
        let ActivityChange::Stopped { result, message } = step.step else {
            return;
        };
        let Some(activity) = self.windows.activities.end(number) else {
            return;
        };
        let end = at.max(activity.start);
        activity.end = Some(end);
        activity.result = result;
        if !message.is_empty() {
            activity.message = message;
        }
        add_keys(activity, step.keys);
        let ended = ActivityEnded {
            service: activity.service,
            name: Arc::clone(&activity.name),
            start: activity.start,
            end,
            failed: result.is_some_and(is_failure),
        };
        self.effects
            .outputs
            .push(Output::Traffic(Traffic::Activity(Box::new(ended))));
        if let Some(activities) = self.windows.activities.take_whole(number) {
            self.nest_ended(at, Nest::new(activities));
        }
    }

    /// Something was said within an activity, or without one.
    fn activity_noted(&mut self, at: Timestamp, step: ActivityStep) {
        let ActivityChange::Noted { result, message } = step.step.clone() else {
            return;
        };
        let activities = &self.windows.activities;
        let by_id = activities.newest_with(step.service, &step.activity, None);
        let number = by_id.or_else(|| activities.around(at, &step));
        match number.and_then(|number| self.windows.activities.get_mut(number)) {
            Some(activity) => {
                if result.is_some_and(is_failure) && activity.message.is_empty() {
                    activity.message = message;
                }
                add_keys(activity, step.keys);
            }
            None => self.join_keys(at, &step.keys),
        }
    }

    /// A span that the shim made itself.
    pub(crate) fn runtime_span(&mut self, at: Timestamp, span: RuntimeSpan) {
        let link = match (span.trace.parse(), span.span.parse()) {
            (Ok(trace), Ok(span)) => Some(Link {
                trace,
                span,
                relation: Relation::Runtime,
            }),
            _ => None,
        };
        let mut keys = Vec::new();
        if !span.container.is_empty() {
            keys.push(ObjectKey::Container(span.container));
        }
        let failed = !span.message.is_empty();
        let activity = Activity {
            service: Service::Hcs,
            name: self.names.get(&span.name),
            id: String::new(),
            pid: 0,
            tid: 0,
            start: span.start.min(span.end).min(at),
            end: Some(span.end.min(at.max(span.start))),
            // E_FAIL: the shim says why in words only.
            result: failed.then_some(0x8000_4005),
            message: span.message,
            keys,
            method: String::new(),
            parent: None,
            children: Vec::new(),
            link,
            unfinished: None,
        };
        let ended = ActivityEnded {
            service: activity.service,
            name: Arc::clone(&activity.name),
            start: activity.start,
            end: activity.end.unwrap_or(activity.start),
            failed,
        };
        self.effects
            .outputs
            .push(Output::Traffic(Traffic::Activity(Box::new(ended))));
        self.nest_ended(at, Nest::new(vec![activity]));
    }

    /// A driver was told of a silo, or is done with it: an activity of the silo's.
    pub(crate) fn silo_callback(&mut self, at: Timestamp, step: &SiloStep) {
        let (monitor, change) = match &step.step {
            SiloChange::CallbackStarted { monitor } => (monitor, ActivityChange::Started),
            SiloChange::CallbackStopped { monitor, status } => {
                let (result, message) = (Some(*status), String::new());
                (monitor, ActivityChange::Stopped { result, message })
            }
            SiloChange::Started | SiloChange::State(_) | SiloChange::Terminated => return,
        };
        let name = if monitor.is_empty() {
            "callback"
        } else {
            monitor.as_str()
        };
        self.activity_seen(
            at,
            ActivityStep {
                service: Service::Silo,
                name: format!("callback {name}"),
                activity: step.silo.clone(),
                related: String::new(),
                pid: 0,
                tid: 0,
                step: change,
                keys: vec![ObjectKey::Silo(step.silo.clone()), ObjectKey::Job(step.job)],
                fields: Default::default(),
            },
        );
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
    let says = |words: [&str; 2]| {
        let mut names = nest.iter().map(|activity| &activity.name);
        names.any(|name| words.iter().any(|word| name.contains(word)))
    };
    let asks = |method: &str| outer.method.eq_ignore_ascii_case(method);
    let made = if asks("DELETE") || says(["DeleteEndpoint", "EndpointDelete"]) {
        false
    } else if asks("POST") || says(["CreateEndpoint", "EndpointCreate"]) {
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
