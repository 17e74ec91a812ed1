//! The hash that the correlator's own tables are placed by, and environments are compared by.
//!
//! One text with a seed, by the crate that hashes the maps too. A hash of our own took 1.3 to 2 times as long for the keys
//! and CNI variables that come here (medians of alternated rounds of processor time, on a busy machine). The same for the
//! same bytes in every run, so that a recording replays alike. Does not: stay the same with another version of the crate, so
//! that nothing which leaves the process is made of it; or stand up to collisions made on purpose.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::fast::FixedState;

/// The hash of `bytes`; another seed gives another hash.
#[inline]
pub(crate) fn mix(seed: u64, bytes: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(seed).build_hasher();
    hasher.write(bytes);
    hasher.finish()
}
