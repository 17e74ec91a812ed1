//! Activities that have not ended, or lie in one that has not: found by name, by thread and by cause without a search.
//!
//! Used by `activities.rs`, which pairs starts and stops, and by `running.rs`, which shows what runs. Bounded to 4,096;
//! the oldest are evicted. Does not: know sandboxes.
//!
//! Kept by number, for eviction and for nesting, until the whole nest has ended; those that are open are also in
//! `open_index.rs`, by which starts and stops find them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;
use sandglass_model::trace::Link;
use sandglass_model::windows::{ActivityStep, ObjectKey, Service};

use crate::finding::ActivityEnded;
use crate::windows::open_index::{NameKey, OpenIndex, ThreadKey};

/// An activity of HNS, HCS or a silo.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    /// The service that logged it.
    pub(crate) service: Service,
    /// The provider's name for it, shared.
    pub(crate) name: Arc<str>,
    /// Activity id as text; empty for none.
    pub(crate) id: String,
    /// Process that logged it; 0 for callbacks of drivers and for spans of the shim.
    pub(crate) pid: u32,
    /// Thread that logged its start; a stop may come from another.
    pub(crate) tid: u32,
    /// Time of the start event.
    pub(crate) start: Timestamp,
    /// Time of the stop event, or of what ended it in its place.
    pub(crate) end: Option<Timestamp>,
    /// HRESULT or NTSTATUS; `None` while it is open or without a result.
    pub(crate) result: Option<u32>,
    /// The service's message of a failure; empty for none.
    pub(crate) message: String,
    /// Objects that it named, at most 16.
    pub(crate) keys: Vec<ObjectKey>,
    /// Method of the request to HNS (`GET`, `POST`, ...); empty if it has none.
    pub(crate) method: String,
    /// The activity that caused it: its number while it is open, its index in the nest afterwards.
    pub(crate) parent: Option<u64>,
    /// Numbers of the activities that it caused.
    pub(crate) children: Vec<u64>,
    /// The shim's own span, of an activity that is one.
    pub(crate) link: Option<Link>,
    /// Why it ended although its stop was not seen; `None` for one that ended by itself.
    pub(crate) unfinished: Option<&'static str>,
}

/// The activities, by number. Numbers grow in the order of begin, so a child's is above its parent's.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    /// Open activities, and ended ones that lie in an open one.
    all: BTreeMap<u64, Activity>,
    /// The last number.
    serial: u64,
    /// Those of `all` that are open, by id, name and thread.
    open: OpenIndex,
}

/// Bound on activities kept. A full table loses the oldest, whose stop was most likely lost.
const MAX_OPEN: usize = 4_096;
/// The stop of an activity that is open for longer was lost.
const FORGET_NS: u64 = 600 * SECOND;
/// An activity that a thread begins later than this after another was not caused by that.
const THREAD_REACH_NS: u64 = 60 * SECOND;

