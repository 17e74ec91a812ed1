//! Bounds the number of values of a label: the first distinct ones up to the bound are kept, others count as `other`.
//!
//! Plugins, commands and networks are few on a node, but their names are untrusted input: a plugin that starts randomly named
//! binaries must not grow the agent or the Prometheus server. Does not: expire values; a time series keeps its name.

use std::collections::BTreeSet;

/// The value for all others.
pub const OTHER: &str = "other";
/// The value for an empty one.
pub const UNKNOWN: &str = "unknown";
/// Longest label value, in bytes.
const MAX_BYTES: usize = 64;

/// The values of one label.
#[derive(Clone, Debug)]
pub struct BoundedLabel {
    values: BTreeSet<String>,
    max: usize,
}

impl BoundedLabel {
    /// A label with at most `max` values besides `other` and `unknown`.
    #[must_use]
    pub fn new(max: usize) -> BoundedLabel {
        BoundedLabel {
            values: BTreeSet::new(),
            max,
        }
    }

    /// The value to use for `value`.
    pub fn admit(&mut self, value: &str) -> String {
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
        if value.len() > MAX_BYTES || self.values.len() >= self.max {
            return OTHER.to_owned();
        }
        self.values.insert(value.to_owned());
        value.to_owned()
    }
}

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
}
