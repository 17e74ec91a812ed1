//! Allocators without settings.
//!
//! Used by `resident`. Does not: anything.

pub fn keep_small() {}

pub fn trim() {}
