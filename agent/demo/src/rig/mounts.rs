//! The mount table of this process, as far as the rig's start and teardown need it.
//!
//! Reads `/proc/self/mountinfo` (proc(5)). Does not: mount or unmount.

use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Where.
    pub(super) point: PathBuf,
    /// File system type.
    pub(super) kind: String,
}

/// All mounts, oldest first. Empty when the table cannot be read.
pub(super) fn all() -> Vec<Mount> {
    std::fs::read_to_string("/proc/self/mountinfo").map_or_else(|_| Vec::new(), |table| parse(&table))
}

/// Mount points at or below `dir`, newest first: the order in which they can be unmounted.
pub(super) fn below(dir: &Path) -> Vec<PathBuf> {
    let mut points: Vec<PathBuf> = all()
        .into_iter()
        .map(|mount| mount.point)
        .filter(|point| point.starts_with(dir))
        .collect();
    points.reverse();
    points
}

/// Roots of the cgroup hierarchies, version 2 first.
pub(super) fn cgroup_roots() -> Vec<Mount> {
    let mut roots: Vec<Mount> = all()
        .into_iter()
        .filter(|mount| mount.kind == "cgroup2" || mount.kind == "cgroup")
        .collect();
    roots.sort_by_key(|mount| mount.kind != "cgroup2");
    roots
}

fn parse(table: &str) -> Vec<Mount> {
    table
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            Some(Mount {
                point: PathBuf::from(unescape(left.split(' ').nth(4)?)),
                kind: right.split(' ').next()?.to_owned(),
            })
        })
        .collect()
}

/// Space, tab, newline and backslash stand as three octal digits behind a backslash.
fn unescape(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        match rest
            .get(at + 1..at + 4)
            .and_then(|octal| u8::from_str_radix(octal, 8).ok())
        {
            Some(byte) => {
                text.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                text.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_parsed_with_and_without_optional_fields() {
        let table = "36 35 98:0 / /a\\040b rw,noatime master:1 shared:2 - cgroup2 none rw\n\
                     37 35 0:4 net:[4026532000] /run/netns/x rw - nsfs nsfs rw\n\
                     garbage\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            (mounts[0].point.to_str(), mounts[0].kind.as_str()),
            (Some("/a b"), "cgroup2")
        );
        assert_eq!(mounts[1].kind, "nsfs");
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape("a\\"), "a\\");
        assert_eq!(unescape("\\999\\011"), "\\999\t");
    }
}