impl Activities {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// An activity that is kept, open or not.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Activity> {
        self.all.get_mut(&number)
    }

    /// Enters an activity and gives it a number.
    pub(crate) fn begin(&mut self, activity: Activity) {
        self.serial += 1;
        let number = self.serial;
        self.open.insert(number, named(&activity), thread(&activity));
        // A parent that was evicted leaves the child a root.
        if let Some(parent) = activity.parent.and_then(|parent| self.all.get_mut(&parent)) {
            parent.children.push(number);
        }
        self.all.insert(number, activity);
    }

    /// Takes the activity out of the open ones. The caller sets when and how it ended. It stays in its nest until the
    /// outermost activity has ended too.
    pub(crate) fn end(&mut self, number: u64) -> Option<&mut Activity> {
        let activity = self.all.get_mut(&number)?;
        self.open.remove(number, &named(activity), &thread(activity));
        Some(activity)
    }

    /// The open activity that caused what this step begins: by the related id, by the id that it shares, or as the last
    /// one that its thread began.
    pub(crate) fn around(&self, at: Timestamp, step: &ActivityStep) -> Option<u64> {
        // Callbacks of drivers for one silo run side by side.
        if (step.pid, step.tid) == (0, 0) {
            return None;
        }
        // The related id names the cause; the same id under another name is an inner activity of the same request.
        let related = || self.open.newest_with(step.service, &step.related, None);
        let same = || self.open.newest_with(step.service, &step.activity, Some(&step.name));
        // Of both the newer one encloses more closely: numbers grow from the outside to the inside.
        let by_id = related().max(same());
        by_id.or_else(|| {
            let newest = *self.open.of_thread(&thread_of(step))?.last()?;
            // A stop that was lost must not keep all that the thread does later.
            let near = at.since(self.all.get(&newest)?.start) <= THREAD_REACH_NS;
            (step.tid != 0 && near).then_some(newest)
        })
    }

    /// The open activity that this step ends; `None` if there is none. `ActivityStoppedAutomatically` names no
    /// activity: WIL logs it when an activity goes out of scope.
    pub(crate) fn ended_by(&self, step: &ActivityStep) -> Option<u64> {
        let here = self.open.of_thread(&thread_of(step));
        if step.name == "ActivityStoppedAutomatically" {
            if !step.activity.is_empty() {
                return self.open.newest_with(step.service, &step.activity, None);
            }
            // Without an id it can only end an activity of its thread that has none either.
            let nameless = |number: &&u64| self.all.get(number).is_some_and(|activity| activity.id.is_empty());
            return here?.iter().rev().find(nameless).copied();
        }
        let name = (step.service, step.activity.clone(), step.name.as_str().into());
        let named = self.open.of_name(&name)?;
        let both = here.and_then(|here| {
            // The smaller set is searched: a service thread may have hundreds open.
            let (few, many) = if here.len() < named.len() {
                (here, named)
            } else {
                (named, here)
            };
            few.iter().rev().find(|number| many.contains(number))
        });
        // The activity went on on another thread. Of several the one that began first ends first.
        both.or_else(|| named.first()).copied()
    }

    /// The newest open activity with this id; `None` for an empty id.
    pub(crate) fn newest_of(&self, service: Service, id: &str) -> Option<u64> {
        self.open.newest_with(service, id, None)
    }

    /// The number of the activity around this one that lies in no other.
    pub(crate) fn outermost(&self, mut number: u64) -> u64 {
        while let Some(parent) = self.all.get(&number).and_then(|activity| activity.parent)
            && self.all.contains_key(&parent)
        {
            number = parent;
        }
        number
    }

    /// An activity and all that lies in it, from the outside to the inside.
    pub(crate) fn nest_of(&self, root: u64) -> Vec<(u64, &Activity)> {
        let mut pending = BTreeSet::from([root]);
        let mut nest = Vec::new();
        while let Some(number) = pending.pop_first() {
            if let Some(activity) = self.all.get(&number) {
                pending.extend(&activity.children);
                nest.push((number, activity));
            }
        }
        nest
    }

    /// Open activities that lie in no other, newest first.
    pub(crate) fn roots(&self) -> impl Iterator<Item = u64> {
        // By number from the back, which is the newest first.
        let all = self.all.iter().rev();
        let outermost = |activity: &Activity| {
            let parent = activity.parent;
            activity.end.is_none() && parent.is_none_or(|parent| !self.all.contains_key(&parent))
        };
        all.filter(move |(_, activity)| outermost(activity))
            .map(|(number, _)| *number)
    }

    /// Takes a nest out, outermost first. What has not ended stays, with what lies in it, and becomes a root.
    pub(crate) fn take(&mut self, root: u64) -> Vec<Activity> {
        // Numbers grow from the outside to the inside.
        let mut pending = BTreeSet::from([root]);
        let mut places: BTreeMap<u64, u64> = BTreeMap::new();
        let mut nest = Vec::new();
        while let Some(number) = pending.pop_first() {
            let Some(activity) = self.all.get_mut(&number) else {
                continue;
            };
            // It goes on after what caused it has ended, and is a root from now on.
            if activity.end.is_none() {
                activity.parent = None;
                continue;
            }
            if let Some(mut activity) = self.all.remove(&number) {
                pending.extend(std::mem::take(&mut activity.children));
                places.insert(number, nest.len() as u64);
                activity.parent = activity.parent.and_then(|parent| places.get(&parent).copied());
                nest.push(activity);
            }
        }
        nest
    }

    /// Takes out the nests of HNS that began between these times and have not ended, as if they ended at `to`: their
    /// caller stopped waiting.
    pub(crate) fn take_unfinished(&mut self, from: Timestamp, to: Timestamp) -> Vec<Vec<Activity>> {
        let begun = |activity: &Activity| {
            let of_hns = activity.service == Service::Hns && activity.end.is_none();
            of_hns && activity.parent.is_none() && activity.start >= from && activity.start <= to
        };
        let all = self.all.iter();
        // Collected first, because taking a nest out changes the map.
        let roots: Vec<u64> = all
            .filter(|(_, activity)| begun(activity))
            .map(|(number, _)| *number)
            .collect();
        roots
            .into_iter()
            .map(|number| {
                if let Some(activity) = self.end(number) {
                    activity.end = Some(to);
                    activity.unfinished = Some("did not end while its caller waited");
                }
                self.take(number)
            })
            .collect()
    }

    /// Ends what this process of HNS has begun and not ended. Returns the ended activities by number.
    pub(crate) fn interrupt(&mut self, at: Timestamp, pid: u32) -> Vec<(u64, ActivityEnded)> {
        let open = self.open.of_process(Service::Hns, pid);
        let ended = open.into_iter().filter_map(|number| {
            let activity = self.end(number)?;
            // It may have begun after the last event of the process was stamped on another processor.
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
            Some((number, ended))
        });
        ended.collect()
    }

    /// Takes out the nest that this activity lies in, if its outermost activity has ended. `None` while it runs: a nest is
    /// attributed as a whole, since only one of its activities may name a key.
    pub(crate) fn take_whole(&mut self, number: u64) -> Option<Vec<Activity>> {
        let root = self.outermost(number);
        self.all.get(&root)?.end?;
        Some(self.take(root))
    }

    /// Evicts activities beyond the bound or too old. Returns how many, for the counter of evictions. Amortised constant: each
    /// activity is evicted at most once.
    pub(crate) fn forget(&mut self, now: Timestamp) -> u64 {
        let mut forgotten = 0;
        while let Some((&number, oldest)) = self.all.first_key_value()
            && (self.all.len() >= MAX_OPEN || oldest.start.plus(FORGET_NS) < now)
        {
            self.end(number);
            self.all.remove(&number);
            forgotten += 1;
        }
        forgotten
    }
}

