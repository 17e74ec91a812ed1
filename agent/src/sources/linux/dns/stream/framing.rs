//! Cuts the messages out of one stream by their length prefix (RFC 1035 4.2.2).
//!
//! Used by `stream.rs`. Where bytes are missing the length prefixes are lost with them: the next message is then found by
//! its form ([`plausible`]), and what lies before it is reported as a gap. Within one message missing bytes do no harm: the
//! message is handed on incomplete, and the next one begins where its length says.
//!
//! Two states: reading (`searching` false), where `kept` is the message that is read now, and searching, where `kept` is what
//! may be the begin of one. Bounded: [`MESSAGE_MAX`] of one message, [`CANDIDATES_MAX`] places to search at.
//! Does not: parse messages.

use super::order::Chunk;
use super::plausible::{Form, form};
use super::{Direction, Found, Sender};

/// The framing of one stream.
#[derive(Debug)]
pub struct Framing {
    direction: Direction,
    /// Where messages begin is not known: `kept` holds what is searched.
    searching: bool,
    /// Length prefix and kept bytes of the message that is read now.
    kept: Vec<u8>,
    /// Bytes of it that came, prefix included, kept or not.
    came: usize,
    /// Bytes of it are missing in `kept`.
    holes: bool,
    /// Who sent its first byte.
    sender: Sender,
    /// Places in `kept` where a message may begin that is not all there yet.
    candidates: Vec<usize>,
    /// Places in `kept` before this were looked at.
    searched: usize,
    /// Bytes that were searched in vain and are not reported yet.
    skipped: u64,
    /// The instant at which the last message could be read, and how many could.
    instant: (u64, u32),
}

impl Framing {
    /// The framing of a stream; `framed` when its next byte is the first of a length prefix.
    pub fn new(direction: Direction, framed: bool) -> Framing {
        Framing {
            direction,
            searching: !framed,
            kept: Vec::new(),
            came: 0,
            holes: false,
            sender: Sender::default(),
            candidates: Vec::new(),
            searched: 0,
            skipped: 0,
            instant: (0, 0),
        }
    }

