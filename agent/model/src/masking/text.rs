//! Masks secrets in a text of any form: a message, JSON, a shell command, a URL.
//!
//! Names before values, flags, URLs, headers and PEM blocks are found here; strings that are known by their looks in
//! `random`. A text without any of them is returned as it is. Does not: parse any of these forms.

use std::borrow::Cow;
use std::ops::Range;

use super::{MASK, names, random, values};

/// Masking one secret may show that another word is one; texts that need more passes than this were not seen.
const PASSES_MAX: usize = 6;
/// Words behind `Bearer` or `Basic` shorter than this are ordinary text ("basic check failed").
const CREDENTIAL_MIN: usize = 12;
/// How the first line of a PEM block begins (RFC 7468, section 3).
const BEGIN: &str = "-----BEGIN";

/// `text` with every secret masked.
#[must_use]
pub fn text(text: &str) -> Cow<'_, str> {
    let mut masked = Cow::Borrowed(text);
    for _ in 0..PASSES_MAX {
        match pass(&masked) {
            Some(next) => masked = Cow::Owned(next),
            None => break,
        }
    }
    masked
}

/// `None` when there is nothing to mask.
fn pass(text: &str) -> Option<String> {
    let mut found = Vec::new();
    find(text, &mut found);
    found.retain(|span| !span.is_empty() && &text[span.clone()] != MASK);
    if found.is_empty() {
        return None;
    }
    found.sort_by_key(|span| (span.start, span.end));
    let mut masked = String::with_capacity(text.len() + MASK.len());
    let mut at = 0;
    for span in found {
        if span.start >= at {
            masked.push_str(&text[at..span.start]);
            masked.push_str(MASK);
        }
        at = at.max(span.end);
    }
    masked.push_str(&text[at..]);
    (masked != text).then_some(masked)
}

/// Collects what is to be masked. One look at the bytes spares most texts most searches: it runs for every argument and
/// message.
fn find(text: &str, found: &mut Vec<Range<usize>>) {
    let mut has_separator = false;
    let mut has_blank = false;
    let mut has_at = false;
    let mut has_dash = false;
    for byte in text.bytes() {
        has_separator |= matches!(byte, b'=' | b':');
        has_blank |= byte.is_ascii_whitespace();
        has_at |= byte == b'@';
        has_dash |= byte == b'-';
    }
    if has_separator {
        named_values(text, found);
        urls(text, found);
    }
    if has_at && has_separator {
        user_and_password(text, found);
    }
    if has_blank {
        words(text, found);
    }
    if has_dash && text.len() > BEGIN.len() {
        pem(text, found);
    }
    random::find(text, found);
}

/// `NAME=VALUE`, `NAME: VALUE`, `"NAME": "VALUE"`.
fn named_values(text: &str, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    for at in memchr::memchr2_iter(b'=', b':', bytes) {
        let before = bytes[..at]
            .iter()
            .rev()
            .take_while(|byte| matches!(byte, b' ' | b'\t' | b'"' | b'\'' | b'\\'));
        let end = at - before.count();
        let length = bytes[..end]
            .iter()
            .rev()
            .take(names::NAME_MAX)
            .take_while(|byte| names::is_name_byte(**byte))
            .count();
        if length == 0 || !names::is_secret(&text[end - length..end]) {
            continue;
        }
        let behind = &bytes[at + 1..];
        // `=>`, `:=` and `==`.
        let more = behind.iter().take_while(|byte| matches!(byte, b'=' | b'>')).count();
        found.push(values::value(text, at + 1 + more));
    }
}

