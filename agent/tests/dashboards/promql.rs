//! Reads from a PromQL expression what it selects and groups by: enough to hold its names against the agent's.
//!
//! A tokenizer, not a parser: whether an expression is well formed is promtool's judgement.

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Number,
    Sign(char),
}

/// A metric and the labels it is matched by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    pub matchers: Vec<Matcher>,
}

/// A label's name, how it is compared, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    pub label: String,
    pub operator: String,
    pub value: String,
}

/// What an expression names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    pub selectors: Vec<Selector>,
    /// Labels in `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`.
    pub labels: Vec<String>,
    /// Functions and aggregations that are called.
    pub calls: Vec<String>,
}

const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const WORDS: [&str; 9] = ["and", "or", "unless", "bool", "offset", "inf", "nan", "start", "end"];

/// Names in `text`.
pub fn names(text: &str) -> Named {
    let tokens = tokens(text);
    let mut named = Named::default();
    let mut at = 0;
    while at < tokens.len() {
        let Token::Word(word) = &tokens[at] else {
            at += 1;
            continue;
        };
        let next = tokens.get(at + 1);
        at += 1;
        if LISTS.contains(&word.as_str()) && next == Some(&Token::Sign('(')) {
            while tokens[at] != Token::Sign(')') {
                if let Token::Word(label) = &tokens[at] {
                    named.labels.push(label.clone());
                }
                at += 1;
            }
        } else if next == Some(&Token::Sign('(')) || is_aggregation(next) {
            named.calls.push(word.clone());
        } else if !WORDS.contains(&word.as_str()) {
            let (matchers, after) = matchers(&tokens, at);
            at = after;
            named.selectors.push(Selector {
                metric: word.clone(),
                matchers,
            });
        }
    }
    named
}

/// `sum by (x) (...)`: the call is known by the list that follows it.
fn is_aggregation(next: Option<&Token>) -> bool {
    matches!(next, Some(Token::Word(word)) if word == "by" || word == "without")
}

fn matchers(tokens: &[Token], mut at: usize) -> (Vec<Matcher>, usize) {
    let mut matchers = Vec::new();
    if tokens.get(at) != Some(&Token::Sign('{')) {
        return (matchers, at);
    }
    at += 1;
    while tokens[at] != Token::Sign('}') {
        if let Token::Word(label) = &tokens[at] {
            let mut operator = String::new();
            while let Token::Sign(sign) = tokens[at + 1] {
                operator.push(sign);
                at += 1;
            }
            let Token::Text(value) = &tokens[at + 1] else {
                panic!("no value behind {label}");
            };
            matchers.push(Matcher {
                label: label.clone(),
                operator,
                value: value.clone(),
            });
            at += 1;
        }
        at += 1;
    }
    (matchers, at + 1)
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' | '\'' => {
                let mut value = String::new();
                while let Some(inner) = chars.next() {
                    match inner {
                        _ if inner == char => break,
                        '\\' => value.extend(chars.next()),
                        _ => value.push(inner),
                    }
                }
                tokens.push(Token::Text(value));
            }
            _ if char.is_ascii_alphabetic() || char == '_' => {
                let mut word = String::from(char);
                while let Some(next) = chars.next_if(|next| next.is_ascii_alphanumeric() || matches!(next, '_' | ':')) {
                    word.push(next);
                }
                tokens.push(Token::Word(word));
            }
            // Durations and exponents are part of their number.
            _ if char.is_ascii_digit() => {
                while chars
                    .next_if(|next| next.is_ascii_alphanumeric() || *next == '.')
                    .is_some()
                {}
                tokens.push(Token::Number);
            }
            // Ranges are [`ranges`]' business.
            '[' => while chars.next().is_some_and(|next| next != ']') {},
            _ if char.is_whitespace() => {}
            _ => tokens.push(Token::Sign(char)),
        }
    }
    tokens
}

/// Every range in brackets of `text` with the function that takes it: `("rate", "5m")`.
pub fn ranges(text: &str) -> Vec<(String, String)> {
    let mut ranges = Vec::new();
    // Values may hold brackets; every second part stands in quotes.
    let text: String = text.split('"').step_by(2).collect();
    for (at, _) in text.match_indices('[') {
        let range = text[at + 1..].split(']').next().unwrap_or_default();
        // Backwards over the selector to the bracket before it, and over the name before that.
        let mut depth = 0;
        let open = text[..at].char_indices().rev().find(|(_, char)| match char {
            '}' => {
                depth += 1;
                false
            }
            '{' => {
                depth -= 1;
                false
            }
            '(' => depth == 0,
            _ => false,
        });
        let before = open.map_or("", |(place, _)| &text[..place]);
        let name = before
            .rsplit(|char: char| !char.is_ascii_alphanumeric() && char != '_')
            .next();
        ranges.push((name.unwrap_or_default().to_owned(), range.to_owned()));
    }
    ranges
}
