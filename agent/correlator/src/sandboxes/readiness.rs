//! When a sandbox's network has proven usable: its first answered lookup, and its first connection that stands.
//!
//! Whichever comes first suffices alone; the other counts too if it began within a moment of it. What began before that
//! is part of the sandbox's trace, failed attempts included; what was still open then is shown up to there, and goes on
//! as traffic like any other. A sandbox that sends nothing ends where its creation did. Of one that tries without end
//! the first attempts are shown and those that decide; the others are counted. Does not: know what a lookup is.

use std::sync::Arc;

use sandglass_model::trace::{Detail, Status};
use sandglass_model::{Timestamp, registry};

use crate::correlator::Correlator;
use crate::open::{Cut, OpenTrace, TraceKey};
use crate::sandboxes::CREATE;
use crate::timers::Timer;
use crate::traffic::TrafficConfig;
use crate::traffic::attempts::{Attempt, Finished};

/// What is kept of a sandbox until its network is ready.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    /// Somebody watches the node's traffic.
    pub(crate) watched: bool,
    /// Its network namespace is known, or an address of it: its traffic can be told from others'.
    pub(crate) known: bool,
    /// When its creation was over.
    pub(crate) created: Option<Timestamp>,
    first_attempt: Option<Timestamp>,
    attempts: Vec<Tracked>,
    successes: Vec<Success>,
    /// Attempts that are not shown, and when they began; those beyond the bound are only counted.
    left_out: Vec<(Attempt, Timestamp)>,
    more_left_out: u32,
}

#[derive(Debug)]
struct Tracked {
    what: Attempt,
    span: usize,
    start: Timestamp,
    end: Option<Timestamp>,
    /// Not told yet: it may turn out to be none of the creation's.
    held: Option<Finished>,
}

#[derive(Clone, Copy, Debug)]
struct Success {
    connect: bool,
    start: Timestamp,
    end: Timestamp,
}

/// What is to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    Until(Timestamp),
    Over,
}

/// Most lookups and connections shown of one sandbox before its network is ready.
const MAX_ATTEMPTS: usize = 64;
/// Most that are shown besides because they worked: one of them may be what makes the network ready.
const MAX_DECIDING: usize = 8;
/// Most that are not shown whose begin is remembered.
const MAX_LEFT_OUT: usize = 1_024;

