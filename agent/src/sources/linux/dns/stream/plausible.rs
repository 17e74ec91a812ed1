//! Whether bytes amid a stream have the form of a DNS message behind its length prefix.
//!
//! Used by `framing.rs` to find the next message behind a hole. Strict where `message.rs` is lenient: all sections have to
//! be there, and to end where the length prefix says (RFC 1035 4.1, 4.2.2). A message of another form is passed over, which
//! is reported as a gap, and the next one is found. Does not: allocate, follow compression pointers.

use super::Direction;

/// What bytes look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A whole message.
    Message,
    /// The begin of one.
    Perhaps,
    /// No message.
    Other,
}

/// The form of what `bytes` begins with.
pub fn form(bytes: &[u8], direction: Direction) -> Form {
    let form = walk(bytes, direction).unwrap_or_else(|other| other);
    // Nothing more comes of a message that is all there.
    let is_all_there = word(bytes, 0).is_ok_and(|len| bytes.len() >= 2 + usize::from(len));
    match form {
        Form::Perhaps if is_all_there => Form::Other,
        form => form,
    }
}

/// Walks over all sections. An error is the form too: `?` ends the walk at the first byte that decides it.
fn walk(bytes: &[u8], direction: Direction) -> Result<Form, Form> {
    let len = usize::from(word(bytes, 0)?);
    if len < HEADER {
        return Ok(Form::Other);
    }
    let message = bytes.get(2..).unwrap_or_default();
    let message = &message[..len.min(message.len())];
    let counts = header(message, direction, len)?;
    let mut at = HEADER;
    if counts == [0; 4] {
        // DNS Stateful Operations: TLVs in place of sections (RFC 8490 5.4). Without any it is no more than a header.
        while at < len {
            at += 4 + usize::from(word(message, at + 2)?);
        }
    } else {
        for _ in 0..counts[0] {
            at = question(message, at, len)?;
        }
        for _ in 0..counts[1..].iter().map(|count| u32::from(*count)).sum::<u32>() {
            at = record(message, at, len)?;
        }
    }
    match at == len && message.len() == len {
        true => Ok(Form::Message),
        false if at > len || message.len() == len => Ok(Form::Other),
        false => Ok(Form::Perhaps),
    }
}

/// Counts of the sections, when the header is one that a message of this direction has.
fn header(message: &[u8], direction: Direction, len: usize) -> Result<[u16; 4], Form> {
    let flags = word(message, 2)?;
    let counts = [
        word(message, 4)?,
        word(message, 6)?,
        word(message, 8)?,
        word(message, 10)?,
    ];
    let [questions, answers, authority, additional] = counts.map(usize::from);
    let is_answer = flags & 0x8000 != 0;
    let opcode = flags >> 11 & 15;
    let fits = HEADER + questions * 5 + (answers + authority + additional) * 11 <= len;
    // Opcodes in use: QUERY, IQUERY, STATUS, NOTIFY, UPDATE, DSO (IANA, DNS OpCodes). The bit Z is zero (RFC 1035 4.1.1).
    let known = matches!(opcode, 0 | 1 | 2 | 4..=6) && flags & 0x40 == 0 && questions <= 16;
    let from_server = direction == Direction::In;
    // A query has no response code, and is not truncated.
    let query_like = is_answer || flags & 0x020f == 0;
    let empty = counts == [0; 4] && opcode != 6 && !is_answer;
    // A DSO server may send requests of its own (RFC 8490 5.1).
    let right_way = is_answer == from_server || opcode == 6;
    match fits && known && right_way && query_like && !empty {
        true => Ok(counts),
        false => Err(Form::Other),
    }
}

/// Behind the question at `at`.
fn question(message: &[u8], at: usize, len: usize) -> Result<usize, Form> {
    let at = name(message, at, len)?;
    let (kind, class) = (word(message, at)?, word(message, at + 2)?);
    // IN, CH, HS, NONE, ANY (RFC 6895 3.2).
    match kind != 0 && matches!(class, 1 | 3 | 4 | 254 | 255) {
        true => Ok(at + 4),
        false => Err(Form::Other),
    }
}

/// Behind the resource record at `at`.
fn record(message: &[u8], at: usize, len: usize) -> Result<usize, Form> {
    let at = name(message, at, len)?;
    let end = at + 10 + usize::from(word(message, at + 8)?);
    if end > len { Err(Form::Other) } else { Ok(end) }
}

/// Behind the name at `at`: labels of at most 63 bytes, 255 in all, or a pointer to what lies before it (RFC 1035 3.1, 4.1.4).
fn name(message: &[u8], begin: usize, len: usize) -> Result<usize, Form> {
    let mut at = begin;
    loop {
        if at >= len || at - begin > 255 {
            return Err(Form::Other);
        }
        match *message.get(at).ok_or(Form::Perhaps)? {
            0 => return Ok(at + 1),
            label @ 1..=63 => at += 1 + usize::from(label),
            192.. => {
                let target = usize::from(word(message, at)? & 0x3fff);
                return match target >= HEADER && target < at {
                    true => Ok(at + 2),
                    false => Err(Form::Other),
                };
            }
            64..192 => return Err(Form::Other),
        }
    }
}

/// Two bytes in network order; bytes that are not there may come.
fn word(bytes: &[u8], at: usize) -> Result<u16, Form> {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(Form::Perhaps),
    }
}

/// Bytes of the header (RFC 1035 4.1.1).
const HEADER: usize = 12;
