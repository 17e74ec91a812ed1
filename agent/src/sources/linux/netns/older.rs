//! The network namespaces of sandboxes that are older than the agent: the runtime reports where each is.
//!
//! Identity (CRI) calls it through [`NamespaceLook`], in a thread of its own, since a look may block. Their traffic and their
//! conntrack counters are attributed as those of newer sandboxes; their creation was not seen, so at most its time is known.
//! Does not: find sandboxes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use sandglass_model::event::Netns;

use super::creation::created_at;
use crate::sources::clock;
use crate::sources::linux::known_namespaces::KnownNamespaces;
use crate::sources::linux::process_root::{NODE_PIDS, metadata_in_root};
use crate::sources::namespace::{NamespaceLook, NamespacePlace};

/// A look at the namespaces of sandboxes that are older than the agent. It adds what it finds to `known`.
pub fn look(known: KnownNamespaces) -> NamespaceLook {
    NamespaceLook::new(move |place| {
        let netns = by_path(place).or_else(|| by_process(place))?;
        known.add(netns.inode, &netns.path);
        Some(netns)
    })
}

/// The namespace at the path, in the node's file system. Where a namespace was mounted an ordinary file may be left.
fn by_path(place: &NamespacePlace) -> Option<Netns> {
    if place.path.is_empty() {
        return None;
    }
    let seen = NODE_PIDS.iter().find_map(|pid| metadata_in_root(*pid, &place.path));
    let seen = seen.or_else(|| fs::metadata(&place.path).ok())?;
    // Namespaces are inodes of nsfs, of which there is one on a node: an inode of another device is none.
    let own = fs::metadata("/proc/self/ns/net").ok()?;
    (seen.dev() == own.dev()).then(|| Netns {
        sandbox: place.sandbox.clone(),
        path: place.path.clone(),
        inode: seen.ino(),
        created: created_at(&seen, &place.path, clock::now()),
        there: None,
    })
}

/// The namespace of its process, where the runtime names one and no path leads to it. Its age is unknown: this look may make
/// the inode, whose time is then that of the look.
fn by_process(place: &NamespacePlace) -> Option<Netns> {
    let path = format!("/proc/{}/ns/net", place.pid);
    let seen = (place.pid != 0).then(|| fs::metadata(&path).ok()).flatten()?;
    Some(Netns {
        sandbox: place.sandbox.clone(),
        path,
        inode: seen.ino(),
        created: None,
        there: None,
    })
}

#[cfg(test)]
mod tests {
    use sandglass_model::SandboxId;

    use super::*;

    /// The path below `/proc` stands for a namespace that has no name: its inode may be as young as this look.
    #[test]
    fn a_sandbox_is_found_by_its_path_or_else_by_its_process() {
        let known = KnownNamespaces::default();
        let look = look(known);
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join("cni-1");
        fs::write(&left, "").unwrap();
        let place = |path: &str, pid| NamespacePlace {
            sandbox: SandboxId("sb".to_owned()),
            path: path.to_owned(),
            pid,
        };
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let pid = std::process::id();
        let found = look.at(&place(&format!("/proc/{pid}/ns/net"), 0)).unwrap();
        assert_eq!((found.inode, found.created), (own, None));
        // A file where a namespace was mounted is no namespace.
        let left = left.to_string_lossy().into_owned();
        assert_eq!(look.at(&place(&left, 0)), None);
        assert_eq!(look.at(&place(&left, pid)).map(|netns| netns.inode), Some(own));
        assert_eq!(look.at(&place("", 0)), None);
    }
}
