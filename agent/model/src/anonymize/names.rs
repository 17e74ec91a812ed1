//! Substitutes of names: pods, namespaces, labels, the node, labels of DNS names.
//!
//! Used by `anonymize` for fields that hold a name, and for texts in which a known one may stand. The number in a substitute
//! counts the names so far, so it depends on their order alone: the same recording gets the same substitutes each time.
//! Does not: recognise a name that no field has named before.

use std::collections::BTreeMap;

/// Labels of DNS names that say nothing about their owner.
const COMMON: [&str; 22] = [
    "svc",
    "cluster",
    "local",
    "pod",
    "default",
    "kube-system",
    "kube-dns",
    "kubernetes",
    "in-addr",
    "ip6",
    "arpa",
    "com",
    "org",
    "net",
    "io",
    "internal",
    "localdomain",
    "localhost",
    "test",
    "example",
    "_tcp",
    "_udp",
];
/// Shorter names are replaced only where a field holds nothing else.
const IN_TEXT_MIN: usize = 3;

/// The names seen so far.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// By name.
    substitutes: BTreeMap<String, String>,
    /// Those that are looked for in texts, longest first: `web-frontend` before `web`.
    in_texts: Vec<(String, String)>,
}

impl Names {
    /// The substitute of a name; `kind` begins a new one.
    pub(super) fn of(&mut self, name: &str, kind: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        if let Some(known) = self.substitutes.get(name) {
            return known.clone();
        }
        let substitute = format!("{kind}-{}", self.substitutes.len() + 1);
        self.insert(name, &substitute);
        substitute
    }

    /// Sets the substitute of a name.
    pub(super) fn insert(&mut self, name: &str, substitute: &str) {
        self.substitutes.insert(name.to_owned(), substitute.to_owned());
        // A label's value such as `true` is a word of its own right.
        if name.len() >= IN_TEXT_MIN && !substitute.starts_with("value-") && !substitute.starts_with("name-") {
            let place = self.in_texts.partition_point(|(other, _)| other.len() >= name.len());
            self.in_texts.insert(place, (name.to_owned(), substitute.to_owned()));
        }
    }

    /// A DNS name, label by label, so that names of one domain stay names of one domain.
    pub(super) fn dns(&mut self, name: &str) -> String {
        let labels: Vec<String> = name
            .split('.')
            .map(|label| match COMMON.contains(&label) {
                true => label.to_owned(),
                false => self.of(label, "name"),
            })
            .collect();
        labels.join(".")
    }

    /// Known names within a text, where no letter or digit stands beside them.
    pub(super) fn in_text(&self, text: &str) -> String {
        // A word of a label or DNS name may be any word: `start`.
        let is_word = |substitute: &&String| substitute.starts_with("value-") || substitute.starts_with("name-");
        if let Some(whole) = self.substitutes.get(text).filter(|whole| !is_word(whole)) {
            return whole.clone();
        }
        let mut replaced = String::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            let is_begin = text[..at]
                .chars()
                .next_back()
                .is_none_or(|before| !before.is_alphanumeric());
            let known = self.in_texts.iter().find(|(name, _)| {
                is_begin
                    && text[at..]
                        .strip_prefix(name.as_str())
                        .is_some_and(|rest| rest.chars().next().is_none_or(|next| !next.is_alphanumeric()))
            });
            match known {
                Some((name, substitute)) => {
                    replaced.push_str(substitute);
                    at += name.len();
                }
                None => {
                    let Some(character) = text[at..].chars().next() else {
                        break;
                    };
                    replaced.push(character);
                    at += character.len_utf8();
                }
            }
        }
        replaced
    }
}

/// `/home/NAME`, `/Users/NAME` and `C:\Users\NAME` without the name.
pub(super) fn without_home(text: &str) -> String {
    let mut replaced = text.to_owned();
    for place in ["/home/", "/Users/", "\\Users\\"] {
        let mut from = 0;
        while let Some(found) = replaced[from..].find(place) {
            let begin = from + found + place.len();
            let ends =
                |character: char| matches!(character, '/' | '\\' | ':' | '"' | '\'') || character.is_whitespace();
            let end = replaced[begin..]
                .find(ends)
                .map_or(replaced.len(), |length| begin + length);
            if begin < end {
                replaced.replace_range(begin..end, "user");
            }
            from = begin;
        }
    }
    replaced
}

/// Replaces words, which are the longest runs of characters that `is_part` accepts.
pub(super) fn replace_words(
    text: &str,
    is_part: impl Fn(char) -> bool,
    mut substitute: impl FnMut(&str) -> Option<String>,
) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let begin = rest.find(&is_part).unwrap_or(rest.len());
        replaced.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest.find(|character: char| !is_part(character)).unwrap_or(rest.len());
        let word = &rest[..end];
        match substitute(word) {
            Some(new) => replaced.push_str(&new),
            None => replaced.push_str(word),
        }
        rest = &rest[end..];
    }
    replaced
}
