//! When the network namespace of a sandbox was created, and when its creation began.
//!
//! Two sources: the stamp of the namespace's name ([`super::names`]), and the change time of its inode in nsfs, which the
//! kernel sets when the inode is made (fs/libfs.c, prepare_anon_dentry, as in Linux 6.12; fs/nsfs.c, __ns_get_path, before
//! Linux 6.9): at the first bind mount or the first look at `/proc/PID/ns/net`, for runtimes right after the namespace is
//! created. Used by `netns`. Does not: look at a path.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use sandglass_model::Timestamp;

use crate::sources::clock;

/// The inode's time. `None` where this very look may have made the inode: below `/proc`, or later than `requested`.
pub fn created_at(seen: &Metadata, path: &str, requested: Timestamp) -> Option<Timestamp> {
    // Of the wall clock: a step between the creation and now moves the result, which `requested` bounds from above.
    let unix_ns = u64::try_from(seen.ctime()).ok()? * 1_000_000_000 + u64::try_from(seen.ctime_nsec()).ok()?;
    let created = clock::anchor().boot(unix_ns);
    (!path.starts_with("/proc/") && created < requested).then_some(created)
}

/// When the sandbox began, and when its namespace was there if that is a different time. `named` is the stamp of the
/// name, `created` the inode's time, up to a tick early. A stamp from after the namespace was there, or after the first plugin
/// ran, came late and is ignored.
pub fn begin(
    named: Option<Timestamp>,
    created: Option<Timestamp>,
    first_plugin: Timestamp,
) -> (Option<Timestamp>, Option<Timestamp>) {
    match (named, created) {
        (Some(named), Some(created)) if named < first_plugin && named <= created.plus(INODE_TICK_NS) => {
            (Some(named), Some(created.max(named)))
        }
        _ => (created, None),
    }
}

/// Inodes keep time in steps of a tick (fs/inode.c, current_time): 10 ms at most, at 100 Hz.
const INODE_TICK_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in milliseconds: when the name was stamped, when the namespace was there, when the first plugin ran.
    #[test]
    fn a_late_stamp_is_ignored() {
        let at = |ms: u64| Timestamp(1_000_000 * ms);
        let times = |begun: Option<u64>, there: Option<u64>, first_plugin| {
            let (created, there) = begin(begun.map(at), there.map(at), at(first_plugin));
            let ms = |at: Timestamp| at.0 / 1_000_000;
            (created.map(ms), there.map(ms))
        };
        assert_eq!(times(Some(80), Some(100), 120), (Some(80), Some(100)));
        // Within the inode's tick the stamp is the better one, until a plugin ran.
        assert_eq!(times(Some(110), Some(100), 120), (Some(110), Some(110)));
        assert_eq!(times(Some(111), Some(100), 120), (Some(100), None));
        assert_eq!(times(Some(105), Some(100), 103), (Some(100), None));
        assert_eq!(times(None, Some(100), 103), (Some(100), None));
        assert_eq!(times(Some(80), None, 103), (None, None));
    }
}
