//! Bounds the number of values of a label: the first distinct ones up to the bound are kept, others count as `other`.
//!
//! Plugins, commands and networks are few on a node, but their names are untrusted input: a plugin that starts randomly named
//! binaries must not grow the agent or the Prometheus server. Names that a pod's owner can invent (networks of a namespace's
//! own) are shared: an owner gets another value as long as it has less than its part of what is left free, so that fifty
//! invented names leave room for those of others. [`BoundedSets`] bounds what several labels make together: fifty plugins with fifty
//! commands each would be 120,000 series on every node. Does not: expire values; a time series keeps its name.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::Hash;

/// The value for all others.
pub const OTHER: &str = "other";
/// The value for an empty one.
pub const UNKNOWN: &str = "unknown";
/// Longest label value, in bytes.
const MAX_BYTES: usize = 64;
/// Longest name of an owner, in bytes: a Kubernetes namespace has at most 63 (RFC 1123 label).
const MAX_OWNER_BYTES: usize = 64;

/// The values of one label.
#[derive(Clone, Debug)]
pub struct BoundedLabel {
    values: BTreeSet<String>,
    /// How many values each owner has, where owners share them; never more entries than values.
    owners: BTreeMap<String, usize>,
    max: usize,
    /// An owner may have this part of the values that are free.
    part: usize,
}

impl BoundedLabel {
    /// A label with at most `max` values besides `other` and `unknown`.
    #[must_use]
    pub fn new(max: usize) -> BoundedLabel {
        BoundedLabel::shared(max, 4)
    }

    /// The same; an owner gets another value as long as it has less than one `part`th of what is free.
    #[must_use]
    pub fn shared(max: usize, part: usize) -> BoundedLabel {
        BoundedLabel {
            values: BTreeSet::new(),
            owners: BTreeMap::new(),
            max,
            part: part.max(1),
        }
    }

    /// The value to use for `value`, which only the node's administrator can choose.
    pub fn admit(&mut self, value: &str) -> String {
        self.admit_of("", value)
    }

    /// The value to use for `value`, which this owner may have invented. An owner without a name is the node.
    pub fn admit_of(&mut self, owner: &str, value: &str) -> String {
        if value.is_empty() {
            return UNKNOWN.to_owned();
        }
        // Such a name is no plugin's: it would move the cursor of a terminal that prints the metrics.
        if value.chars().any(unprintable) {
            return OTHER.to_owned();
        }
        if self.values.contains(value) {
            return value.to_owned();
        }
        if value.len() > MAX_BYTES || !self.has_room(owner) {
            return OTHER.to_owned();
        }
        if !owner.is_empty() {
            *self.owners.entry(owner.to_owned()).or_default() += 1;
        }
        self.values.insert(value.to_owned());
        value.to_owned()
    }

    fn has_room(&self, owner: &str) -> bool {
        let free = self.max.saturating_sub(self.values.len());
        if owner.is_empty() {
            return free > 0;
        }
        let own = self.owners.get(owner).copied().unwrap_or(0);
        owner.len() <= MAX_OWNER_BYTES && own < free.div_ceil(self.part)
    }
}

/// The label sets of one family.
#[derive(Clone, Debug)]
pub struct BoundedSets<Labels> {
    sets: HashSet<Labels>,
    max: usize,
}

impl<Labels: Clone + Eq + Hash> BoundedSets<Labels> {
    /// At most `SETS_PER_VALUE` sets for each of the `max_label_values` values that a label can have, besides those that
    /// [`BoundedSets::admit`] makes of others.
    #[must_use]
    pub fn new(max_label_values: usize) -> BoundedSets<Labels> {
        BoundedSets {
            sets: HashSet::new(),
            max: max_label_values.saturating_mul(SETS_PER_VALUE),
        }
    }

    /// The set to use for `labels`: itself if it is known or there is room, else what `other` makes of it, which must put
    /// [`OTHER`] in place of each label from outside.
    pub fn admit(&mut self, labels: Labels, other: impl FnOnce(Labels) -> Labels) -> Labels {
        if self.sets.contains(&labels) {
            return labels;
        }
        if self.sets.len() >= self.max {
            return other(labels);
        }
        self.sets.insert(labels.clone());
        labels
    }
}

/// ADD and DEL, with success and error: a node's usual plugins and networks have room for all of them.
const SETS_PER_VALUE: usize = 4;

/// Control characters and direction overrides.
fn unprintable(char: char) -> bool {
    char.is_control() || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_values_are_kept_and_the_rest_are_other() {
        let mut label = BoundedLabel::new(2);
        assert_eq!(label.admit("bridge"), "bridge");
        assert_eq!(label.admit("portmap"), "portmap");
        assert_eq!(label.admit("third"), OTHER);
        assert_eq!(label.admit("bridge"), "bridge");
        assert_eq!(label.admit(""), UNKNOWN);
        assert_eq!(BoundedLabel::new(9).admit(&"x".repeat(65)), OTHER);
        assert_eq!(BoundedLabel::new(9).admit("esc\u{1b}[31m"), OTHER);
        assert_eq!(BoundedLabel::new(9).admit("\u{202e}egdirb"), OTHER);
        assert_eq!(BoundedLabel::new(9).admit("a \"b\" ü"), "a \"b\" ü");
    }

    #[test]
    fn label_sets_are_bounded_together() {
        let mut sets = BoundedSets::new(2);
        let other = |(_, _): (u32, u32)| (99, 99);
        for pair in 0..8 {
            assert_eq!(sets.admit((pair / 4, pair % 4), other), (pair / 4, pair % 4));
        }
        assert_eq!(sets.admit((2, 0), other), (99, 99));
        assert_eq!(sets.admit((1, 3), other), (1, 3), "what is known keeps its series");
    }

    #[test]
    fn one_namespace_with_fifty_names_leaves_room_for_others() {
        let mut label = BoundedLabel::new(50);
        assert_eq!(label.admit_of("kube-system", "podnet"), "podnet");
        let invented = |label: &mut BoundedLabel, of: &str| {
            let names = (0..50).map(|number| format!("{of}-{number}"));
            names.filter(|name| label.admit_of(of, name) == *name).count()
        };
        assert_eq!(invented(&mut label, "noisy"), 10);
        assert_eq!(label.admit_of("quiet", "storage"), "storage");
        assert_eq!(label.admit_of("noisy", "podnet"), "podnet", "what is known is nobody's");
        // Ten such namespaces, and the administrator's networks still have their names.
        for number in 0..10 {
            invented(&mut label, &format!("more-{number}"));
        }
        assert_eq!(label.admit("configured"), "configured");
        assert_eq!(label.admit_of("noisy", "another"), OTHER);
    }
}