    /// Takes the next bytes of the stream.
    pub fn take(&mut self, chunk: Chunk<'_>, found: &mut dyn FnMut(Found<'_>)) {
        match chunk {
            Chunk::Bytes { bytes, at_ns, sender } if self.searching => self.search(bytes, at_ns, sender, found),
            Chunk::Bytes { bytes, at_ns, sender } => self.read(bytes, at_ns, sender, found),
            Chunk::Unseen { bytes, at_ns } => self.miss(bytes as usize, at_ns, found),
            Chunk::Hole { at_ns } => found(Found::Hole { at_ns }),
        }
    }

    /// The stream is over.
    pub fn close(&mut self, at_ns: u64, found: &mut dyn FnMut(Found<'_>)) {
        if self.searching {
            return self.give_up(at_ns, found);
        }
        if self.came > 0 {
            found(Found::Cut { at_ns });
        }
        self.begin();
    }

    /// The stream may go on, but is not followed any more. What is left of it is a gap, and if bytes come nevertheless the next
    /// message is searched.
    pub fn give_up(&mut self, at_ns: u64, found: &mut dyn FnMut(Found<'_>)) {
        let left = if self.searching { self.kept.len() } else { self.came };
        self.skipped += left as u64;
        self.report_skipped(at_ns, found);
        self.begin();
        self.searching = true;
    }

    /// Reads messages whose begin is known.
    fn read(&mut self, mut bytes: &[u8], at_ns: u64, sender: Sender, found: &mut dyn FnMut(Found<'_>)) {
        while !bytes.is_empty() {
            if self.came == 0 {
                self.sender = sender;
            }
            let (now, later) = bytes.split_at(self.wanted().min(bytes.len()));
            let room = MESSAGE_MAX.saturating_sub(self.kept.len());
            // Behind a hole nothing fits.
            let kept = if self.holes { 0 } else { room.min(now.len()) };
            self.kept.extend_from_slice(&now[..kept]);
            self.holes |= kept < now.len();
            self.came += now.len();
            bytes = later;
            self.hand_on(at_ns, sender, found);
        }
    }

    /// Hands the message on when its last byte has come: its time is that of the segment that completed it, since its
    /// receiver could read it no sooner.
    fn hand_on(&mut self, at_ns: u64, sender: Sender, found: &mut dyn FnMut(Found<'_>)) {
        if self.came < PREFIX || self.wanted() > 0 {
            return;
        }
        if self.holes && self.kept.len() < PREFIX + READABLE {
            // Its begin was not seen, which is reported already.
            return self.begin();
        }
        // What leaves on an acknowledgement or a timer leaves without a process.
        let sender = if sender.pid == 0 { self.sender } else { sender };
        self.instant = match self.instant {
            (at, count) if at == at_ns => (at, count + 1),
            _ => (at_ns, 0),
        };
        found(Found::Message {
            bytes: self.kept.get(PREFIX..).unwrap_or_default(),
            complete: !self.holes,
            at_ns,
            nth: self.instant.1,
            sender,
        });
        self.begin();
    }

    /// Bytes are missing. Within a message that is read they make it incomplete; behind it, and in a search, the next message
    /// has to be found by its form.
    fn miss(&mut self, bytes: usize, at_ns: u64, found: &mut dyn FnMut(Found<'_>)) {
        if self.searching {
            self.skipped += (self.kept.len() + bytes) as u64;
            self.begin();
            return self.report_skipped(at_ns, found);
        }
        let within = if self.came >= PREFIX {
            self.wanted().min(bytes)
        } else {
            0
        };
        let readable = self.kept.len() >= PREFIX + READABLE;
        if within > 0 && readable {
            self.came += within;
            self.holes = true;
            self.hand_on(at_ns, self.sender, found);
        }
        let left = if readable { bytes - within } else { bytes };
        if left == 0 {
            return;
        }
        self.skipped += left as u64;
        if within == bytes {
            // The end of the unreadable message is known.
            self.came += within;
            self.holes = true;
            if self.wanted() == 0 {
                self.begin();
            }
        } else {
            self.skipped += self.came as u64;
            self.begin();
            self.searching = true;
        }
        self.report_skipped(at_ns, found);
    }

    /// Looks for the next message, and reads on from there.
    fn search(&mut self, bytes: &[u8], at_ns: u64, sender: Sender, found: &mut dyn FnMut(Found<'_>)) {
        self.kept.extend_from_slice(bytes);
        let begin = match self.first_message() {
            Some(begin) => begin,
            None => {
                self.drop_searched(at_ns, found);
                return;
            }
        };
        let rest = self.kept.split_off(begin);
        self.skipped += begin as u64;
        self.begin();
        self.searching = false;
        self.report_skipped(at_ns, found);
        self.read(&rest, at_ns, sender, found);
    }

    /// Where the first message begins that is all there.
    fn first_message(&mut self) -> Option<usize> {
        let (kept, direction) = (&self.kept, self.direction);
        let mut whole = None;
        self.candidates.retain(|&place| match form(&kept[place..], direction) {
            Form::Message => {
                whole = Some(whole.map_or(place, |other: usize| other.min(place)));
                false
            }
            Form::Perhaps => true,
            Form::Other => false,
        });
        while whole.is_none() && self.searched < kept.len() {
            match form(&kept[self.searched..], direction) {
                Form::Message => whole = Some(self.searched),
                Form::Perhaps => self.candidates.push(self.searched),
                Form::Other => {}
            }
            self.searched += 1;
        }
        whole
    }

    /// Forgets what cannot be the begin of a message.
    fn drop_searched(&mut self, at_ns: u64, found: &mut dyn FnMut(Found<'_>)) {
        if self.candidates.len() > CANDIDATES_MAX {
            let excess = self.candidates.len() - CANDIDATES_MAX;
            self.candidates.drain(..excess);
        }
        let keep = self.candidates.first().copied().unwrap_or(self.searched);
        if keep == 0 {
            return;
        }
        self.kept.drain(..keep);
        self.searched -= keep;
        for candidate in &mut self.candidates {
            *candidate -= keep;
        }
        self.skipped += keep as u64;
        self.report_skipped(at_ns, found);
    }

    /// Reports the bytes that belong to no message, so that every byte of the stream is accounted for.
    fn report_skipped(&mut self, at_ns: u64, found: &mut dyn FnMut(Found<'_>)) {
        let bytes = std::mem::take(&mut self.skipped);
        if bytes > 0 {
            found(Found::Gap { at_ns, bytes });
        }
    }

    /// Bytes that are missing, of the prefix or of the message.
    fn wanted(&self) -> usize {
        match (self.kept.first(), self.kept.get(1)) {
            (Some(high), Some(low)) => {
                (PREFIX + usize::from(u16::from_be_bytes([*high, *low]))).saturating_sub(self.came)
            }
            _ => PREFIX - self.came.min(PREFIX),
        }
    }

    /// Begins a message, or a search, with nothing. Keeps the allocation.
    fn begin(&mut self) {
        self.kept.clear();
        self.came = 0;
        self.holes = false;
        self.candidates.clear();
        self.searched = 0;
    }
}

/// Bytes of the length prefix (RFC 1035 4.2.2).
const PREFIX: usize = 2;
/// Of a message with a hole this much has to be there for it to be of use: its header.
const READABLE: usize = 12;
/// So much of one message is kept, prefix included. Messages over TCP may have 65,535 bytes; all that is parsed of one
/// (questions, addresses, response code) stands in the first of them, save for the OPT record of a long answer.
const MESSAGE_MAX: usize = 4096;
/// So many places are remembered where a message may begin; the text between them is at most one message long.
const CANDIDATES_MAX: usize = 32;
