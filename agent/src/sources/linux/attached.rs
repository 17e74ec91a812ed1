//! A probe that is attached: its programs on their hooks, and the thread that follows its ring buffer.
//!
//! Used by the probes with one feed (`connect`, `drops`). Dropping it detaches the programs.

use super::feed::Follower;
use super::loader::error::LoadError;
use super::loader::family::Family;
use super::loader::run_time::ProgramTime;

/// The attached probe.
#[derive(Debug)]
pub struct AttachedProbe {
    // Dropped first: the thread drains the ring once more.
    _follower: Follower,
    family: Family,
}

impl AttachedProbe {
    /// Joins the two once both have started.
    pub(super) fn new(follower: Follower, family: Family) -> AttachedProbe {
        AttachedProbe {
            _follower: follower,
            family,
        }
    }

    /// Detaches the programs, or attaches them again; they stay loaded.
    ///
    /// # Errors
    /// When the kernel rejects it.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        self.family.set_hooked(hooked)
    }

    /// Kernel time of its programs so far.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.family.run_time()
    }
}
