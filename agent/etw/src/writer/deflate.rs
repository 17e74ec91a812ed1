//! Compresses with XPRESS plain LZ77 (MS-XCA, section 2.3), as a session in compressed mode does. Greedy, one candidate per
//! place.
//!
//! Used by the writer's files, in tests and demos: the reader is to meet what a session in compressed mode writes. The stream
//! is a row of flags, 32 at a time, each for a literal byte (0) or a match (1). Does not: compress well.

/// Compresses `input`. The result may be longer than it: 4 bytes of flags for each 32 bytes that do not repeat.
pub fn deflate(input: &[u8]) -> Vec<u8> {
    let mut state = Encoder {
        output: vec![0; 4],
        flags_at: 0,
        flags: 0,
        count: 0,
        half_byte: None,
    };
    let mut seen = vec![usize::MAX; 1 << HASH_BITS];
    let mut at = 0;
    while at < input.len() {
        let found = longest_match(input, at, &mut seen);
        match found {
            Some((distance, length)) => {
                state.copy(distance, length);
                at += length;
            }
            None => {
                state.output.push(input[at]);
                state.flag(false);
                at += 1;
            }
        }
    }
    state.finish()
}

/// The distance and length of a match at `at`: with the last place of the same three bytes, the one candidate that is kept. A
/// hash that collides is harmless, since the bytes themselves are compared.
fn longest_match(input: &[u8], at: usize, seen: &mut [usize]) -> Option<(usize, usize)> {
    let key = input.get(at..at + 3)?;
    let hash = key.iter().fold(0_u32, |hash, byte| {
        hash.wrapping_mul(2654435761).wrapping_add(u32::from(*byte))
    });
    let slot = seen.get_mut((hash.wrapping_mul(2654435761) >> (32 - HASH_BITS)) as usize)?;
    let from = std::mem::replace(slot, at);
    let distance = at
        .checked_sub(from)
        .filter(|distance| (1..=FARTHEST).contains(distance))?;
    let length = input[at..]
        .iter()
        .zip(&input[from..])
        .take_while(|(one, other)| one == other)
        .count();
    (length >= 3).then_some((distance, length))
}

/// State of the encoding.
struct Encoder {
    output: Vec<u8>,
    /// Where in the output the flags that are being collected go.
    flags_at: usize,
    /// These flags, the newest in the lowest bit.
    flags: u32,
    /// How many they are, at most 31.
    count: u8,
    /// A byte of the output with a free upper half: two lengths share it.
    half_byte: Option<usize>,
}

impl Encoder {
    /// Adds a flag; the place for the next 32 is reserved in the output when these are complete.
    fn flag(&mut self, is_match: bool) {
        self.flags = self.flags << 1 | u32::from(is_match);
        self.count += 1;
        if self.count == 32 {
            self.output[self.flags_at..self.flags_at + 4].copy_from_slice(&self.flags.to_le_bytes());
            self.flags_at = self.output.len();
            self.output.extend([0; 4]);
            (self.flags, self.count) = (0, 0);
        }
    }

    /// Adds a match: 13 bits of distance and 3 of length, which is at least 3; a longer one goes on behind.
    fn copy(&mut self, distance: usize, length: usize) {
        let left = length - 3;
        let token = ((distance - 1) << 3 | left.min(7)) as u16;
        self.output.extend(token.to_le_bytes());
        if let Some(left) = left.checked_sub(7) {
            self.long_length(left);
        }
        self.flag(true);
    }

    /// Adds the rest of a length: half a byte, then a byte, then 2 bytes, then 4, each only where the one before is full.
    fn long_length(&mut self, left: usize) {
        let half = left.min(15) as u8;
        match self.half_byte.take() {
            Some(at) => self.output[at] |= half << 4,
            None => {
                self.half_byte = Some(self.output.len());
                self.output.push(half);
            }
        }
        let Some(left) = left.checked_sub(15) else { return };
        if left < 255 {
            self.output.push(left as u8);
            return;
        }
        self.output.push(255);
        let whole = left + 15 + 7;
        match u16::try_from(whole) {
            Ok(whole) => self.output.extend(whole.to_le_bytes()),
            Err(_) => {
                self.output.extend([0; 2]);
                self.output.extend((whole as u32).to_le_bytes());
            }
        }
    }

    /// Unused flags are ones: a reader that is at the end of its input stops there.
    fn finish(mut self) -> Vec<u8> {
        let unused = 32 - u32::from(self.count);
        let flags = (u64::from(self.flags) << unused | ((1 << unused) - 1)) as u32;
        self.output[self.flags_at..self.flags_at + 4].copy_from_slice(&flags.to_le_bytes());
        self.output
    }
}

/// Places that are remembered: 2^13.
const HASH_BITS: u32 = 13;
/// The farthest a match can lie back.
const FARTHEST: usize = 8192;
