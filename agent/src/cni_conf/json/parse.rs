//! The parser of `json.rs`: accepts what Go's `scanner.go` accepts, and says where and why it stops.
//!
//! Does not: recurse deeper than 64 levels, or keep what lies deeper, where no loader has a key.

use super::{Members, Reason, SyntaxError, Value};

impl Value {
    /// Parses a whole file.
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Value, SyntaxError> {
        let error = |reason| SyntaxError { at: 0, reason };
        match bytes {
            [0xef, 0xbb, 0xbf, ..] => return Err(error(Reason::ByteOrderMark)),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, ..] | [_, 0, ..] => return Err(error(Reason::Utf16)),
            _ => {}
        }
        let mut parser = JsonParser { bytes, at: 0 };
        parser.skip_space();
        if parser.peek().is_none() {
            return Err(error(Reason::Empty));
        }
        let value = parser.value(0)?;
        parser.skip_space();
        match parser.peek() {
            None => Ok(value),
            Some(_) => Err(parser.here(Reason::TrailingText)),
        }
    }
}

struct JsonParser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl JsonParser<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// An error at the next byte. Where that begins a comment or the text ends, this is what is wrong.
    fn here(&self, reason: Reason) -> SyntaxError {
        let reason = match &self.bytes[self.at.min(self.bytes.len())..] {
            [] => Reason::Unfinished,
            [b'/', b'/' | b'*', ..] | [b'#', ..] => Reason::Comment,
            _ => reason,
        };
        SyntaxError { at: self.at, reason }
    }

    fn value(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        match self.peek() {
            Some(b'{') if depth < KEPT_DEPTH => self.object(depth),
            Some(b'[') if depth < KEPT_DEPTH => self.list(depth),
            Some(b'{' | b'[') => self.skip(depth),
            _ => self.scalar(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut members = Members::new();
        self.at += 1;
        self.skip_space();
        if self.take(b'}') {
            return Ok(Value::Object(members));
        }
        loop {
            let key = self.key()?;
            let value = self.value(depth + 1)?;
            members.push((key, value));
            self.skip_space();
            if self.take(b'}') {
                return Ok(Value::Object(members));
            }
            self.comma(b'}')?;
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut values = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.take(b']') {
            return Ok(Value::List(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Value::List(values));
            }
            self.comma(b']')?;
        }
    }

    /// A member's name, its colon, and the space before its value.
    fn key(&mut self) -> Result<String, SyntaxError> {
        if self.peek() != Some(b'"') {
            return Err(self.here(Reason::NoKey));
        }
        let key = self.string()?;
        self.skip_space();
        if !self.take(b':') {
            return Err(self.here(Reason::NoColon));
        }
        self.skip_space();
        Ok(key)
    }

    /// The comma between two members or values, and the space after it.
    fn comma(&mut self, closing: u8) -> Result<(), SyntaxError> {
        if !self.take(b',') {
            return Err(self.here(if closing == b'}' {
                Reason::NoCommaInObject
            } else {
                Reason::NoCommaInList
            }));
        }
        self.skip_space();
        match self.peek() {
            Some(byte) if byte == closing => Err(self.here(Reason::TrailingComma)),
            _ => Ok(()),
        }
    }

    /// Checks a list or an object that lies too deep to be kept, without recursion. What remains of it is its kind, and that
    /// a number in it does not fit.
    fn skip(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let is_list = self.peek() == Some(b'[');
        let mut open: Vec<u8> = Vec::new();
        let mut fits = true;
        loop {
            // A value begins here.
            match self.peek() {
                Some(byte @ (b'{' | b'[')) => {
                    if depth + open.len() >= GO_DEPTH {
                        return Err(self.here(Reason::TooDeep));
                    }
                    self.at += 1;
                    self.skip_space();
                    let closing = if byte == b'{' { b'}' } else { b']' };
                    if !self.take(closing) {
                        open.push(closing);
                        if closing == b'}' {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => fits &= self.scalar()?.numbers_fit(),
            }
            // A value has ended here, and with it perhaps those around it.
            loop {
                let Some(closing) = open.last().copied() else {
                    let rest = if fits { Vec::new() } else { vec![Value::Number { fits }] };
                    return Ok(if is_list {
                        Value::List(rest)
                    } else {
                        Value::Object(rest.into_iter().map(|value| (String::new(), value)).collect())
                    });
                };
                self.skip_space();
                if self.take(closing) {
                    open.pop();
                    continue;
                }
                self.comma(closing)?;
                if closing == b'}' {
                    self.key()?;
                }
                break;
            }
        }
    }

    fn scalar(&mut self) -> Result<Value, SyntaxError> {
        for (word, value) in [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
        ] {
            let rest = &self.bytes[self.at..];
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
            if !rest.is_empty() && word.as_bytes().starts_with(rest) {
                self.at = self.bytes.len();
                return Err(self.here(Reason::Unfinished));
            }
        }
        match self.peek() {
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'N') if self.bytes[self.at..].starts_with(b"NaN") => Err(self.here(Reason::Number)),
            Some(b'+' | b'.') => Err(self.here(Reason::Number)),
            _ => Err(self.here(Reason::NoValue)),
        }
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.here(Reason::Number));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value, SyntaxError> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        } else if matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.here(Reason::Number));
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        // Rust and Go round alike: infinite here is out of range there.
        let text = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
        let fits = text.parse::<f64>().is_ok_and(f64::is_finite);
        Ok(Value::Number { fits })
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(replaced(&text));
                }
                Some(b'\\') => {
                    let character = self.escape()?;
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                Some(byte) if byte >= 0x20 => {
                    text.push(byte);
                    self.at += 1;
                }
                Some(_) => {
                    return Err(SyntaxError {
                        at: self.at,
                        reason: Reason::ControlCharacter,
                    });
                }
                None => return Err(self.here(Reason::Unfinished)),
            }
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        self.at += 1;
        let character = match self.peek() {
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'u') => {
                self.at += 1;
                return self.unicode();
            }
            None => return Err(self.here(Reason::Unfinished)),
            Some(_) => {
                return Err(SyntaxError {
                    at: self.at,
                    reason: Reason::Escape,
                });
            }
        };
        self.at += 1;
        Ok(character)
    }

    /// The four digits of `\u`, and those of a second one that makes a pair with them.
    fn unicode(&mut self) -> Result<char, SyntaxError> {
        let first = self.hex()?;
        if !(0xd800..0xdc00).contains(&first) || !self.bytes[self.at..].starts_with(b"\\u") {
            return Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let after_first = self.at;
        self.at += 2;
        let second = self.hex()?;
        if (0xdc00..0xe000).contains(&second) {
            let pair = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            return Ok(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        // The second one is a character of its own.
        self.at = after_first;
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex(&mut self) -> Result<u32, SyntaxError> {
        let mut number = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(match self.peek() {
                    None => self.here(Reason::Unfinished),
                    Some(_) => SyntaxError {
                        at: self.at,
                        reason: Reason::Escape,
                    },
                });
            };
            number = number * 16 + digit;
            self.at += 1;
        }
        Ok(number)
    }
}

/// Go has U+FFFD for each byte that is no UTF-8.
fn replaced(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

/// Levels that are kept: more than any key that libcni or a delegation has.
const KEPT_DEPTH: usize = 64;
/// `maxNestingDepth` of `scanner.go`.
const GO_DEPTH: usize = 10_000;
