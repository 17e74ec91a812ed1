//! Lists of short texts in one piece of memory: the arguments of a process and what is kept of its environment.
//!
//! Used by events and spans. Every exec on the node has such a list, and a list of separate strings costs an
//! allocation for each, made and freed once per event. In JSON they are plain lists. Does not: hold a zero byte, which
//! no argument or variable can have; one that comes from elsewhere is escaped.

use std::fmt;

use memchr::{memchr, memrchr};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Texts one behind the other, each ended by a zero byte, as the kernel keeps them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TextList(String);

impl TextList {
    /// The list of texts that are already one behind the other; the last one may lack its zero byte.
    #[must_use]
    pub fn from_terminated(texts: impl Into<String>) -> TextList {
        let mut texts = texts.into();
        if !texts.is_empty() && !texts.ends_with('\0') {
            texts.push('\0');
        }
        TextList(texts)
    }

    /// Appends a text.
    pub fn push(&mut self, text: &str) {
        self.0.reserve(text.len() + 1);
        if text.contains('\0') {
            self.0.push_str(&text.replace('\0', "\\x00"));
        } else {
            self.0.push_str(text);
        }
        self.0.push('\0');
    }

    /// The texts in order.
    #[must_use]
    pub fn iter(&self) -> Texts<'_> {
        Texts(&self.0)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All but the first, with spaces between: the arguments behind `argv[0]`.
    #[must_use]
    pub fn join_rest(&self) -> String {
        self.iter().skip(1).collect::<Vec<_>>().join(" ")
    }

    /// Bytes that the texts take, their ends included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// The texts of a list.
#[derive(Clone, Debug)]
pub struct Texts<'a>(&'a str);

impl<'a> Texts<'a> {
    /// The texts of bytes as [`TextList::from_terminated`] takes them.
    #[must_use]
    pub fn of_terminated(texts: &'a str) -> Texts<'a> {
        Texts(texts)
    }
}

impl<'a> Iterator for Texts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        take_first(&mut self.0, 0)
    }
}

impl DoubleEndedIterator for Texts<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let texts = self.0.strip_suffix('\0').unwrap_or(self.0);
        let begin = memrchr(0, texts.as_bytes()).map_or(0, |end| end + 1);
        let (rest, text) = texts.split_at(begin);
        self.0 = rest;
        Some(text)
    }
}

/// What stands before the first `byte`, an ASCII character, and what stands behind it. As `str::split_once`, which looks
/// at each byte by itself.
#[must_use]
pub fn split_once(text: &str, byte: u8) -> Option<(&str, &str)> {
    debug_assert!(byte.is_ascii());
    let at = memchr(byte, text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

/// The texts that each end with `byte`, an ASCII character; the last one may lack it. As `str::split_terminator`, which
/// looks at each byte by itself.
pub fn split(text: &str, byte: u8) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || take_first(&mut rest, byte))
}

/// Takes the first text off `rest`; `None` at the end. An empty text before a `byte` is a text.
fn take_first<'a>(rest: &mut &'a str, byte: u8) -> Option<&'a str> {
    if rest.is_empty() {
        return None;
    }
    let (text, others) = split_once(rest, byte).unwrap_or((rest, ""));
    *rest = others;
    Some(text)
}

impl<T: AsRef<str>> FromIterator<T> for TextList {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> TextList {
        let mut list = TextList::default();
        for text in texts {
            list.push(text.as_ref());
        }
        list
    }
}

impl<T: AsRef<str>, const N: usize> PartialEq<[T; N]> for TextList {
    fn eq(&self, other: &[T; N]) -> bool {
        self.iter().eq(other.iter().map(AsRef::as_ref))
    }
}

impl fmt::Debug for TextList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for TextList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for TextList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextList, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = TextList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<TextList, A::Error> {
                let mut list = TextList::default();
                while let Some(text) = texts.next_element::<String>()? {
                    list.push(&text);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(Texts)
    }
}

