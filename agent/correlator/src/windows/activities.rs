//! Steps of HNS's and HCS's activities into nests: which stop ends which start, and which activity caused which.
//!
//! Ids may be zero or used again: a stop ends the innermost start of its name on its thread. What an activity caused lies
//! in it by the related id, else by thread. A nest is whole when its outermost activity ends; `nests.rs` finds out whose.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;
use sandglass_model::trace::{Link, Relation};
use sandglass_model::windows::{
    ActivityChange, ActivityStep, ObjectKey, RuntimeSpan, Service, SiloChange, SiloStep, is_failure,
};

use super::nests::Nest;
use crate::correlator::{Correlator, Output};
use crate::traffic::{ActivityEnded, Traffic};

/// An activity.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    pub(crate) service: Service,
    pub(crate) name: Arc<str>,
    id: String,
    pid: u32,
    tid: u32,
    pub(crate) start: Timestamp,
    pub(crate) end: Option<Timestamp>,
    pub(crate) result: Option<u32>,
    pub(crate) message: String,
    pub(crate) keys: Vec<ObjectKey>,
    /// `GET`, `POST` and so on; empty when it has none.
    method: String,
    /// The activity that caused it: its number while it is open, its place in the nest afterwards.
    pub(crate) parent: Option<u64>,
    pub(crate) link: Option<Link>,
    /// Why it was ended though its own end was not seen; `None` for one that ended.
    pub(crate) unfinished: Option<&'static str>,
}

/// Activities that are open, or lie in one that is, by number.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    all: BTreeMap<u64, Activity>,
    serial: u64,
}

/// Most activities kept at once.
const MAX_OPEN: usize = 4_096;
/// Most keys of one activity.
const MAX_KEYS: usize = 16;
/// An activity that is open for longer was not seen to end.
const FORGET_NS: u64 = 600 * SECOND;
/// What a thread begins this long after another activity was not caused by that.
const THREAD_REACH_NS: u64 = 60 * SECOND;

impl Activities {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    fn open(&self) -> impl DoubleEndedIterator<Item = (u64, &Activity)> {
        let all = self.all.iter().map(|(number, activity)| (*number, activity));
        all.filter(|(_, activity)| activity.end.is_none())
    }

    /// The open activity that caused what this step begins.
    fn around(&self, at: Timestamp, step: &ActivityStep) -> Option<u64> {
        // Drivers are told of a silo side by side.
        if (step.pid, step.tid) == (0, 0) {
            return None;
        }
        let caused = |activity: &Activity| {
            activity.service == step.service
                && ((!step.related.is_empty() && activity.id == step.related)
                    || (!step.activity.is_empty() && activity.id == step.activity && *activity.name != *step.name))
        };
        // A stop that was lost must not keep all that the thread does later.
        let on_thread = |activity: &Activity| {
            activity.service == step.service
                && step.tid != 0
                && (activity.pid, activity.tid) == (step.pid, step.tid)
                && at.since(activity.start) <= THREAD_REACH_NS
        };
        let mut open = self.open().rev();
        let by_id = open.find(|(_, activity)| caused(activity));
        by_id
            .or_else(|| self.open().rev().find(|(_, activity)| on_thread(activity)))
            .map(|(number, _)| number)
    }

    /// The open activity that this step ends.
    fn ended_by(&self, step: &ActivityStep) -> Option<u64> {
        let same_id = |activity: &Activity| activity.service == step.service && activity.id == step.activity;
        let here = |activity: &Activity| (activity.pid, activity.tid) == (step.pid, step.tid);
        if step.name == "ActivityStoppedAutomatically" {
            let mut open = self.open().rev();
            let found = open.find(|(_, activity)| same_id(activity) && (!step.activity.is_empty() || here(activity)));
            return found.map(|(number, _)| number);
        }
        let named = |activity: &Activity| same_id(activity) && *activity.name == *step.name;
        let mut on_thread = self.open().rev();
        on_thread
            .find(|(_, activity)| named(activity) && here(activity))
            // It went on to another thread; of several, the first goes first.
            .or_else(|| self.open().find(|(_, activity)| named(activity)))
            .map(|(number, _)| number)
    }

    fn outermost(&self, mut number: u64) -> u64 {
        while let Some(parent) = self.all.get(&number).and_then(|activity| activity.parent)
            && self.all.contains_key(&parent)
        {
            number = parent;
        }
        number
    }

