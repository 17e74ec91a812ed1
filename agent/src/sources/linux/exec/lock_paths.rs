//! The path of a locked file from its names within its file system: the process that wanted it may have ended when the agent looks.
//!
//! Used by `exec::locks`. Where that file system is mounted is in mountinfo (proc_pid_mountinfo(5)) of process 1, which has the
//! mounts of the node. Does not: read what is mounted below another root than the file system's own.

use std::fs;

use sandglass_probes::wire::locks::LOCK_NAME_MAX;

use crate::sources::linux::record::text;

/// The path from the root of the file system, and whether it is whole: no name is cut, and the root was reached.
pub fn within_file_system(names: &[u8]) -> (String, bool) {
    let mut path = String::new();
    let mut is_whole = true;
    for name in names.chunks_exact(LOCK_NAME_MAX as usize) {
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        if len == 0 {
            return (path, is_whole && !names.starts_with(&[0]));
        }
        is_whole &= len + 1 < name.len();
        path = format!("/{}{path}", text(&name[..len]));
    }
    (path, false)
}

/// Where the file system with this device is mounted on the node; the shortest of several places. `None` when it is not.
pub fn mounted(device: u32) -> Option<String> {
    let mounts = fs::read_to_string("/proc/1/mountinfo").or_else(|_| fs::read_to_string("/proc/self/mountinfo"));
    find_mount(&mounts.ok()?, device)
}

/// A line: `36 35 98:0 / /mnt1 rw,noatime master:1 - ext3 /dev/root rw`. Of a device the kernel has twelve bits of major number above
/// twenty of the minor one (include/linux/kdev_t.h).
fn find_mount(mounts: &str, device: u32) -> Option<String> {
    let device = format!("{}:{}", device >> 20, device & 0xf_ffff);
    let places = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (of, root, place) = (fields.next()?, fields.next()?, fields.next()?);
        (of == device && root == "/").then_some(place)
    });
    places.min_by_key(|place| place.len()).map(str::to_owned)
}

/// A path below a place where its file system is mounted.
pub fn join(mount: &str, path: &str) -> String {
    format!("{}{path}", mount.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0; 8 * LOCK_NAME_MAX as usize];
        for (slot, name) in bytes.chunks_exact_mut(LOCK_NAME_MAX as usize).zip(list) {
            slot[..name.len()].copy_from_slice(name.as_bytes());
        }
        bytes
    }

    #[test]
    fn names_are_joined_to_the_root() {
        let path = |list: &[&str]| within_file_system(&names(list));
        assert_eq!(path(&["xtables.lock"]), ("/xtables.lock".to_owned(), true));
        assert_eq!(path(&["lock", "pods", "cni"]), ("/cni/pods/lock".to_owned(), true));
        assert_eq!(path(&[]), (String::new(), false));
        let long = "x".repeat(39);
        assert_eq!(path(&["lock", &long]), (format!("/{long}/lock"), false));
        assert_eq!(path(&["a"; 8]), ("/a/a/a/a/a/a/a/a".to_owned(), false));
    }

    #[test]
    fn the_shortest_mount_of_the_root_counts() {
        let mounts = "1 2 0:25 / /run/lock rw - tmpfs tmpfs rw\n3 4 0:25 / /run rw - tmpfs tmpfs rw\n\
                      5 6 254:0 /var/lib /mnt rw - ext4 /dev/x rw\n7 8 254:0 / / rw - ext4 /dev/x rw\nbroken\n";
        assert_eq!(find_mount(mounts, 25), Some("/run".to_owned()));
        assert_eq!(find_mount(mounts, 254 << 20), Some("/".to_owned()));
        assert_eq!(find_mount(mounts, 26), None);
        assert_eq!(join("/", "/a"), "/a");
        assert_eq!(join("/run", "/a"), "/run/a");
    }
}
