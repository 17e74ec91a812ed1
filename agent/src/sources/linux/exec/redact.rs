//! Masks secrets in the error messages of plugins: `token=...`, `password: ...`, `Bearer ...`.
//!
//! Used by `stdio` on messages and details before they become part of an event: plugins quote URLs, headers and
//! configuration in their errors. Does not: find a secret that has no name before it.

/// Names of secrets, in lower case. `=` or `:`, quotes and spaces stand between a name and its secret.
const NAMES: [&str; 8] = [
    "token",
    "password",
    "passwd",
    "secret",
    "authorization",
    "apikey",
    "api_key",
    "access_key",
];
/// Authentication schemes (RFC 9110, section 11.4): a space stands between the scheme and its credentials.
const SCHEMES: [&str; 2] = ["bearer ", "basic "];
/// A shorter word behind a scheme is ordinary text ("basic check failed").
const CREDENTIAL_MIN: usize = 12;
const MASK: &str = "***";

/// `text` with every secret masked.
#[must_use]
pub fn redact(text: &str) -> String {
    // ASCII only, so that positions are the same in both texts.
    let lower = text.to_ascii_lowercase();
    let mut redacted = String::with_capacity(text.len());
    let mut at = 0;
    while let Some((begin, end)) = next_secret(&lower, at) {
        redacted.push_str(&text[at..begin]);
        redacted.push_str(MASK);
        at = end;
    }
    redacted.push_str(&text[at..]);
    redacted
}

/// Begin and end of the next secret from `at` on.
fn next_secret(lower: &str, at: usize) -> Option<(usize, usize)> {
    let named = NAMES
        .iter()
        .flat_map(|name| places(lower, name, at))
        .filter_map(|behind| {
            let separator = |character: char| matches!(character, '"' | '\'' | ' ' | '=' | ':' | '\\');
            let begin = behind + lower[behind..].find(|character| !separator(character))?;
            let separated = lower[behind..begin].contains(['=', ':']);
            // "authorization: bearer x": the scheme itself is no secret.
            let scheme = SCHEMES
                .iter()
                .find(|scheme| lower[begin..].starts_with(*scheme))
                .map_or(0, |scheme| scheme.len());
            separated.then(|| span(lower, begin + scheme))
        });
    let schemes = SCHEMES.iter().flat_map(|scheme| places(lower, scheme, at));
    let credentials = schemes
        .map(|begin| span(lower, begin))
        .filter(|(begin, end)| end - begin >= CREDENTIAL_MIN);
    named.chain(credentials).filter(|(begin, end)| end > begin).min()
}

/// Positions behind each `word` from `at` on.
fn places<'a>(lower: &'a str, word: &'a str, at: usize) -> impl Iterator<Item = usize> + 'a {
    lower[at..]
        .match_indices(word)
        .map(move |(place, _)| at + place + word.len())
}

/// From `begin` to the end of the value.
fn span(lower: &str, begin: usize) -> (usize, usize) {
    let ends = |character: char| {
        character.is_whitespace() || matches!(character, '"' | '\'' | ',' | ';' | '&' | '}' | ')' | '\\')
    };
    (
        begin,
        lower[begin..].find(ends).map_or(lower.len(), |length| begin + length),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_are_masked_and_the_rest_is_kept() {
        for (text, redacted) in [
            (
                "GET https://api/x?token=abc123&pod=p failed",
                "GET https://api/x?token=***&pod=p failed",
            ),
            (
                r#"config {"password": "hunter2", "user": "me"}"#,
                r#"config {"password": "***", "user": "me"}"#,
            ),
            (
                "Authorization: Bearer eyJhbGciOi.x.y rejected",
                "Authorization: Bearer *** rejected",
            ),
            ("sent bearer eyJhbGciOiJIUzI1NiJ9 twice", "sent bearer *** twice"),
            ("API_KEY=k1;SECRET: s2", "API_KEY=***;SECRET: ***"),
            ("invalid token in netconf", "invalid token in netconf"),
            ("basic check failed: no bridge", "basic check failed: no bridge"),
            (
                "no IP addresses available in range set",
                "no IP addresses available in range set",
            ),
            ("token=", "token="),
        ] {
            assert_eq!(redact(text), redacted);
        }
    }

    proptest! {
        #[test]
        fn any_text_ends_and_no_named_secret_stays(before in "\\PC{0,40}", secret in "[a-zA-Z0-9]{13,20}", after in "\\PC{0,40}") {
            let text = format!("{before} password={secret} {after}");
            let redacted = redact(&text);
            prop_assert!(!redacted.contains(&format!("={secret} ")), "{redacted}");
        }
    }
}
