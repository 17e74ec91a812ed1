//! Duplicate address detection (RFC 4862, section 5.4): which sleeps of a plugin were waits for the end of it.
//!
//! Used by the room of waits. A plugin that gives a sandbox an IPv6 address lists the addresses, sleeps on a timer, and lists them again until
//! none is tentative (`SettleAddresses` in containernetworking/plugins). That it lists them is not seen. The evidence is that an address was
//! tentative in the namespace that it works in while it slept, that it slept again and again, and that it went on when the address was not
//! tentative any more. All of that makes it likely, less of it possible; nothing makes it certain.
//! A link-local address alone is no evidence: every interface has one, which is tentative after it came up, whatever the plugin does.
//! Bounded: [`DETECTIONS_MAX`] of one plugin, which go with it, and [`ADDRESSES_MAX`] addresses of each.
//! Does not: know threads (`on_detection.rs` does).

use std::collections::BTreeMap;

use sandglass_model::trace::Confidence;
use sandglass_model::waits::{TentativeAddress, TentativeSeen, TimeReason};
use sandglass_model::{ProcessKey, SmolStr, Timestamp, registry};

use crate::waits::evidence::Evidence;
use crate::waits::path::Segment;

/// Detections by the plugin that the runtime executed, in order of time.
#[derive(Debug, Default)]
pub(crate) struct Detections {
    by_root: BTreeMap<ProcessKey, Vec<Detection>>,
}

/// A time in which addresses of one namespace were tentative.
#[derive(Debug)]
struct Detection {
    netns: u64,
    from: Timestamp,
    /// `None` while one is, as far as known.
    to: Option<Timestamp>,
    /// Those that count, in the order in which they were seen.
    addresses: Vec<TentativeAddress>,
}

/// A sleep between two looks at the addresses is not longer. `SettleAddresses` sleeps 50 ms.
const POLL_MAX_NS: u64 = 500 * sandglass_model::time::MILLISECOND;
/// So many sleeps are a poll.
const SLEEPS_MIN: usize = 3;
/// A plugin that sleeps for so long, so soon after the detection, goes on polling: for something else.
const GOES_ON_NS: u64 = 5 * sandglass_model::time::MILLISECOND;
/// See [`GOES_ON_NS`].
const GOES_ON_WITHIN_NS: u64 = 100 * sandglass_model::time::MILLISECOND;
/// Detections of one plugin.
const DETECTIONS_MAX: usize = 16;
/// Addresses of one detection.
const ADDRESSES_MAX: usize = 8;
/// Addresses that are named.
const NAMED_MAX: usize = 2;

impl Detections {
    /// A reading of the addresses of a process below `root`.
    pub(crate) fn on_seen(&mut self, at: Timestamp, root: ProcessKey, seen: &TentativeSeen) {
        let detections = self.by_root.entry(root).or_default();
        let has_room = detections.len() < DETECTIONS_MAX;
        let is_open = |detection: &&mut Detection| detection.netns == seen.netns && detection.to.is_none();
        let has_other = seen
            .addresses
            .iter()
            .any(|tentative| !tentative.address.is_unicast_link_local());
        match detections.iter_mut().rev().find(is_open) {
            Some(detection) if seen.addresses.is_empty() => detection.to = Some(at),
            Some(detection) => detection.add(&seen.addresses, has_other),
            None if has_other && has_room => {
                let mut detection = Detection {
                    netns: seen.netns,
                    from: at,
                    to: None,
                    addresses: Vec::new(),
                };
                detection.add(&seen.addresses, has_other);
                detections.push(detection);
            }
            None => {}
        }
    }

    /// The plugin has ended.
    pub(crate) fn forget(&mut self, root: ProcessKey) {
        self.by_root.remove(&root);
    }

