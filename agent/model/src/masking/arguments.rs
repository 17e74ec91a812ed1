//! Masks secrets in a list of arguments, where a value may be the argument behind its name.
//!
//! Does not: know programs. `-p VALUE` is a protocol to iptables and a password to sshpass; it stays.

use std::borrow::Cow;

use super::{MASK, names, text, values};
use crate::text_list::TextList;

/// Words that are followed by a secret without being flags: `nmcli wifi connect x password y`.
const BARE: [&str; 5] = ["password", "passwd", "passphrase", "psk", "wpa-psk"];
/// Flags of curl, wget and others whose value is `USER:PASSWORD`.
const USER_FLAGS: [&str; 5] = ["-u", "--user", "-U", "--proxy-user", "--http-user"];

/// The arguments with every secret masked; `None` when there is none, so that the usual case copies nothing.
#[must_use]
pub fn arguments(args: &TextList) -> Option<TextList> {
    let mut previous = "";
    let is_clean = args.iter().enumerate().all(|(index, argument)| {
        let is_clean = masked(index, previous, argument) == argument;
        previous = argument;
        is_clean
    });
    if is_clean {
        return None;
    }
    let mut previous = "";
    let list = args.iter().enumerate().map(|(index, argument)| {
        let masked = masked(index, previous, argument);
        previous = argument;
        masked
    });
    Some(list.collect())
}

/// One argument behind another; borrowed when it holds no secret.
fn masked<'a>(index: usize, previous: &str, argument: &'a str) -> Cow<'a, str> {
    if argument.is_empty() || argument == MASK {
        return Cow::Borrowed(argument);
    }
    // `argv[0]` is no flag.
    if index > 1 && is_value_of(previous, argument) {
        return Cow::Borrowed(MASK);
    }
    if index > 1 && USER_FLAGS.contains(&previous) {
        return user_and_password(argument);
    }
    match named(argument) {
        Some(begin) if begin == argument.len() || &argument[begin..] == MASK => Cow::Borrowed(argument),
        Some(begin) => Cow::Owned(format!("{}{MASK}", &argument[..begin])),
        None => text(argument),
    }
}

/// `argument` is the value of the flag before it.
fn is_value_of(previous: &str, argument: &str) -> bool {
    // A second slash makes it a path.
    let is_option = previous.strip_prefix('/').is_some_and(|name| !name.contains('/'));
    let is_flag = (previous.starts_with('-') || is_option) && !previous.contains(['=', ':']);
    let is_named = (is_flag && names::is_secret(previous)) || BARE.contains(&previous);
    is_named && (!argument.starts_with("--") || argument.starts_with("-----"))
}

/// Where the value begins in `NAME=VALUE` or `NAME: VALUE`, if the name is a secret's. All that follows is the value,
/// whatever is in it, except the scheme of a header.
fn named(argument: &str) -> Option<usize> {
    let dashes = argument.len() - argument.trim_start_matches(['-', '/']).len();
    let name = argument[dashes..]
        .bytes()
        .take_while(|byte| names::is_name_byte(*byte))
        .count();
    let separator = dashes + name;
    let is_separated = argument[separator..].starts_with(['=', ':']);
    if name == 0 || !is_separated || !names::is_secret(&argument[dashes..separator]) {
        return None;
    }
    let begin = separator + 1 + values::blanks(&argument[separator + 1..]);
    let scheme = ["bearer ", "basic "].iter().find(|scheme| {
        let start = argument.get(begin..begin + scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    Some(begin + scheme.map_or(0, |scheme| scheme.len()))
}

/// `USER:PASSWORD`; two numbers are a user and a group.
fn user_and_password(argument: &str) -> Cow<'_, str> {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match argument.split_once(':') {
        Some((user, password))
            if !(is_number(user) && is_number(password)) && password != MASK && !password.is_empty() =>
        {
            Cow::Owned(format!("{user}:{MASK}"))
        }
        Some(_) => Cow::Borrowed(argument),
        None => text(argument),
    }
}
