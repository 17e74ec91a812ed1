//! Systems whose scheduler is left alone.
//!
//! Used through `scheduling`. Does not: anything.

/// As on Linux; does nothing.
pub fn give_way() {}