    /// Which of the sleeps on a path that ended by a timer were waits for a detection, by their index, and why.
    pub(crate) fn find(&self, root: ProcessKey, path: &[Segment], timers: &[usize]) -> Vec<(Evidence, Vec<usize>)> {
        let detections = self.by_root.get(&root).into_iter().flatten();
        detections
            .filter_map(|detection| {
                let is_poll = |at: &usize| detection.is_poll(&path[*at]);
                let sleeps: Vec<usize> = timers.iter().copied().filter(is_poll).collect();
                let goes_on = timers.iter().any(|at| detection.goes_on(&path[*at]));
                let confidence = match sleeps.len() >= SLEEPS_MIN && detection.to.is_some() && !goes_on {
                    true => Confidence::Likely,
                    false => Confidence::Possible,
                };
                (!sleeps.is_empty()).then(|| (detection.evidence(confidence), sleeps))
            })
            .collect()
    }

    /// What a process below `root` that sleeps since then waits for, if an address is tentative now.
    pub(crate) fn now(&self, root: ProcessKey, since: Timestamp) -> Option<Evidence> {
        let detections = self.by_root.get(&root)?;
        let lasting = detections.iter().rev().find(|detection| detection.to.is_none())?;
        let is_poll = since.plus(POLL_MAX_NS) >= lasting.from;
        is_poll.then(|| lasting.evidence(Confidence::Possible))
    }
}

impl Detection {
    /// Adds addresses that are tentative. Link-local ones count where they are so for longer than the others, since who waits for an
    /// address waits for all of the interface.
    fn add(&mut self, seen: &[TentativeAddress], has_other: bool) {
        let counts = |tentative: &&TentativeAddress| !(has_other && tentative.address.is_unicast_link_local());
        for tentative in seen.iter().filter(counts) {
            let same = |known: &&mut TentativeAddress| {
                (known.address, &known.interface) == (tentative.address, &tentative.interface)
            };
            let has_room = self.addresses.len() < ADDRESSES_MAX;
            match self.addresses.iter_mut().find(same) {
                Some(known) => known.duplicate |= tentative.duplicate,
                None if has_room => self.addresses.push(tentative.clone()),
                None => {}
            }
        }
    }

    /// A sleep as short as a poll's, in a part of which an address was tentative.
    fn is_poll(&self, sleep: &Segment) -> bool {
        let overlaps = self.from < sleep.to && self.to.is_none_or(|end| sleep.from < end);
        overlaps && sleep.to.since(sleep.from) <= POLL_MAX_NS
    }

    /// A sleep for something else, right after the detection.
    fn goes_on(&self, sleep: &Segment) -> bool {
        let is_next = |end: Timestamp| sleep.from >= end && sleep.from < end.plus(GOES_ON_WITHIN_NS);
        self.to.is_some_and(is_next) && sleep.to.since(sleep.from) >= GOES_ON_NS
    }

    fn evidence(&self, confidence: Confidence) -> Evidence {
        Evidence {
            reason: TimeReason::KernelWork,
            what: format!("{} {}", registry::DETECTION, self.names()),
            by: SmolStr::default(),
            confidence: Some(confidence),
        }
    }

    /// `fd00::5 on eth0`, `fd00::5 and fd00::6 on eth0`, and that one is a duplicate.
    fn names(&self) -> String {
        let name = |tentative: &TentativeAddress| match tentative.duplicate {
            true => format!("{} (a duplicate)", tentative.address),
            false => tentative.address.to_string(),
        };
        let mut names: Vec<String> = self.addresses.iter().take(NAMED_MAX).map(name).collect();
        let more = self.addresses.len().saturating_sub(NAMED_MAX);
        if more > 0 {
            names.push(format!("{more} more"));
        }
        let interface = self.addresses.first().map(|first| first.interface.as_str());
        let is_same = |tentative: &TentativeAddress| Some(tentative.interface.as_str()) == interface;
        match interface.filter(|_| self.addresses.iter().all(is_same)) {
            Some(interface) => format!("{} on {interface}", names.join(" and ")),
            None => names.join(" and "),
        }
    }
}
