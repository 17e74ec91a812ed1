//! Random numbers that follow from a seed, for tests that draw schedules.
//!
//! Used by `dns_streams` and `dns_path`. Does not: seed itself; a failure can be repeated by its number.

/// Numbers that follow from a seed (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}
