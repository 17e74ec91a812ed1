//! The limit of conntrack's table: one for all tables of the machine, lowered for a moment.
//!
//! Used by the tests of full tables. Put back whatever happens; other runs of these tests wait, or they would put back
//! what was lowered.

use std::fs::{self, File};

use rustix::fs::{FlockOperation, flock};

const PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Lowered until it is dropped.
pub struct Limit {
    before: String,
    _alone: File,
}

impl Limit {
    pub fn set(limit: u64) -> Limit {
        let alone = File::create(std::env::temp_dir().join("sandglass-conntrack-limit.lock")).unwrap();
        flock(&alone, FlockOperation::LockExclusive).unwrap();
        let before = fs::read_to_string(PATH).unwrap();
        fs::write(PATH, limit.to_string()).unwrap();
        Limit { before, _alone: alone }
    }

    /// One that leaves the machine's own table some room, and how many entries that has now.
    pub fn above_the_machines() -> u64 {
        let count = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
        count.trim().parse::<u64>().unwrap() + 1_000
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        fs::write(PATH, &self.before).unwrap();
    }
}
