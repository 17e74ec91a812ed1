//! JSON as Go's `encoding/json` reads it, which is what the runtimes' loaders are made of.
//!
//! Used by `libcni.rs`. It differs from `serde_json` where Go does: members keep their order and their duplicates, invalid
//! UTF-8 and lone surrogates become U+FFFD, and nesting ends at 10,000 levels. Source: `src/encoding/json/scanner.go` and
//! `decode.go`, as in Go 1.26. The parser is `json/parse.rs`.

mod parse;

use std::fmt;

/// A value of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// A number; the loaders look at none, but they refuse one that is no `float64`.
    Number {
        fits: bool,
    },
    Text(String),
    List(Vec<Value>),
    Object(Members),
}

/// The members of an object, in the order of the file, with duplicates.
pub(super) type Members = Vec<(String, Value)>;

/// Why a text is no JSON, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// Offset in bytes.
    pub(super) at: usize,
    pub(super) reason: Reason,
}

/// What is wrong with a text that is no JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is nothing but white space.
    Empty,
    /// It begins with a byte order mark of UTF-8.
    ByteOrderMark,
    /// It is UTF-16, with or without a byte order mark.
    Utf16,
    /// A comment.
    Comment,
    /// A comma before a closing bracket.
    TrailingComma,
    /// More text after the value.
    TrailingText,
    /// The text ends within the value.
    Unfinished,
    /// No value where one is expected.
    NoValue,
    /// No member name where one is expected.
    NoKey,
    /// No colon after a member's name.
    NoColon,
    /// Neither a comma nor the end of an object.
    NoCommaInObject,
    /// Neither a comma nor the end of a list.
    NoCommaInList,
    /// A control character within a string.
    ControlCharacter,
    /// A backslash with something else than JSON allows.
    Escape,
    /// A number that is none in JSON, such as 01, +1, `1.` or NaN.
    Number,
    /// Nesting deeper than Go reads.
    TooDeep,
}

impl Reason {
    /// Whether `jq` refuses the same text. It accepts an empty file, a byte order mark, several values and more forms of
    /// numbers (jq 1.6).
    pub(super) fn shown_by_jq(self) -> bool {
        matches!(
            self,
            Reason::TrailingComma
                | Reason::Unfinished
                | Reason::NoValue
                | Reason::NoKey
                | Reason::NoColon
                | Reason::NoCommaInObject
                | Reason::NoCommaInList
                | Reason::Escape
                | Reason::ControlCharacter
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Empty => "the file is empty",
            Reason::ByteOrderMark => "the file starts with a byte order mark, which JSON does not allow",
            Reason::Utf16 => "the file is UTF-16; JSON is UTF-8",
            Reason::Comment => "a comment, which JSON does not allow",
            Reason::TrailingComma => "trailing comma",
            Reason::TrailingText => "trailing characters",
            Reason::Unfinished => "the file ends too early",
            Reason::NoValue => "expected value",
            Reason::NoKey => "expected a key in double quotes",
            Reason::NoColon => "expected `:`",
            Reason::NoCommaInObject => "expected `,` or `}`",
            Reason::NoCommaInList => "expected `,` or `]`",
            Reason::ControlCharacter => "a line break, tab or other control character within a string",
            Reason::Escape => "invalid escape in a string",
            Reason::Number => "invalid number",
            Reason::TooDeep => "nested deeper than 10000 levels",
        })
    }
}

impl Value {
    /// The value as it is once it went through a Go map and back: of equal keys the last stays, and keys are in the order of
    /// their bytes. libcni passes every plugin's configuration on in this form.
    pub(super) fn canonical(self) -> Value {
        match self {
            Value::List(values) => Value::List(values.into_iter().map(Value::canonical).collect()),
            Value::Object(members) => {
                let mut members: Members = members
                    .into_iter()
                    .map(|(key, value)| (key, value.canonical()))
                    .collect();
                // The sort is stable: of equal keys the last of the file comes last.
                members.sort_by(|one, other| one.0.cmp(&other.0));
                members.reverse();
                members.dedup_by(|next, kept| next.0 == kept.0);
                members.reverse();
                Value::Object(members)
            }
            other => other,
        }
    }

    /// Whether all numbers in it fit a `float64`. Go refuses others where it decodes into an `interface{}`.
    pub(super) fn numbers_fit(&self) -> bool {
        match self {
            Value::Number { fits } => *fits,
            Value::List(values) => values.iter().all(Value::numbers_fit),
            Value::Object(members) => members.iter().all(|(_, value)| value.numbers_fit()),
            Value::Null | Value::Bool(_) | Value::Text(_) => true,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_object(&self) -> Option<&Members> {
        match self {
            Value::Object(members) => Some(members),
            _ => None,
        }
    }
}

/// The member of exactly this name, as a Go map has it: the last one.
pub(super) fn exact<'a>(members: &'a Members, key: &str) -> Option<&'a Value> {
    members
        .iter()
        .rev()
        .find(|(have, _)| have == key)
        .map(|(_, value)| value)
}

/// The member that a Go struct's field of this name takes: the last one whose name differs at most in case.
pub(super) fn folded<'a>(members: &'a Members, key: &str) -> Option<&'a Value> {
    let found = members.iter().rev().find(|(have, _)| equal_fold(have, key));
    found.map(|(_, value)| value)
}

/// Whether two names are one to Go (`bytes.EqualFold`). `field` is ASCII, and only two other characters fold to a letter of
/// ASCII: U+017F (long s) to s, U+212A (Kelvin sign) to k.
pub(super) fn equal_fold(name: &str, field: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    name.chars().map(fold).eq(field.chars().map(fold))
}
