//! Parses one DNS message, as far as it is there.
//!
//! Used by the decoder, by tests and by fuzzing. Any bytes give a message, perhaps marked malformed, or an error, never a
//! panic. Names, compression and records are read by the crate `domain`; this file only chooses what is kept, and bounds it.
//! Does not: keep any record's data but addresses.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;
use std::net::IpAddr;

use domain::base::iana::{Opcode, Rtype};
use domain::base::message::RecordSection;
use domain::base::name::ParsedName;
use domain::base::wire::ParseError;
use domain::base::{Message, QuestionSection, ToName as _};
use domain::rdata::{A, Aaaa};
use foldhash::fast::FixedState;
use sandglass_model::SmolStr;
use sandglass_model::network::{Answer, Question};

/// What is kept of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Message id.
    pub id: u16,
    /// Its opcode is QUERY: not an inverse query, a zone transfer's notice, an update or a stateful operation.
    pub is_lookup: bool,
    /// The questions, at most [`QUESTIONS_MAX`].
    pub questions: Vec<Question>,
    /// Questions beyond those.
    pub more_questions: u16,
    /// What it answers; `None` for a query.
    pub answer: Option<Answer>,
    /// Its records could not be read to their end, though all of it was there.
    pub malformed: bool,
}

/// Bytes that are no DNS message: header or questions are not as they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no DNS message: its {0} cannot be read")]
pub struct Malformed(&'static str);

/// What one message leaves for the next ones.
#[derive(Debug, Default)]
pub struct Memory {
    /// Makes messages of one name share its text.
    names: NameCache,
    /// Lists without entries, of messages that were handled.
    pub(super) questions: Vec<Question>,
    pub(super) addresses: Vec<Vec<IpAddr>>,
}

impl Memory {
    /// Keeps the names only.
    pub(super) fn release(&mut self) {
        (self.questions, self.addresses) = (Vec::new(), Vec::new());
    }
}

/// Parses a message. `complete` is false where the rest of it was not captured: then it is not malformed for ending early.
/// `memory` makes messages of one name share its text, and has lists to fill again.
///
/// # Errors
/// When the header (RFC 1035 4.1.1) or a question (4.1.2) cannot be read.
pub fn parse(bytes: &[u8], complete: bool, memory: &mut Memory) -> Result<Parsed, Malformed> {
    let message = Message::from_octets(bytes).map_err(|_| Malformed("header"))?;
    let (header, counts) = (message.header(), message.header_counts());
    let mut parsed = Parsed {
        id: header.id(),
        is_lookup: header.opcode() == Opcode::QUERY,
        questions: std::mem::take(&mut memory.questions),
        more_questions: 0,
        answer: None,
        malformed: false,
    };
    let mut section = message.question();
    // Of the right size: nearly all messages have one.
    parsed
        .questions
        .reserve_exact(usize::from(counts.qdcount()).min(QUESTIONS_MAX));
    parsed.more_questions = questions(&mut section, &mut memory.names, &mut parsed.questions)?;
    if !parsed.is_lookup {
        // The other sections may be of another meaning, as in an update (RFC 2136 2.4, 2.5), or be missing, as in a stateful
        // operation (RFC 8490 5.4) and an inverse query (RFC 1035 6.4.1).
        parsed.answer = header.qr().then(Answer::default);
        return Ok(parsed);
    }
    if !header.qr() {
        return Ok(parsed);
    }
    let mut addresses = memory.addresses.pop().unwrap_or_default();
    addresses.reserve_exact(usize::from(counts.ancount()).min(ADDRESSES_MAX));
    // ANCOUNT is what the header states. It is kept as it is; whether all of them can be read shows in `malformed`.
    let mut answer = Answer {
        rcode: u16::from(header.rcode().to_int()),
        truncated: header.tc(),
        records: counts.ancount(),
        addresses,
    };
    let readable = read_records(section, counts.nscount() > 0 || counts.arcount() > 0, &mut answer);
    parsed.malformed = complete && readable.is_err();
    parsed.answer = Some(answer);
    Ok(parsed)
}

/// Reads the questions; returns how many there are beyond the bound.
fn questions(
    section: &mut QuestionSection<'_, &[u8]>,
    names: &mut NameCache,
    questions: &mut Vec<Question>,
) -> Result<u16, Malformed> {
    let mut more = 0;
    for question in section {
        let question = question.map_err(|_| Malformed("question"))?;
        if questions.len() < QUESTIONS_MAX {
            questions.push(Question {
                name: names.text(question.qname()),
                kind: question.qtype().to_int(),
            });
        } else {
            more += 1;
        }
    }
    Ok(more)
}

/// Addresses of the answer section, and the upper bits of the response code from the additional section (RFC 6891 6.1.3).
fn read_records(questions: QuestionSection<'_, &[u8]>, has_more: bool, answer: &mut Answer) -> Result<(), ParseError> {
    let mut section = questions.answer()?;
    for record in section.by_ref() {
        let record = record?;
        if answer.addresses.len() >= ADDRESSES_MAX {
            continue;
        }
        if record.rtype() == Rtype::A {
            answer
                .addresses
                .extend(record.to_record::<A>()?.map(|record| IpAddr::V4(record.data().addr())));
        } else if record.rtype() == Rtype::AAAA {
            answer.addresses.extend(
                record
                    .to_record::<Aaaa>()?
                    .map(|record| IpAddr::V6(record.data().addr())),
            );
        }
    }
    if has_more {
        read_extended_code(section, answer)?;
    }
    Ok(())
}

/// Adds the upper eight bits of the response code, which stand in the highest byte of the OPT record's TTL (RFC 6891 6.1.3).
/// The authority section is walked over: the sections have no lengths.
fn read_extended_code(answers: RecordSection<'_, &[u8]>, answer: &mut Answer) -> Result<(), ParseError> {
    let Some(mut authorities) = answers.next_section()? else {
        return Ok(());
    };
    for record in authorities.by_ref() {
        record?;
    }
    let Some(additional) = authorities.next_section()? else {
        return Ok(());
    };
    for record in additional {
        let record = record?;
        if record.rtype() == Rtype::OPT {
            let upper = record.ttl().as_secs() >> 24;
            answer.rcode |= u16::try_from(upper << 4).unwrap_or(0);
        }
    }
    Ok(())
}

/// Texts of names that were seen lately: programs look up few names, each of them many times, and each answer repeats its
/// query's.
#[derive(Debug, Default)]
struct NameCache {
    /// By hash of the form on the wire; nothing before the first name.
    recent: Vec<Recent>,
    /// Empty between two names; keeps its allocation.
    text: String,
    /// The same for the form on the wire.
    wire: Vec<u8>,
}

/// A name that was seen lately.
#[derive(Clone, Debug, Default)]
struct Recent {
    /// Its labels in lower case, each with its length before it, the root's included.
    wire: Box<[u8]>,
    text: SmolStr,
}

impl NameCache {
    /// A name as the model wants it: lower case, no last dot, `\DDD` for what is not printable, `\.` for a dot within a label.
    fn text(&mut self, name: &ParsedName<&[u8]>) -> SmolStr {
        self.wire.clear();
        match name.as_flat_slice() {
            Some(labels) => self.wire.extend_from_slice(labels),
            None => name.iter().for_each(|label| {
                self.wire.push(label.len() as u8);
                self.wire.extend_from_slice(label.as_slice());
            }),
        }
        // No length is a letter: labels have 63 bytes at most.
        self.wire.make_ascii_lowercase();
        if self.recent.is_empty() {
            self.recent.resize(RECENT_NAMES, Recent::default());
        }
        // Direct-mapped: another name of the same place replaces the text, which costs an allocation and nothing else.
        let place = FixedState::default().hash_one(self.wire.as_slice()) as usize % RECENT_NAMES;
        let known = &mut self.recent[place];
        if *known.wire != *self.wire {
            self.text.clear();
            for label in name.iter().filter(|label| !label.is_root()) {
                if !self.text.is_empty() {
                    self.text.push('.');
                }
                write_label(label.as_slice(), &mut self.text);
            }
            *known = Recent {
                wire: self.wire.as_slice().into(),
                text: SmolStr::new(&self.text),
            };
        }
        known.text.clone()
    }
}

/// Appends a label in lower case, since names are compared without case (RFC 4343 3). Escapes are those of master files (RFC
/// 1035 5.1), so that different labels have different texts.
fn write_label(label: &[u8], text: &mut String) {
    let plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'.' | b'\\');
    if label.iter().all(plain)
        && let Ok(label) = std::str::from_utf8(label)
    {
        let start = text.len();
        text.push_str(label);
        text[start..].make_ascii_lowercase();
        return;
    }
    for byte in label {
        match byte {
            b'.' | b'\\' => text.extend(['\\', char::from(*byte)]),
            0x21..=0x7e => text.push(char::from(byte.to_ascii_lowercase())),
            // Writing to a String cannot fail.
            _ => drop(write!(text, "\\{byte:03}")),
        }
    }
}

/// So many names are remembered: as many as the programs of a node look up all the time.
const RECENT_NAMES: usize = 512;
/// Questions that are kept of a message. Resolvers send one in each, as RFC 9619 requires; more come from broken or hostile
/// programs.
pub const QUESTIONS_MAX: usize = 8;
/// Addresses that are kept of an answer: a client tries the first few.
const ADDRESSES_MAX: usize = 8;

#[cfg(test)]
mod tests;
