//! Faults of a file system: full, open to others.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::*;

/// A tmpfs of this size, unmounted at the end.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None`, with a line `SKIPPED`, where none can be mounted.
    fn new(test: &str, size: &str) -> Option<SmallDisk> {
        let directory = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        if !mount
            .arg(directory.path())
            .status()
            .is_ok_and(|status| status.success())
        {
            eprintln!("SKIPPED {test}: cannot mount a tmpfs");
            return None;
        }
        Some(SmallDisk(directory))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_reported_and_once_there_is_room_all_is_written() {
    let Some(disk) = SmallDisk::new("a_full_disk_is_reported_and_once_there_is_room_all_is_written", "128k") else {
        return;
    };
    let directory = disk.0.path();
    let mut rig = Rig::open(directory, 1_000);
    rig.put(usual(1));
    // Somebody else fills the disk.
    let filler = directory.join("filler");
    let _ = fs::write(&filler, vec![1; 1 << 20]);
    let mut number = 1;
    while rig.disk.status().problem.is_none() {
        number += 1;
        rig.put(usual(number));
        assert!(number < 100);
    }
    let problem = rig.disk.status().problem.unwrap();
    assert!(problem.contains("No space left"), "{problem}");
    rig.put(usual(number + 1));
    // What was whole stays, whatever was torn.
    fs::remove_file(&filler).unwrap();
    rig.writer.open();
    assert_eq!(rig.disk.status().problem, None);
    let kept = rig.roots();
    assert_eq!(kept.len() as u32, number + 1);
    drop(rig);
    let rig = Rig::open(directory, 1_000);
    assert_eq!(rig.roots(), kept);
    assert_eq!(rig.disk.0.metrics.cut_bytes.get(), 0);
}

#[test]
fn a_kill_while_the_disk_is_full_costs_what_came_since_then() {
    let Some(disk) = SmallDisk::new("a_kill_while_the_disk_is_full_costs_what_came_since_then", "128k") else {
        return;
    };
    let directory = disk.0.path();
    let mut rig = Rig::open(directory, 1_000);
    rig.put(usual(1));
    let filler = directory.join("filler");
    let _ = fs::write(&filler, vec![1; 1 << 20]);
    for number in 2..60 {
        rig.put(usual(number));
    }
    assert!(rig.disk.status().problem.is_some());
    drop(rig);
    // The next agent finds the disk as full.
    let mut rig = Rig::open(directory, 1_000);
    let roots = rig.roots();
    assert!(roots.contains(&usual(1).root_id()), "{roots:?}");
    assert_eq!(rig.disk.status().lost, 0);
    fs::remove_file(&filler).unwrap();
    rig.writer.open();
    assert_eq!((rig.disk.status().problem, rig.roots()), (None, roots));
}

#[test]
fn directory_and_files_are_private() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path(), 100);
    rig.put(usual(1));
    let spool = directory.path().join("spool");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&spool), 0o700);
    let files: Vec<_> = fs::read_dir(&spool)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}