impl Readiness {
    pub(crate) fn new(watched: bool) -> Readiness {
        Readiness {
            watched,
            ..Readiness::default()
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.attempts.len() < MAX_ATTEMPTS
    }

    pub(crate) fn works(&self) -> bool {
        !self.successes.is_empty()
    }

    pub(crate) fn began(&mut self, what: Attempt, span: Option<usize>, at: Timestamp) {
        self.first_attempt = Some(self.first_attempt.map_or(at, |first| first.min(at)));
        match span {
            Some(span) => self.show(what, span, at),
            None if self.left_out.len() < MAX_LEFT_OUT => self.left_out.push((what, at)),
            // After the first success too: which of them began before the network was ready would have to be kept.
            None => self.more_left_out = self.more_left_out.saturating_add(1),
        }
    }

    fn show(&mut self, what: Attempt, span: usize, at: Timestamp) {
        self.attempts.push(Tracked {
            what,
            span,
            start: at,
            end: None,
            held: None,
        });
    }

    /// An attempt was not shown, and its end may be what decides.
    pub(crate) fn is_wanted(&self, finished: &Finished) -> bool {
        finished.part.works() && self.attempts.len() < MAX_ATTEMPTS + MAX_DECIDING && self.span(finished.what).is_none()
    }

    /// It is shown after all.
    pub(crate) fn show_late(&mut self, finished: &Finished, span: usize) {
        match self.left_out.iter().position(|(what, _)| *what == finished.what) {
            Some(index) => {
                self.left_out.swap_remove(index);
            }
            None => self.more_left_out = self.more_left_out.saturating_sub(1),
        }
        self.show(finished.what, span, finished.part.start);
    }

    /// How many attempts that began up to `until` are not shown.
    fn left_out(&self, until: Timestamp) -> u32 {
        let known = self.left_out.iter().filter(|(_, start)| *start <= until).count();
        u32::try_from(known)
            .unwrap_or(u32::MAX)
            .saturating_add(self.more_left_out)
    }

    /// The span of an attempt that is shown.
    pub(crate) fn span(&self, what: Attempt) -> Option<usize> {
        let mut attempts = self.attempts.iter().rev();
        attempts
            .find(|tracked| tracked.what == what)
            .map(|tracked| tracked.span)
    }

    /// An attempt is over. Returns whether it is kept, to be told once it is known where it belongs.
    pub(crate) fn ended(&mut self, finished: &Finished, told: bool) -> bool {
        let part = &finished.part;
        if part.works() && self.successes.len() < MAX_ATTEMPTS {
            self.successes.push(Success {
                connect: part.is_connect(),
                start: part.start,
                end: part.end,
            });
        }
        let mut attempts = self.attempts.iter_mut();
        let Some(tracked) = attempts.find(|tracked| tracked.what == finished.what) else {
            return false;
        };
        tracked.end = Some(part.end);
        tracked.held = (!told).then(|| finished.clone());
        !told
    }

    /// Nothing more will be heard of an attempt.
    pub(crate) fn lose(&mut self, what: Attempt, at: Timestamp) -> Option<usize> {
        let mut attempts = self.attempts.iter_mut();
        let tracked = attempts.find(|tracked| tracked.what == what)?;
        tracked.end = Some(at.max(tracked.start));
        Some(tracked.span)
    }

    fn first(&self) -> Option<Success> {
        let earliest = self
            .successes
            .iter()
            .min_by_key(|success| (success.end, success.connect));
        earliest.copied()
    }

    /// When the network had proven usable, by what is known so far; and whether that stands.
    fn ready(&self, config: &TrafficConfig) -> Option<(Timestamp, bool)> {
        let first = self.first()?;
        let until = first.end.plus(config.ready_grace_ns);
        let others = self.successes.iter();
        let other = others.filter(|success| success.connect != first.connect && success.start <= until);
        Some(match other.map(|success| success.end).min() {
            Some(second) => (second.max(first.end), true),
            None => (first.end, false),
        })
    }

    fn outlook(&self, now: Timestamp, config: &TrafficConfig) -> Outlook {
        let Some(created) = self.created else {
            return Outlook::Until(Timestamp(u64::MAX));
        };
        let deadline = created.plus(config.ready_deadline_ns);
        let until = match (self.first(), self.ready(config)) {
            (Some(first), Some((_, false))) => {
                let grace = first.end.plus(config.ready_grace_ns);
                let awaited = self.attempts.iter().any(|tracked| {
                    let connect = matches!(tracked.what, Attempt::Connect(_));
                    tracked.end.is_none() && connect != first.connect && tracked.start <= grace
                });
                if awaited { deadline.max(grace) } else { grace }
            }
            (_, Some(_)) => return Outlook::Over,
            (_, None) => deadline,
        };
        if until <= now {
            Outlook::Over
        } else {
            Outlook::Until(until)
        }
    }
}

impl Correlator {
    /// Closes the trace of a sandbox whose network is ready, or was waited for in vain; or sets the timer for that.
    pub(crate) fn review_network(&mut self, key: TraceKey) {
        let Some(open) = self.traces.get(key) else {
            return;
        };
        let Some(creation) = open
            .creation
            .as_ref()
            .filter(|creation| creation.readiness.created.is_some())
        else {
            return;
        };
        match creation.readiness.outlook(self.now, &self.config.traffic) {
            Outlook::Until(until) => self.effects.timers.set(Timer::Ready(key), until),
            Outlook::Over => self.close(key, Cut::Outlived),
        }
    }

    /// The sandbox was created: its trace stays open for its network.
    pub(crate) fn await_network(&mut self, open: &mut OpenTrace) {
        open.cut(CREATE, self.now, Cut::Outlived, &mut self.effects);
        let created = open.trace.spans[CREATE].end;
        if let Some(creation) = &mut open.creation {
            creation.readiness.created = created.or(Some(self.now));
        }
        self.waiting.insert(open.sandbox(), open.key);
        self.tell_created(Arc::new(open.trace_so_far()), open.wants_labels());
        open.touch(&mut self.effects);
    }

