//! Faults of a file system: full, read-only, open to others.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;

/// A tmpfs of this size, unmounted at the end. `None`, with a note, where it cannot be mounted.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new(test: &str, size: &str) -> Option<SmallDisk> {
        let directory = TempDir::new().unwrap();
        let mounted = mount(
            &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"],
            directory.path(),
        );
        if !mounted {
            eprintln!("SKIPPED {test}: cannot mount a tmpfs");
            return None;
        }
        Some(SmallDisk(directory))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("spool")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

fn mount(arguments: &[&str], directory: &Path) -> bool {
    let output = Command::new("mount").args(arguments).arg(directory).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn a_full_disk_refuses_requests_and_keeps_those_it_has() {
    let Some(disk) = SmallDisk::new("a_full_disk_refuses_requests_and_keeps_those_it_has", "256k") else {
        return;
    };
    let mut segments = open(&disk.path());
    let large = |number: u32| format!("request {number} {}", "z".repeat(10_000)).into_bytes();
    let mut written = Vec::new();
    let mut refused = 0;
    for number in 1..=40 {
        let body = large(number);
        let record = NewRecord {
            body: &body,
            gzip: number.is_multiple_of(2),
            spans: number,
            worth: Worth::Bad,
        };
        match segments.append(&record) {
            Ok(()) => written.push(number),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
                refused += 1;
            }
        }
    }
    assert!(written.len() > 10 && refused > 10, "{written:?}");
    // Marks need no room; removed segments make some.
    let taken = segments.take().unwrap();
    segments.done(&taken);
    drop(segments);
    let mut segments = open(&disk.path());
    assert_eq!(segments.drops().corrupt, 0, "no torn record was left");
    assert_eq!(drain(&mut segments), written[1..]);
    append_bytes(&mut segments, &large(99), 99, Worth::Bad);
    assert_eq!(drain(&mut segments), [99], "there is room again");
}

#[test]
fn a_directory_that_becomes_read_only_keeps_its_requests() {
    let test = "a_directory_that_becomes_read_only_keeps_its_requests";
    let Some(disk) = SmallDisk::new(test, "256k") else {
        return;
    };
    let options = SpoolOptions {
        directory: disk.path(),
        bytes: 1 << 20,
        age: Duration::from_secs(3_600),
        clock: sandglass_model::ClockAnchor::default,
    };
    let request = |spans: u64| QueuedRequest {
        body: body(u32::try_from(spans).unwrap()).into(),
        gzip: spans.is_multiple_of(2),
        spans,
        made: std::time::SystemTime::now(),
        attempts: 0,
    };
    let spool = Spool::new(&options, "boot");
    assert!(spool.append(&request(1), Worth::Bad).0);
    drop(spool);
    assert!(mount(&["-o", "remount,ro"], disk.0.path()));
    let spool = Spool::new(&options, "boot");
    assert_eq!(spool.append(&request(2), Worth::Bad), (false, SpoolDrops::default()));
    assert_eq!(spool.take(), (None, SpoolDrops::default()));
    let problem = spool.status().problem.unwrap();
    assert!(problem.contains("cannot open"), "{problem}");
    assert!(mount(&["-o", "remount,rw"], disk.0.path()));
    drop(spool);
    let spool = Spool::new(&options, "boot");
    assert!(spool.append(&request(3), Worth::Bad).0);
    assert_eq!(spool.status().problem, None);
    assert_eq!(spool.status().depth.spans, 4);
}

#[test]
fn directory_and_files_are_private_and_a_shared_directory_is_refused() {
    let parent = TempDir::new().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let own = parent.path().join("deep/spool");
    let mut segments = open(&own);
    append(&mut segments, 1, Worth::Bad);
    assert_eq!(mode(&own), 0o700);
    for name in ["lock", "0000000000000001.bad"] {
        assert_eq!(mode(&own.join(name)), 0o600, "{name}");
    }
    drop(segments);
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    drop(open(&own));
    assert_eq!(mode(&own), 0o700, "it holds nothing else: it is made private");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(own.join("passwd"), "").unwrap();
    let error = Segments::open(&own, bounds(), BOOT, TestClock::default().clock())
        .err()
        .unwrap();
    assert!(error.to_string().contains("a directory of its own"), "{error}");
    assert_eq!(mode(&own), 0o755, "it stays as it was");
}