/// The key of an activity by its name.
fn named(activity: &Activity) -> NameKey {
    (activity.service, activity.id.clone(), Arc::clone(&activity.name))
}

/// The key of an activity by the thread that began it.
fn thread(activity: &Activity) -> ThreadKey {
    (activity.service, activity.pid, activity.tid)
}

/// The key of activities that the thread of this step began.
fn thread_of(step: &ActivityStep) -> ThreadKey {
    (step.service, step.pid, step.tid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::windows::ActivityChange;

    fn step(name: &str, id: &str, tid: u32) -> ActivityStep {
        ActivityStep {
            service: Service::Hns,
            name: name.into(),
            activity: id.into(),
            related: String::new(),
            pid: 1,
            tid,
            step: ActivityChange::Started,
            keys: Vec::new(),
            fields: Default::default(),
        }
    }

    fn begin(activities: &mut Activities, at: u64, step: &ActivityStep) {
        let parent = activities.around(Timestamp(at), step);
        activities.begin(Activity {
            service: step.service,
            name: step.name.as_str().into(),
            id: step.activity.clone(),
            pid: step.pid,
            tid: step.tid,
            start: Timestamp(at),
            end: None,
            result: None,
            message: String::new(),
            keys: Vec::new(),
            method: String::new(),
            parent,
            children: Vec::new(),
            link: None,
            unfinished: None,
        });
    }

    fn end(activities: &mut Activities, at: u64, step: &ActivityStep) -> Option<u64> {
        let number = activities.ended_by(step)?;
        activities.end(number)?.end = Some(Timestamp(at));
        Some(number)
    }

    #[test]
    fn a_stop_ends_the_innermost_of_its_name_on_its_thread_else_the_first() {
        let mut activities = Activities::default();
        for (at, tid) in [(1, 7), (2, 8), (3, 7)] {
            begin(&mut activities, at, &step("A", "", tid));
        }
        assert_eq!(activities.nest_of(1).len(), 2, "the third lies in the first");
        assert_eq!(end(&mut activities, 4, &step("A", "", 7)), Some(3));
        assert_eq!(end(&mut activities, 5, &step("A", "", 9)), Some(1));
        assert_eq!(activities.take(1).len(), 2);
        assert_eq!(end(&mut activities, 6, &step("B", "", 8)), None);
        assert_eq!(
            end(&mut activities, 7, &step("ActivityStoppedAutomatically", "", 8)),
            Some(2)
        );
        activities.take(2);
        assert!(activities.all.is_empty() && activities.open.is_empty());
    }

    #[test]
    fn an_id_leads_to_its_newest_but_not_to_itself() {
        let mut activities = Activities::default();
        begin(&mut activities, 1, &step("Outer", "x", 1));
        begin(&mut activities, 2, &step("Inner", "x", 2));
        begin(&mut activities, 3, &step("Inner", "x", 3));
        let parents = |number| activities.all.get(&number).and_then(|activity| activity.parent);
        assert_eq!([parents(1), parents(2), parents(3)], [None, Some(1), Some(1)]);
        assert_eq!(activities.open.newest_with(Service::Hns, "x", None), Some(3));
        assert_eq!(activities.open.newest_with(Service::Hcs, "x", None), None);
        assert_eq!(activities.open.newest_with(Service::Hns, "", None), None);
        assert_eq!(activities.roots().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_has_not_ended_stays_when_its_outside_goes() {
        let mut activities = Activities::default();
        begin(&mut activities, 1, &step("A", "", 1));
        begin(&mut activities, 2, &step("B", "", 1));
        begin(&mut activities, 3, &step("C", "", 1));
        end(&mut activities, 4, &step("A", "", 1));
        let nest = activities.take(1);
        assert_eq!(nest.len(), 1);
        assert_eq!(activities.roots().collect::<Vec<_>>(), [2]);
        assert_eq!(activities.outermost(3), 2);
    }

    #[test]
    fn the_oldest_make_room_and_leave_no_trace_in_the_indices() {
        let mut activities = Activities::default();
        for number in 0..10_000_u64 {
            activities.forget(Timestamp(number));
            begin(
                &mut activities,
                number,
                &step("A", &format!("{}", number % 7), number as u32),
            );
        }
        assert_eq!(activities.len(), MAX_OPEN);
        assert_eq!(activities.open.len(), (MAX_OPEN, MAX_OPEN));
        activities.forget(Timestamp(FORGET_NS + 20_000));
        assert!(activities.open.is_empty());
    }
}