/// Names with values, in order: variables of an environment, kept as the kernel has them (`NAME=value`). A name holds no
/// equals sign; one that comes from elsewhere is escaped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TextPairs(TextList);

impl TextPairs {
    /// The pairs of an environment: texts with an equals sign each, one behind the other, ended by a zero byte each;
    /// the last one may lack it. Texts without an equals sign are no pairs and are passed over.
    #[must_use]
    pub fn from_terminated(texts: impl Into<String>) -> TextPairs {
        TextPairs(TextList::from_terminated(texts))
    }

    /// Appends a pair.
    pub fn push(&mut self, name: &str, value: &str) {
        let name = name.replace('=', "\\x3d");
        self.0.push(&format!("{name}={value}"));
    }

    /// Each as it stands, `NAME=value`.
    pub fn texts(&self) -> Texts<'_> {
        self.0.iter()
    }

    /// Name and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|text| split_once(text, b'='))
    }

    /// Value of the first pair with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for TextPairs {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(all: I) -> TextPairs {
        let mut pairs = TextPairs::default();
        for (name, value) in all {
            pairs.push(name.as_ref(), value.as_ref());
        }
        pairs
    }
}

impl<T: AsRef<str>, const N: usize> PartialEq<[(T, T); N]> for TextPairs {
    fn eq(&self, other: &[(T, T); N]) -> bool {
        self.iter()
            .eq(other.iter().map(|(name, value)| (name.as_ref(), value.as_ref())))
    }
}

impl fmt::Debug for TextPairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for TextPairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for TextPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextPairs, D::Error> {
        Ok(Vec::<(String, String)>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_every_text_and_are_plain_lists_in_json() {
        for texts in [&[][..], &[""], &["a"], &["", "", "b", ""], &["ü x", "=", "\"\\"]] {
            let list: TextList = texts.iter().collect();
            assert_eq!(list.iter().collect::<Vec<_>>(), texts);
            assert_eq!(list.len(), texts.len());
            let json = serde_json::to_string(&list).unwrap();
            assert_eq!(json, serde_json::to_string(texts).unwrap());
            assert_eq!(serde_json::from_str::<TextList>(&json).unwrap(), list);
        }
        for texts in ["", "\0", "a", "a\0", "\0\0", "a\0\0bc\0", "ü\0\0ä", "\0x"] {
            assert!(Texts(texts).eq(texts.split_terminator('\0')), "{texts:?}");
            assert!(split(&texts.replace('\0', ";"), b';').eq(Texts(texts)), "{texts:?}");
            assert!(Texts(texts).rev().eq(texts.split_terminator('\0').rev()), "{texts:?}");
            let (mut ours, mut theirs) = (Texts(texts), texts.split_terminator('\0'));
            assert_eq!(
                (ours.next(), ours.next_back(), ours.next()),
                (theirs.next(), theirs.next_back(), theirs.next())
            );
        }
        assert_eq!(TextList::from_terminated("a\0\0b"), ["a", "", "b"]);
        assert_eq!(TextList::from_terminated("\0"), [""]);
        assert!(TextList::from_terminated(String::new()).is_empty());
    }

    #[test]
    fn pairs_stay_pairs_whatever_is_in_them() {
        let pairs: TextPairs = [("A=B", ""), ("", "c"), ("n\0ul", "=")].into_iter().collect();
        assert_eq!(pairs, [("A\\x3dB", ""), ("", "c"), ("n\\x00ul", "=")]);
        assert_eq!((pairs.get("A\\x3dB"), pairs.get("c")), (Some(""), None));
        assert_eq!(
            TextPairs::from_terminated("A=b=\0C=\0D=e"),
            [("A", "b="), ("C", ""), ("D", "e")]
        );
        let json = serde_json::to_string(&pairs).unwrap();
        assert_eq!(json, r#"[["A\\x3dB",""],["","c"],["n\\x00ul","="]]"#);
        assert_eq!(serde_json::from_str::<TextPairs>(&json).unwrap(), pairs);
    }
}