    /// Takes a nest out, outermost first. What has not ended yet stays, with what lies in it.
    fn take(&mut self, root: u64) -> Vec<Activity> {
        // Numbers grow from the outside to the inside.
        let mut places: BTreeMap<u64, u64> = BTreeMap::new();
        let members: Vec<u64> = self.all.range(root..).map(|(number, _)| *number).collect();
        let mut nest = Vec::new();
        for number in members {
            let Some(activity) = self.all.get_mut(&number) else {
                continue;
            };
            let place = activity.parent.and_then(|parent| places.get(&parent).copied());
            if number != root && place.is_none() {
                continue;
            }
            if activity.end.is_none() {
                activity.parent = None;
                continue;
            }
            if let Some(mut activity) = self.all.remove(&number) {
                places.insert(number, nest.len() as u64);
                activity.parent = place;
                nest.push(activity);
            }
        }
        nest
    }

    /// Takes out what began outermost between these times and has not ended, as if it ended then.
    pub(crate) fn take_unfinished(&mut self, from: Timestamp, to: Timestamp) -> Vec<Vec<Activity>> {
        let begun = |activity: &Activity| activity.start >= from && activity.start <= to && activity.parent.is_none();
        let roots = self
            .open()
            .filter(|(_, activity)| begun(activity) && activity.service == Service::Hns);
        let roots: Vec<u64> = roots.map(|(number, _)| number).collect();
        let end = |number: u64, all: &mut BTreeMap<u64, Activity>| {
            if let Some(activity) = all.get_mut(&number) {
                activity.end = Some(to);
                activity.unfinished = Some("did not end while its caller waited");
            }
        };
        roots
            .into_iter()
            .map(|number| {
                end(number, &mut self.all);
                self.take(number)
            })
            .collect()
    }

    /// Ends what a process of HNS has begun and not ended; returns it by number.
    pub(crate) fn interrupt(&mut self, at: Timestamp, pid: u32) -> Vec<(u64, ActivityEnded)> {
        let open = self
            .all
            .iter_mut()
            .filter(|(_, activity)| activity.end.is_none() && activity.pid == pid && activity.service == Service::Hns);
        let ended = open.map(|(number, activity)| {
            let end = at.max(activity.start);
            activity.end = Some(end);
            activity.unfinished = Some("interrupted: HNS went down");
            let ended = ActivityEnded {
                service: activity.service,
                name: Arc::clone(&activity.name),
                start: activity.start,
                end,
                failed: true,
            };
            (*number, ended)
        });
        ended.collect()
    }

    /// Takes out the nest that this activity lies in, once its outermost has ended.
    pub(crate) fn take_whole(&mut self, number: u64) -> Option<Vec<Activity>> {
        let root = self.outermost(number);
        self.all.get(&root)?.end?;
        Some(self.take(root))
    }

    /// Makes room; returns how many were forgotten.
    fn forget(&mut self, now: Timestamp) -> u64 {
        let mut forgotten = 0;
        while let Some((_, oldest)) = self.all.first_key_value()
            && (self.all.len() >= MAX_OPEN || oldest.start.plus(FORGET_NS) < now)
        {
            self.all.pop_first();
            forgotten += 1;
        }
        forgotten
    }
}

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
            link: None,
            unfinished: None,
        };
        add_keys(&mut activity, step.keys);
        self.windows.activities.serial += 1;
        let serial = self.windows.activities.serial;
        self.windows.activities.all.insert(serial, activity);
    }

    fn activity_ended(&mut self, at: Timestamp, step: ActivityStep) {
        let Some(number) = self.windows.activities.ended_by(&step) else {
            self.effects.counters.orphan += 1;
            return;
        };
        let ActivityChange::Stopped { result, message } = step.step else {
            return;
        };
        let Some(activity) = self.windows.activities.all.get_mut(&number) else {
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
        let by_id = || {
            let mut open = activities.open().rev();
            open.find(|(_, activity)| {
                !step.activity.is_empty() && activity.id == step.activity && activity.service == step.service
            })
        };
        let number = by_id()
            .map(|(number, _)| number)
            .or_else(|| activities.around(at, &step));
        match number.and_then(|number| self.windows.activities.all.get_mut(&number)) {
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
