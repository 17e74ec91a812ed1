//! The hash of a lookup's names that is part of the trace id of its journey.
//!
//! Used by `Lookup::seed`. Ids leave the process and stand in recordings' expectations, so this function never changes; the
//! hash of the tables may (`collections/mix.rs`).

/// Folded multiplication, sixteen bytes at a time.
pub(super) fn fold(seed: u64, bytes: &[u8]) -> u64 {
    let step = |state: u64, low: u64, high: u64| {
        let product = u128::from(low ^ 0x9e37_79b9_7f4a_7c15) * u128::from(high ^ state);
        product as u64 ^ (product >> 64) as u64
    };
    let pair = |state: u64, pair: &[u8; 16]| {
        let pair = u128::from_le_bytes(*pair);
        step(state, pair as u64, (pair >> 64) as u64)
    };
    // What is left behind the last sixteen is read together with some of what was read before, never copied: for so
    // few bytes of no fixed number that would be a call. The length tells texts apart that look alike this way.
    let state = seed ^ (bytes.len() as u64).rotate_left(32) ^ 0x517c_c1b7_2722_0a95;
    if let Some(last) = bytes.last_chunk::<16>() {
        let (pairs, _) = bytes.as_chunks::<16>();
        return pair(pairs.iter().fold(state, pair), last);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        return step(state, u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    }
    let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    step(state, word, 0)
}