    /// Traffic is watched from now on. Of a sandbox that is still being created nothing was missed: what runs in it begins
    /// when it has been created.
    pub(crate) fn traffic_watched(&mut self, node_netns: u64) {
        self.watch.owners.node = Some(node_netns);
        let keys: Vec<TraceKey> = self.traces.keys().collect();
        for key in keys {
            if let Some(open) = self.traces.get_mut(key).filter(|open| !open.is_created())
                && let Some(creation) = &mut open.creation
            {
                creation.readiness.watched = true;
            }
        }
    }

    /// Ends what a sandbox tried before its network was ready. Returns what turned out to be none of it.
    pub(crate) fn settle_network(&mut self, open: &mut OpenTrace) -> Vec<Finished> {
        let Some(creation) = &mut open.creation else {
            return Vec::new();
        };
        let readiness = std::mem::take(&mut creation.readiness);
        let container = open.sandbox();
        if self.waiting.get(container) == Some(&open.key) {
            self.waiting.remove(container);
        }
        self.effects.timers.clear(Timer::Ready(open.key));
        let ready = readiness.ready(&self.config.traffic).map(|(at, _)| at);
        let until = ready.unwrap_or(self.now);
        let left_out = readiness.left_out(until);
        let mut released = Vec::new();
        for mut tracked in readiness.attempts {
            if tracked.end.is_none() {
                self.detach(tracked.what);
            }
            if tracked.start > until {
                open.withdraw(tracked.span);
                released.extend(tracked.held);
                continue;
            }
            match tracked.end.filter(|end| *end <= until) {
                Some(end) => {
                    if let Some(finished) = tracked.held.take() {
                        self.tell(&finished, Some(open.trace.id));
                    }
                    open.end_shown(tracked.span, end, &mut self.effects);
                }
                None => {
                    cut_short(open, &tracked, until);
                    open.end_shown(tracked.span, until, &mut self.effects);
                    released.extend(tracked.held);
                }
            }
        }
        if let Some(ready) = ready {
            open.mark(0, ready, registry::EVENT_NETWORK_READY, &[]);
            open.states[0].latest = open.states[0].latest.max(ready);
        }
        if let Detail::Sandbox(sandbox) = &mut open.trace.spans[0].detail {
            sandbox.network_ready = ready;
            sandbox.first_attempt = readiness.first_attempt.filter(|first| *first <= until);
            let deadline = |created: Timestamp| created.plus(self.config.traffic.ready_deadline_ns);
            let waited = readiness.created.is_some_and(|created| deadline(created) <= self.now);
            sandbox.silent = waited && readiness.first_attempt.is_none();
            sandbox.attempts_left_out = left_out;
        }
        released
    }

    /// The attempt goes on, but no longer in its sandbox's trace.
    fn detach(&mut self, what: Attempt) {
        match what {
            Attempt::Lookup(serial) => {
                if let Some(lookup) = self.watch.lookups.get_mut(serial) {
                    lookup.home = None;
                }
            }
            Attempt::Connect(serial) => {
                if let Some(connect) = self.watch.connects.get_mut(serial) {
                    connect.home = None;
                }
            }
        }
    }
}

/// Shows an attempt as it stood at `until`: without the end it came to later.
fn cut_short(open: &mut OpenTrace, tracked: &Tracked, until: Timestamp) {
    let span = &mut open.trace.spans[tracked.span];
    span.status = Status::Unset;
    span.events.retain(|event| event.at <= until);
    match &mut span.detail {
        Detail::Lookup(lookup) => {
            lookup.result = None;
            lookup.cause = None;
        }
        Detail::Connect(connect) => {
            connect.cause = None;
        }
        Detail::Sandbox(_)
        | Detail::SandboxCreate(_)
        | Detail::Operation(_)
        | Detail::Plugin(_)
        | Detail::Command(_)
        | Detail::RuntimeStep(_)
        | Detail::Journey(_)
        | Detail::Activity(_)
        | Detail::VnicWait(_) => {}
    }
}
