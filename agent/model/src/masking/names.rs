//! Whether a name is that of a secret: of a flag, a variable, a header, a field or a label.
//!
//! Used by the rest of `masking`. Errs on the side of masking: a name that is wrongly taken for a secret's costs a value in a
//! trace, one that is missed costs a credential. Does not: look at values.

/// Parts of names that are a secret's wherever they stand.
const PARTS: [&str; 13] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "credential",
    "authorization",
    "apikey",
    "accesskey",
    "privatekey",
    "securestring",
    "encodedcommand",
    "cookie",
];
/// Whole words of names that are a secret's: `key` is one, `keyboard` is not.
const WORDS: [&str; 17] = [
    "key",
    "pass",
    "pwd",
    "psk",
    "auth",
    "jwt",
    "bearer",
    "sas",
    "sig",
    "signature",
    "passin",
    "passout",
    "passcode",
    "pin",
    "otp",
    "enc",
    "cred",
];
/// Last words of names that are about a secret and do not hold it, such as `token-file`.
const ABOUT: [&str; 25] = [
    "file",
    "files",
    "path",
    "paths",
    "dir",
    "directory",
    "type",
    "ttl",
    "length",
    "len",
    "size",
    "count",
    "limit",
    "name",
    "names",
    "mode",
    "policy",
    "format",
    "timeout",
    "algorithm",
    "version",
    "enabled",
    "required",
    "expiry",
    "url",
];
/// Longest name that is looked at, in bytes.
pub(super) const NAME_MAX: usize = 128;

/// Whether what is called `name` is a secret. Leading dashes of a flag and the slash of a Windows option are no part of it.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.trim_start_matches(['-', '/']);
    if name.len() < 2 || matches!(name, "PWD" | "OLDPWD") {
        return false;
    }
    let mut words = words(name);
    let Some(last) = words.next_back() else {
        return false;
    };
    let is = |list: &[&str], word: &str| list.iter().any(|known| word.eq_ignore_ascii_case(known));
    if is(&ABOUT, last) {
        return false;
    }
    PARTS.iter().any(|part| contains(name, part)) || is(&WORDS, last) || words.any(|word| is(&WORDS, word))
}

/// Whether `part`, in lower case, stands in `name` in any case.
pub(super) fn contains(name: &str, part: &str) -> bool {
    let mut windows = name.as_bytes().windows(part.len());
    windows.any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

/// The words of a name: separated by punctuation, or by an upper-case letter behind a lower-case one.
fn words(name: &str) -> impl DoubleEndedIterator<Item = &str> {
    let is_separator = |character: char| !character.is_ascii_alphanumeric();
    let parts = name.split(is_separator).filter(|part| !part.is_empty());
    parts.flat_map(|part| {
        let begins = |at: usize| {
            let bytes = part.as_bytes();
            at == 0 || (bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase())
        };
        let starts = (0..part.len()).filter(move |at| begins(*at));
        starts.map(move |begin| {
            let end = (begin + 1..part.len()).find(|at| begins(*at));
            &part[begin..end.unwrap_or(part.len())]
        })
    })
}

/// A character that names consist of.
pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

#[cfg(test)]
mod tests {
    use super::is_secret;

    #[test]
    fn names_of_secrets() {
        for name in [
            "--password",
            "-token",
            "DB_PASSWORD",
            "X-Api-Key",
            "apiKey",
            "clientSecret",
            "aws_secret_access_key",
            "Authorization",
            "client-key-data",
            "MYSQL_PWD",
            "/p:pass",
            "credentials",
            "secrets",
            "-passin",
            "private_key",
            "Set-Cookie",
            "psk",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "",
            "-",
            "--name",
            "keyboard",
            "monkey",
            "--token-file",
            "secretName",
            "PWD",
            "passthrough",
            "author",
            "--to-ports",
            "KUBE-SEP",
            "comment",
            "authorization-mode",
            "--dport",
            "https",
            "sandbox",
            "tokenTTL",
            "key_length",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
