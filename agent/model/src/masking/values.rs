//! Where the value behind a name begins and ends.
//!
//! Used by `text`. Errs towards the longer value: what is masked too much is a loss, what is masked too little a leak.

use std::ops::Range;

use super::names;

/// Authentication schemes whose credentials are one word (RFC 9110, section 11.4).
const SCHEMES: [&str; 5] = ["bearer", "basic", "token", "negotiate", "apikey"];
/// Schemes with parameters up to the end of the line (RFC 7616; AWS Signature Version 4).
const SCHEMES_WITH_PARAMETERS: [&str; 4] = ["digest", "aws4-hmac-sha256", "hawk", "oauth"];
/// Values that are no secrets whatever their name.
const LITERALS: [&str; 5] = ["true", "false", "null", "nil", "none"];

/// The value from `begin` on: quoted, structured or one word. Empty when there is none.
pub(super) fn value(text: &str, begin: usize) -> Range<usize> {
    let begin = begin + blanks(&text[begin..]);
    let rest = &text[begin..];
    let backslashes = rest.bytes().take_while(|byte| *byte == b'\\').count();
    match rest.as_bytes().get(backslashes) {
        Some(quote @ (b'"' | b'\'')) => {
            let inside = begin + backslashes + 1;
            let end = closing_quote(text, inside, *quote, backslashes);
            return with_scheme(text, inside..end);
        }
        Some(b'{' | b'[') if backslashes == 0 => return begin..closing_bracket(text, begin),
        _ => {}
    }
    let word = with_scheme(text, begin..word_end(text, begin));
    let is_literal = LITERALS
        .iter()
        .any(|literal| text[word.clone()].eq_ignore_ascii_case(literal));
    if is_literal { word.start..word.start } else { word }
}

/// Leaves the scheme out of `Bearer x`, whose name is no secret.
fn with_scheme(text: &str, value: Range<usize>) -> Range<usize> {
    let rest = &text[value.start..];
    let word = rest.bytes().take_while(|byte| names::is_name_byte(*byte)).count();
    let gap = blanks(&rest[word..]);
    if gap == 0 {
        return value;
    }
    let is = |schemes: &[&str]| schemes.iter().any(|scheme| rest[..word].eq_ignore_ascii_case(scheme));
    let begin = value.start + word + gap;
    let is_quoted = value.end > value.start + word;
    let end = match () {
        () if is_quoted && (is(&SCHEMES) || is(&SCHEMES_WITH_PARAMETERS)) => value.end.max(begin),
        () if is(&SCHEMES_WITH_PARAMETERS) => text[begin..].find('\n').map_or(text.len(), |length| begin + length),
        () if is(&SCHEMES) => word_end(text, begin),
        () => return value,
    };
    begin..end
}

/// End of a word that is not quoted. Punctuation ends it only where something else begins behind it.
pub(super) fn word_end(text: &str, begin: usize) -> usize {
    let bytes = text.as_bytes();
    let is_end = |at: usize| {
        bytes
            .get(at)
            .is_none_or(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\''))
    };
    for (offset, character) in text[begin..].char_indices() {
        let at = begin + offset;
        let next = at + character.len_utf8();
        let ends = match character {
            _ if character.is_whitespace() => true,
            '"' | '\'' => is_end(next) || bytes.get(next).is_some_and(|byte| b",;:)}]".contains(byte)),
            '\\' => matches!(bytes.get(next), Some(b'"' | b'\'' | b'n' | b'r')) && offset > 0,
            ',' | ';' | '&' | '|' => is_end(next) || begins_pair(text, next),
            ')' | '}' | ']' | '>' => is_end(next) || bytes.get(next).is_some_and(|byte| b",;:.)}]>".contains(byte)),
            _ => false,
        };
        if ends {
            return at;
        }
    }
    text.len()
}

/// `NAME=` or `NAME:` follows, perhaps quoted.
fn begins_pair(text: &str, at: usize) -> bool {
    let rest = text[at..].trim_start_matches(['"', '\'', '\\']);
    let name = rest.bytes().take_while(|byte| names::is_name_byte(*byte)).count();
    name > 0
        && rest[name..]
            .trim_start_matches(['"', '\'', '\\'])
            .starts_with(['=', ':'])
}

/// The quote that closes, with as many backslashes before it as the one that opened; else the end of the text.
fn closing_quote(text: &str, begin: usize, quote: u8, backslashes: usize) -> usize {
    let mut run = 0;
    for (at, byte) in text.bytes().enumerate().skip(begin) {
        if byte == quote && run == backslashes {
            return at - run;
        }
        run = if byte == b'\\' { run + 1 } else { 0 };
    }
    text.len()
}

/// Behind the bracket that closes the one at `begin`; else the end of the text.
fn closing_bracket(text: &str, begin: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in text.bytes().enumerate().skip(begin) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return offset + 1;
        }
    }
    text.len()
}

/// Length of the spaces and tabs that `text` begins with.
pub(super) fn blanks(text: &str) -> usize {
    text.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}
