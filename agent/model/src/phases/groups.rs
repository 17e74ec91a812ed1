//! Findings of a verdict: spans that are one thing to a reader. The commands of one name that one plugin ran are one: of the 26
//! `iptables` of portmap no single one takes long.
//!
//! Used by the verdict. Does not: change phases or own times.

use std::collections::BTreeMap;

use super::Breakdown;
use crate::registry;
use crate::trace::{Detail, Trace};

/// Spans that are one finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The one of them with the most own time.
    pub(super) index: usize,
    /// How many they are.
    pub(super) count: usize,
    /// Their own times together, nanoseconds.
    pub(super) own_ns: u64,
}

impl Group {
    /// The finding with the most own time; of several the one that began first.
    pub(super) fn largest(trace: &Trace, breakdown: &Breakdown) -> Option<Group> {
        let mut groups: BTreeMap<(usize, &str), Group> = BTreeMap::new();
        for (index, &own_ns) in breakdown.own_ns.iter().enumerate().filter(|(_, own_ns)| **own_ns > 0) {
            let alone = Group {
                index,
                count: 1,
                own_ns,
            };
            groups
                .entry(key(trace, index))
                .and_modify(|group| {
                    if own_ns > breakdown.own_ns[group.index] {
                        group.index = index;
                    }
                    group.count += 1;
                    group.own_ns += own_ns;
                })
                .or_insert(alone);
        }
        let groups = groups.into_values();
        groups.max_by_key(|group| (group.own_ns, std::cmp::Reverse(group.index)))
    }

    /// The span's name, and how many there are: `26 commands iptables`.
    pub(super) fn name(&self, trace: &Trace) -> String {
        let name = registry::name(&trace.spans[self.index]);
        match name.split_once(' ') {
            Some((kind, which)) if self.count > 1 => format!("{} {kind}s {which}", self.count),
            _ => name,
        }
    }
}

/// A command's: the plugin that it ran for, and its name. Any other span is a finding of its own.
fn key(trace: &Trace, index: usize) -> (usize, &str) {
    let Detail::Command(command) = &trace.spans[index].detail else {
        return (index, "");
    };
    let mut above = std::iter::successors(Some(index), |&at| trace.spans[at].parent);
    let plugin = above.find(|&at| trace.spans[at].detail.as_plugin().is_some());
    (plugin.unwrap_or(index), command.name.as_ref())
}
