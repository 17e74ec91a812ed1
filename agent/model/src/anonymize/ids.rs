//! Substitutes of ids: hexadecimal ones and UUIDs, wherever they stand in a text.
//!
//! Used by `anonymize`. A substitute has the form and length of its original: what parses an id, or joins two events by it,
//! works on an anonymized recording as on the recording itself. Does not: replace numbers, or hexadecimal words shorter than
//! 12 digits.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_128;

use super::names::replace_words;

/// Shortest hexadecimal id: runtimes shorten theirs to 12 or 13 digits.
const ID_MIN: usize = 12;

/// The ids seen so far.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// By their first [`ID_MIN`] digits, so that a shortened id is replaced by the shortened substitute.
    hex: BTreeMap<String, u64>,
    /// Lower case, with dashes.
    uuids: BTreeMap<String, u64>,
}

impl Ids {
    /// The whole text is an id.
    pub(super) fn is_id(&self, text: &str) -> bool {
        is_uuid(text) || is_hex(text)
    }

    /// Replaces every id in a text.
    pub(super) fn in_text(&mut self, text: &str) -> String {
        // systemd writes the dashes of a UUID as underscores.
        let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
        replace_words(text, is_part, |word| self.in_word(word))
    }

    /// Replaces the ids in a word: a UUID first, since its groups would else be taken one by one. `None` when there is none.
    fn in_word(&mut self, word: &str) -> Option<String> {
        if let Some(begin) = (0..word.len()).find(|at| word.is_char_boundary(*at) && uuid_at(word, *at)) {
            let uuid = &word[begin..begin + UUID_LENGTH];
            let before = self.in_word(&word[..begin]);
            let after = self.in_word(&word[begin + UUID_LENGTH..]);
            return Some(format!(
                "{}{}{}",
                before.as_deref().unwrap_or(&word[..begin]),
                self.uuid(uuid),
                after.as_deref().unwrap_or(&word[begin + UUID_LENGTH..])
            ));
        }
        let parts: Vec<&str> = word.split_inclusive(['-', '_']).collect();
        let mut changed = false;
        let replaced: String = parts
            .into_iter()
            .map(|part| {
                let name = part.trim_end_matches(['-', '_']);
                if is_hex(name) {
                    changed = true;
                    format!("{}{}", self.hex(name), &part[name.len()..])
                } else {
                    part.to_owned()
                }
            })
            .collect();
        changed.then_some(replaced)
    }

    /// The substitute of a hexadecimal id: digits of a hash of its number, in the case of the original.
    fn hex(&mut self, id: &str) -> String {
        let next = self.hex.len() as u64 + 1;
        let number = *self.hex.entry(id[..ID_MIN].to_ascii_lowercase()).or_insert(next);
        let mut digits = String::new();
        for part in 0_u64.. {
            if digits.len() >= id.len() {
                break;
            }
            let hash = xxh3_128(&[number.to_le_bytes(), part.to_le_bytes()].concat());
            digits.push_str(&format!("{hash:032x}"));
        }
        // The first digit is a letter: an id stays an id, also where it is cut.
        digits.replace_range(0..1, "a");
        digits.truncate(id.len());
        if id.bytes().any(|byte| byte.is_ascii_uppercase()) {
            digits.to_ascii_uppercase()
        } else {
            digits
        }
    }

    /// The substitute of a UUID: version 4 (RFC 9562, section 5.4), with its number as the last group.
    fn uuid(&mut self, uuid: &str) -> String {
        let next = self.uuids.len() as u64 + 1;
        let key = uuid.replace('_', "-").to_ascii_lowercase();
        let number = *self.uuids.entry(key).or_insert(next);
        let new = format!("00000000-0000-4000-8000-{number:012x}");
        if uuid.contains('_') { new.replace('-', "_") } else { new }
    }
}

/// Characters of a UUID: 32 digits, 4 dashes.
const UUID_LENGTH: usize = 36;

/// Whether the whole text is one UUID.
fn is_uuid(text: &str) -> bool {
    text.len() == UUID_LENGTH && uuid_at(text, 0)
}

/// `8-4-4-4-12` hexadecimal digits begin at `at` and end where no digit follows.
fn uuid_at(text: &str, at: usize) -> bool {
    let bytes = &text.as_bytes()[at..];
    let is_separator = |index: usize| matches!(index, 8 | 13 | 18 | 23);
    bytes.len() >= UUID_LENGTH
        && bytes.get(UUID_LENGTH).is_none_or(|byte| !byte.is_ascii_hexdigit())
        && bytes[..UUID_LENGTH]
            .iter()
            .enumerate()
            .all(|(index, byte)| match is_separator(index) {
                true => matches!(byte, b'-' | b'_'),
                false => byte.is_ascii_hexdigit(),
            })
}

/// At least [`ID_MIN`] hexadecimal digits with a letter among them: others are numbers.
fn is_hex(text: &str) -> bool {
    text.len() >= ID_MIN
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}
