//! Decompresses XPRESS plain LZ77, the compression of trace buffers (MS-XCA, section 2.4).
//!
//! Used by `block` and `index` for each compressed buffer. Own code because it must accept hostile input: damaged input gives
//! what came before the damage, and never more than the room. Does not: allocate.

/// How decompression ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inflated {
    /// Bytes written.
    pub length: usize,
    /// Whether all input was used and well-formed.
    pub complete: bool,
}

/// Decompresses `input` into `output`, as far as there is room.
pub fn inflate(input: &[u8], output: &mut [u8]) -> Inflated {
    let mut state = Inflater {
        input,
        at: 0,
        output,
        filled: 0,
        half_byte: None,
    };
    let complete = state.run().is_some();
    Inflated {
        length: state.filled,
        complete,
    }
}

/// State of the decompression.
struct Inflater<'a> {
    input: &'a [u8],
    /// Index of the next byte of the input.
    at: usize,
    output: &'a mut [u8],
    /// Bytes of the output that are filled: matches copy from them.
    filled: usize,
    /// Index of the byte whose high half is the next length.
    half_byte: Option<usize>,
}

impl Inflater<'_> {
    /// `None` when the input is damaged or the room is used up.
    fn run(&mut self) -> Option<()> {
        loop {
            if self.at == self.input.len() {
                return Some(());
            }
            let mut flags = u32::from_le_bytes(self.take()?);
            if flags == 0 && self.literals_of_32().is_some() {
                continue;
            }
            for _ in 0..32 {
                let Some(&byte) = self.input.get(self.at) else {
                    return Some(());
                };
                if flags & 0x8000_0000 == 0 {
                    *self.output.get_mut(self.filled)? = byte;
                    self.filled += 1;
                    self.at += 1;
                } else {
                    self.copy_match()?;
                }
                flags <<= 1;
            }
        }
    }

    /// Copies thirty-two literals at once; `None`, without effect, when they do not fit.
    fn literals_of_32(&mut self) -> Option<()> {
        let literals = self.input.get(self.at..self.at + 32)?;
        self.output
            .get_mut(self.filled..self.filled + 32)?
            .copy_from_slice(literals);
        self.at += 32;
        self.filled += 32;
        Some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.input.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(*bytes)
    }

    /// Copies a match: 13 bits of distance, 3 of length. `None` when it reaches back before the output's begin, or the room
    /// ends.
    fn copy_match(&mut self) -> Option<()> {
        let token = u16::from_le_bytes(self.take()?);
        let distance = usize::from(token >> 3) + 1;
        let mut length = usize::from(token & 7);
        if length == 7 {
            length += self.long_length()?;
        }
        let from = self.filled.checked_sub(distance)?;
        let wanted = length + 3;
        let room = self.output.len() - self.filled;
        let length = wanted.min(room);
        self.output.copy_within(from..from + length.min(distance), self.filled);
        // A match longer than its distance repeats itself: each copy doubles what is there.
        let mut done = distance;
        while done < length {
            let chunk = done.min(length - done);
            self.output
                .copy_within(self.filled..self.filled + chunk, self.filled + done);
            done += chunk;
        }
        self.filled += length;
        (length == wanted).then_some(())
    }

    /// The part of a length above seven: half a byte (two lengths share a byte), then a byte, 16 or 32 bits, each present when
    /// the one before it has its highest value.
    fn long_length(&mut self) -> Option<usize> {
        let half = match self.half_byte.take() {
            Some(at) => self.input.get(at)? >> 4,
            None => {
                self.half_byte = Some(self.at);
                self.take::<1>()?[0] & 15
            }
        };
        if half < 15 {
            return Some(usize::from(half));
        }
        let [byte] = self.take()?;
        if byte < 255 {
            return Some(15 + usize::from(byte));
        }
        let whole = match u16::from_le_bytes(self.take()?) {
            0 => u32::from_le_bytes(self.take()?),
            length => u32::from(length),
        };
        // The last two include the 15 and the 7.
        usize::try_from(whole).ok()?.checked_sub(7)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::writer::deflate::deflate;

    fn text(input: &[u8], room: usize) -> (Vec<u8>, bool) {
        let mut output = vec![0; room];
        let inflated = inflate(input, &mut output);
        output.truncate(inflated.length);
        (output, inflated.complete)
    }

    /// The two examples of MS-XCA 3.
    #[test]
    fn examples_of_the_specification() {
        let alphabet = [
            0x3f, 0x00, 0x00, 0x00, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e,
            0x6f, 0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a,
        ];
        assert_eq!(text(&alphabet, 100), (b"abcdefghijklmnopqrstuvwxyz".to_vec(), true));
        let repeated = [
            0xff, 0xff, 0xff, 0x1f, 0x61, 0x62, 0x63, 0x17, 0x00, 0x0f, 0xff, 0x26, 0x01,
        ];
        assert_eq!(text(&repeated, 1000), (b"abc".repeat(100), true));
    }

    #[test]
    fn damage_ends_it_and_room_bounds_it() {
        let repeated = [
            0xff, 0xff, 0xff, 0x1f, 0x61, 0x62, 0x63, 0x17, 0x00, 0x0f, 0xff, 0x26, 0x01,
        ];
        assert_eq!(text(&repeated, 10), (b"abcabcabca".to_vec(), false));
        assert_eq!(text(&repeated[..9], 10), (b"abc".to_vec(), false));
        // A match that starts before the first byte.
        assert_eq!(text(&[0, 0, 0, 0x80, 0xff, 0xff], 10), (vec![], false));
        assert_eq!(text(&[1, 2], 10), (vec![], false));
        assert_eq!(text(&[], 10), (vec![], true));
    }

    proptest! {
        /// From a few letters, so that matches of every length and distance come up.
        #[test]
        fn what_is_compressed_comes_back(
            pieces in proptest::collection::vec((proptest::collection::vec(0..3_u8, 1..40), 1..200_usize), 0..30)
        ) {
            let input: Vec<u8> = pieces.iter().flat_map(|(piece, times)| piece.repeat(*times)).collect();
            prop_assert_eq!(text(&deflate(&input), input.len()), (input, true));
        }

        #[test]
        fn any_input_ends_within_its_room(input in proptest::collection::vec(any::<u8>(), 0..600), room in 0..2000_usize) {
            prop_assert!(text(&input, room).0.len() <= room);
        }
    }

    #[test]
    fn the_longest_matches() {
        for length in [3, 9, 10, 24, 25, 26, 279, 280, 281, 65_537, 65_538, 65_539, 200_000] {
            let mut input = vec![7; length + 1];
            input.push(8);
            assert_eq!(text(&deflate(&input), input.len()), (input, true), "{length}");
        }
    }
}