/// Userinfo and the values of queries and fragments (RFC 3986, sections 3.2.1, 3.4, 3.5).
fn urls(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, _) in text.match_indices("://") {
        let begin = at + 3;
        let ends =
            |character: char| character.is_whitespace() || matches!(character, '"' | '\'' | '<' | '>' | '`' | '\\');
        let end = text[begin..].find(ends).map_or(text.len(), |length| begin + length);
        let url = &text[begin..end];
        let authority = url.find(['/', '?', '#']).unwrap_or(url.len());
        let port = url[..authority].find(':').map(|colon| &url[colon + 1..authority]);
        let is_port = port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit())) || url.starts_with('[');
        let userinfo = match url[..authority].rfind('@') {
            Some(length) => length,
            // A password with a slash in it, or a text that was cut within a password.
            None if !is_port => url.rfind('@').unwrap_or(authority),
            None => 0,
        };
        found.push(begin..begin + userinfo);
        if let Some(query) = url[userinfo..].find(['?', '#']) {
            query_values(text, begin + userinfo + query + 1..end, found);
        }
    }
}

/// The values of a query or fragment; an item without `=` is a value as a whole.
fn query_values(text: &str, query: Range<usize>, found: &mut Vec<Range<usize>>) {
    let mut begin = query.start;
    for item in text[query].split_inclusive(['&', '#', '?']) {
        let length = item.trim_end_matches(['&', '#', '?']).len();
        let value = item[..length].find('=').map_or(0, |equals| equals + 1);
        found.push(begin + value..begin + length);
        begin += item.len();
    }
}

/// `USER:PASSWORD@HOST` without a scheme, as in names of data sources. An image's digest has the same form.
fn user_and_password(text: &str, found: &mut Vec<Range<usize>>) {
    for at in memchr::memchr_iter(b'@', text.as_bytes()) {
        let is_digest = ["sha256:", "sha384:", "sha512:"]
            .iter()
            .any(|prefix| text[at + 1..].starts_with(prefix));
        let begins =
            |character: char| character.is_whitespace() || matches!(character, '"' | '\'' | '(' | ',' | ';' | '@');
        let token = text[..at].rsplit(begins).next().unwrap_or_default();
        let begin = at - token.len();
        if is_digest || token.contains("://") {
            continue;
        }
        if let Some(colon) = token.find(':').filter(|colon| *colon > 0) {
            found.push(begin + colon + 1..at);
        }
    }
}

/// `--password VALUE` and `Bearer VALUE` within one text.
fn words(text: &str, found: &mut Vec<Range<usize>>) {
    let mut begin = 0;
    while begin < text.len() {
        let rest = &text[begin..];
        let gap = rest.len() - rest.trim_start().len();
        begin += gap;
        let word = text[begin..].split(char::is_whitespace).next().unwrap_or_default();
        let behind = begin + word.len();
        let bare = word.trim_matches(['"', '\'', '(', '\\', '`', ',']);
        let is_scheme = ["bearer", "basic"].iter().any(|scheme| {
            let tail = bare.len().checked_sub(scheme.len()).and_then(|at| bare.get(at..));
            tail.is_some_and(|tail| tail.eq_ignore_ascii_case(scheme))
        });
        let blanks = values::blanks(&text[behind..]);
        if names::contains(bare, "securestring") {
            let end = text[behind..].find(')').map_or(text.len(), |length| behind + length);
            found.push((behind + blanks).min(end)..end);
        } else if is_scheme {
            let value = values::value(text, behind);
            if value.len() >= CREDENTIAL_MIN {
                found.push(value);
            }
        } else if bare.starts_with('-')
            && !bare.contains(['=', ':'])
            && names::is_secret(bare)
            && !text[behind + blanks..].starts_with("--")
        {
            found.push(values::value(text, behind));
        }
        begin = behind;
    }
}

/// Between the lines that begin and end a PEM block (RFC 7468); to the end of the text if it was cut.
fn pem(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, marker) in text.match_indices(BEGIN) {
        let label = at + marker.len();
        let Some(length) = text[label..].find("-----") else {
            found.push(label..text.len());
            break;
        };
        let begin = label + length + 5;
        let end = text[begin..]
            .find("-----END")
            .map_or(text.len(), |length| begin + length);
        found.push(begin..end);
    }
}
