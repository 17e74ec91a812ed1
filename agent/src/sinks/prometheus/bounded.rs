//! Bounds the values of a label: the first so many distinct ones are kept, the rest are counted as `other`.
//!
//! Plugins, commands and networks are few on a sane node, but their names come from outside: a plugin that spawns
//! randomly named binaries must not grow the agent or its Prometheus.

use std::collections::BTreeSet;

/// What further values are counted as.
pub const OTHER: &str = "other";
/// What an unknown (empty) value is counted as.
pub const UNKNOWN: &str = "unknown";
/// Longest label value, in bytes.
const MAX_BYTES: usize = 64;

/// The values of one label.
#[derive(Clone, Debug)]
pub struct BoundedLabel {
    seen: BTreeSet<String>,
    most: usize,
}

impl BoundedLabel {
    /// A label with at most `most` values besides `other` and `unknown`.
    #[must_use]
    pub fn new(most: usize) -> BoundedLabel {
        BoundedLabel {
            seen: BTreeSet::new(),
            most,
        }
    }

    /// The value to use for `value`.
    pub fn admit(&mut self, value: &str) -> String {
        if value.is_empty() {
            return UNKNOWN.to_owned();
        }
        // Nobody names a plugin so but to paint on the terminal of whoever reads the metrics.
        if value.chars().any(unprintable) {
            return OTHER.to_owned();
        }
        if self.seen.contains(value) {
            return value.to_owned();
        }
        if value.len() > MAX_BYTES || self.seen.len() >= self.most {
            return OTHER.to_owned();
        }
        self.seen.insert(value.to_owned());
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
