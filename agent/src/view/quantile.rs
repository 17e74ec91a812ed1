//! The percentile of exact values, for the figures above a list.
//!
//! Used by `list` and `readiness`, which read every kept trace. The figures of an hour come from `sinks::histogram`
//! instead, which keeps no single values. A leaf.

/// The percentile of sorted values by nearest rank: the smallest value that at least `percent` of all do not exceed. `None`
/// of no values.
pub(super) fn quantile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}
