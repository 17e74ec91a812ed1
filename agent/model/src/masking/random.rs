//! Secrets that are known by their looks: JWTs, keys with a vendor's prefix, and long random strings.
//!
//! What stays on purpose: ids of containers, digests and hashes (hexadecimal), UUIDs, numbers, names of chains and
//! interfaces, paths. Does not: look at what stands before a string.

use std::ops::Range;

/// Shortest random string, in characters.
const RANDOM_MIN: usize = 20;
/// Shortest one of upper-case letters and digits only: names of chains are shorter.
const UPPER_MIN: usize = 32;
/// Shortest string whose parts, between dashes, slashes and the like, are judged together.
const JOINED_MIN: usize = 32;
/// Hexadecimal strings up to this length are ids and hashes; 96 and 128 digits are SHA-384 and SHA-512.
const HEX_MAX: usize = 64;
/// Changes between kinds of characters in a random string, in percent of its length. Random text has about 60,
/// `EndpointAttachShared` 10.
const CHANGES_MIN: usize = 22;
/// Prefixes that vendors give to keys (GitHub, GitLab, Slack, AWS, Google, HashiCorp Vault, npm).
const PREFIXES: [&str; 13] = [
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "ASIA",
    "AIza",
    "hvs.",
    "npm_",
];
/// Shortest key with such a prefix.
const PREFIXED_MIN: usize = 16;
/// Prefixes of names of chains, sets and interfaces: kube-proxy, the CNI plugins, Calico, Cilium, Antrea.
const NAMES: [&str; 9] = [
    "KUBE-",
    "CNI-",
    "cni-",
    "cali",
    "CILIUM",
    "ANTREA",
    "veth",
    "service-",
    "endpoint-",
];

/// The secrets in `text` that are known by their looks.
pub(super) fn find(text: &str, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_run_byte(bytes[at]) {
            at += 1;
            continue;
        }
        let length = bytes[at..].iter().take_while(|byte| is_run_byte(**byte)).count();
        judge(text, at..at + length, found);
        at += length;
    }
}

/// A character that keys, tokens, base64 (RFC 4648, sections 4 and 5) and paths consist of; all others separate words.
fn is_run_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'=' | b'~')
}

/// Judges one word, part by part and as a whole.
fn judge(text: &str, run: Range<usize>, found: &mut Vec<Range<usize>>) {
    if run.len() < PREFIXED_MIN {
        return;
    }
    // An `=` ends a name or pads base64; a path's parts are judged one by one.
    let word = &text[run.clone()];
    let mut begin = run.start;
    for part in word.split_inclusive(['/', '=']) {
        let name = part.trim_end_matches(['/', '=']);
        if is_key(name) {
            let padding = text[begin + name.len()..run.end]
                .bytes()
                .take_while(|byte| *byte == b'=')
                .count();
            found.push(begin..begin + name.len() + padding);
        } else {
            random_part(text, begin..begin + name.len(), found);
        }
        begin += part.len();
    }
    if is_joined_base64(word.trim_end_matches('=')) {
        found.push(run);
    }
}

/// A JWT, a vendor's key, or a token of kubeadm (`[a-z0-9]{6}.[a-z0-9]{16}`).
fn is_key(word: &str) -> bool {
    let is_jwt = word.starts_with("eyJ") && word.contains('.');
    let has_prefix = PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    let is_bootstrap = word.split_once('.').is_some_and(|(id, secret)| {
        let is_base36 = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let has_digit = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
        id.len() == 6 && secret.len() == 16 && is_base36(id) && is_base36(secret) && has_digit(secret)
    });
    word.len() >= PREFIXED_MIN && (is_jwt || has_prefix || is_bootstrap)
}

/// Judges what stands between slashes.
fn random_part(text: &str, part: Range<usize>, found: &mut Vec<Range<usize>>) {
    let word = &text[part.clone()];
    if word.len() < RANDOM_MIN || NAMES.iter().any(|name| word.starts_with(name)) {
        return;
    }
    let pieces = || word.split(|character: char| !character.is_ascii_alphanumeric());
    let random: usize = pieces()
        .filter(|piece| piece.len() >= 4 && is_irregular(piece) && !piece.starts_with("AppX"))
        .map(str::len)
        .sum();
    if word.len() >= JOINED_MIN && random * 5 >= word.len() * 3 {
        found.push(part);
        return;
    }
    let mut begin = part.start;
    for piece in pieces() {
        let is_upper = !piece.bytes().any(|byte| byte.is_ascii_lowercase());
        let min = if is_upper { UPPER_MIN } else { RANDOM_MIN };
        // Names of Windows' packaged applications.
        if piece.len() >= min && is_irregular(piece) && !piece.starts_with("AppX") {
            found.push(begin..begin + piece.len());
        }
        begin += piece.len() + 1;
    }
}

/// Base64 with slashes in it: not a path, since it has no dot and does not begin with a slash.
fn is_joined_base64(word: &str) -> bool {
    if word.len() < JOINED_MIN {
        return false;
    }
    let has = |kind: fn(&u8) -> bool| word.as_bytes().iter().any(kind);
    let is_base64 = word
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    let joined = || -> String { word.chars().filter(char::is_ascii_alphanumeric).collect() };
    is_base64
        && !word.starts_with('/')
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
        && is_irregular(&joined())
}

/// Letters and digits that change their kind often, and are no hexadecimal id.
fn is_irregular(piece: &str) -> bool {
    let bytes = piece.as_bytes();
    if is_hex(piece) {
        return false;
    }
    let kind = |byte: u8| match byte {
        b'0'..=b'9' => 0,
        b'A'..=b'Z' => 1,
        _ => 2,
    };
    let mut changes = 0;
    for at in 1..bytes.len() {
        let (before, now) = (kind(bytes[at - 1]), kind(bytes[at]));
        // `Attach`: the change behind a capital letter belongs to the word.
        let capital = before == 1 && now == 2 && (at < 2 || kind(bytes[at - 2]) != 1);
        changes += usize::from(before != now && !capital);
    }
    changes * 100 >= bytes.len() * CHANGES_MIN
}

/// Hexadecimal digits of one case, as an id or hash has them; also `0x` and up to 16 digits.
fn is_hex(piece: &str) -> bool {
    let digits = piece.strip_prefix("0x").unwrap_or(piece);
    let is = |letters: fn(&u8) -> bool| digits.bytes().all(|byte| byte.is_ascii_digit() || letters(&byte));
    let is_hex = is(|byte| matches!(byte, b'a'..=b'f')) || is(|byte| matches!(byte, b'A'..=b'F'));
    let max = if digits.len() < piece.len() { 16 } else { HEX_MAX };
    is_hex && (digits.len() <= max || matches!(piece.len(), 96 | 128))
}
