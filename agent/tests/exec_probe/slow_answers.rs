//! A plugin whose binary is not in memory, and one that waits for the API server: recorded by the real agent. What comes out is
//! compared with the kernel's counters of page faults and of the disk, and with the server's own clock.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandglass_lab::netns::{Namespace, succeeded};
use sandglass_lab::skip::{has, skipped};
use sandglass_model::phases;
use sandglass_model::text::tree;
use sandglass_model::waits::TimeReason;

use crate::recorder::Recorder;
use crate::waits::{ns_of, time_of, trace_of};
use crate::watch::{answering, plugin};

/// A file system in a file, mounted, and a control group that may read so much of it in a second: a slow disk. Both are removed
/// when this is dropped.
struct SlowDisk {
    mount: PathBuf,
    device: String,
    group: PathBuf,
}

/// What may be read in a second: a disk of a small cloud machine that has used up its bursts and serves others too.
const BYTES_PER_SECOND: u64 = 2 << 20;
/// Where version 1 of control groups limits disks.
const BLKIO: &str = "/sys/fs/cgroup/blkio";

impl SlowDisk {
    fn make(test: &str, folder: &Path) -> Option<SlowDisk> {
        if !["losetup", "mkfs.ext4", "mount"].iter().all(|tool| has(test, tool)) {
            return None;
        }
        if !Path::new(BLKIO).join("blkio.throttle.read_bps_device").exists() {
            skipped(test, "no control group of version 1 limits disks");
            return None;
        }
        let (image, mount) = (folder.join("disk.img"), folder.join("disk"));
        fs::create_dir(&mount).unwrap();
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        succeeded(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image)).unwrap();
        // Without direct reads the file below would stay in memory.
        let attached = succeeded(
            Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .arg(&image),
        );
        let device = match attached {
            Ok(output) => String::from_utf8(output.stdout).unwrap().trim().to_owned(),
            Err(why) => {
                skipped(test, &format!("no loop device: {why}"));
                return None;
            }
        };
        let group = Path::new(BLKIO).join(format!("sandglass-{}", std::process::id()));
        let disk = SlowDisk { mount, device, group };
        succeeded(Command::new("mount").arg(&disk.device).arg(&disk.mount)).unwrap();
        fs::create_dir(&disk.group).unwrap();
        let number = fs::read_to_string(format!("/sys/block/{}/dev", disk.device.trim_start_matches("/dev/"))).unwrap();
        let limit = format!("{} {BYTES_PER_SECOND}", number.trim());
        fs::write(disk.group.join("blkio.throttle.read_bps_device"), limit).unwrap();
        Some(disk)
    }

    /// The file system once more, with nothing of it in memory.
    fn forget(&self) {
        succeeded(Command::new("umount").arg(&self.mount)).unwrap();
        succeeded(Command::new("mount").arg(&self.device).arg(&self.mount)).unwrap();
    }

    /// Starts a program whose reads are limited. The control group is a thread's here, and its child has it too.
    fn spawn(&self, mut command: Command) -> Child {
        let tasks = self.group.join("tasks");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                fs::write(tasks, "0").unwrap();
                command.spawn().unwrap()
            });
            thread.join().unwrap()
        })
    }

    /// Bytes that the group has read.
    fn bytes(&self) -> u64 {
        let text = fs::read_to_string(self.group.join("blkio.throttle.io_service_bytes")).unwrap();
        let reads = text.lines().filter_map(|line| line.split_once(" Read "));
        reads.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = succeeded(Command::new("umount").arg(&self.mount));
        let _ = succeeded(Command::new("losetup").arg("--detach").arg(&self.device));
        let _ = fs::remove_dir(&self.group);
    }
}

/// Major faults of a process that has ended and was not waited for (proc_pid_stat(5), field 12).
fn major_faults(pid: u32) -> u64 {
    let begin = Instant::now();
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
        if fields[0] == "Z" {
            return fields[9].parse().unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{stat}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_binary_that_is_not_in_memory_waits_for_the_disk() {
    const TEST: &str = "a_binary_that_is_not_in_memory_waits_for_the_disk";
    let host_local = Path::new("/usr/lib/cni/host-local");
    if !host_local.exists() {
        skipped(TEST, "no CNI plugins in /usr/lib/cni");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = SlowDisk::make(TEST, directory.path()) else {
        return;
    };
    let binary = disk.mount.join("host-local");
    fs::copy(host_local, &binary).unwrap();
    disk.forget();
    let Some(recorder) = Recorder::start(TEST, directory.path(), &[]) else {
        return;
    };
    let stdin = format!(
        r#"{{"cniVersion":"0.4.0","name":"pods","ipam":{{"type":"host-local","dataDir":"{}","subnet":"10.77.95.0/24"}}}}"#,
        directory.path().join("networks").display()
    );
    let mut call = plugin(&binary, "pagein");
    call.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0")
        .stdin(Stdio::piped());
    let mut child = disk.spawn(call);
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let faults = major_faults(child.id());
    assert!(child.wait().unwrap().success());
    let bytes = disk.bytes();
    let trace = trace_of(recorder.finish("pagein"), "pagein");
    eprintln!(
        "{TEST}: {faults} major faults, {bytes} bytes\n{}",
        tree(&trace, trace.root().end.unwrap())
    );
    let time = time_of(&trace, "cni ADD");
    let paged: Vec<_> = time.waits.iter().filter(|wait| wait.what == "page of a file").collect();
    let [paged] = paged[..] else { unreachable!("{time:?}") };
    assert_eq!((paged.reason, paged.who.as_str()), (TimeReason::Disk, "host-local"));
    // The kernel counts a major fault where a page was not there.
    assert!(faults > 0, "{paged:?}");
    // The limit lets no more than that pass. A quarter of it may pass ahead of its fault, or before the limit is reached.
    let least = bytes.saturating_mul(1_000_000_000) / BYTES_PER_SECOND / 4;
    assert!(ns_of(time, TimeReason::Disk) >= least, "{time:?}, {bytes} bytes");
    let verdict = phases::verdict(&trace, trace.root().end.unwrap());
    assert!(verdict.contains("for a disk (page of a file)"), "{verdict}");
}

/// A plugin that requests something of the API server, as Calico's does: by a connection of its own, without a daemon.
const ASKS: &str = "#!/usr/bin/python3
import os, socket
peer = socket.create_connection((os.environ['API_HOST'], int(os.environ['API_PORT'])))
peer.sendall(b'GET /apis/crd.projectcalico.org/v1/ippools HTTP/1.1\\r\\nHost: kubernetes\\r\\n\\r\\n')
peer.recv(4096)
";

#[test]
fn an_api_server_that_is_slow_is_named() {
    const TEST: &str = "an_api_server_that_is_slow_is_named";
    const ANSWERS_AFTER: Duration = Duration::from_secs(1);
    if !has(TEST, "python3") {
        return;
    }
    let _turn = answering();
    let (Some(server), Some(node)) = (Namespace::make(TEST), Namespace::make(TEST)) else {
        return;
    };
    server.link(&node, 94);
    let directory = tempfile::tempdir().unwrap();
    let service = [
        ("KUBERNETES_SERVICE_HOST", "10.77.94.1"),
        ("KUBERNETES_SERVICE_PORT", "6443"),
    ];
    let Some(recorder) = Recorder::start(TEST, directory.path(), &service) else {
        return;
    };
    let path = directory.path().join("calico");
    fs::write(&path, ASKS).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let listener = server.within(|| TcpListener::bind("10.77.94.1:6443").unwrap());
    // On one machine the server's own thread delivers what it sends, and is the one that wakes the plugin.
    let server_thread = std::thread::Builder::new().name("kube-apiserver".to_owned());
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).unwrap();
        let begin = Instant::now();
        std::thread::sleep(ANSWERS_AFTER);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        begin.elapsed()
    };
    let thread = server_thread.spawn(serve).unwrap();
    let mut call = plugin(&path, "late-answer");
    call.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0")
        .env("API_HOST", service[0].1)
        .env("API_PORT", service[1].1);
    let status = node.within(|| call.spawn().unwrap().wait().unwrap());
    assert!(status.success());
    let taken = u64::try_from(thread.join().unwrap().as_nanos()).unwrap();
    let trace = trace_of(recorder.finish("late-answer"), "late-answer");
    eprintln!("{TEST}: {}", tree(&trace, trace.root().end.unwrap()));
    let time = time_of(&trace, "plugin calico");
    let waits = time.waits.iter().filter(|wait| wait.reason == TimeReason::Network);
    let longest = waits.max_by_key(|wait| wait.ns).unwrap();
    assert_eq!(
        (longest.what.as_str(), longest.who.as_str()),
        ("10.77.94.1:6443, the API server", "calico")
    );
    // What the server took lies within the wait, but for what the request was on its way.
    assert!(
        longest.ns + 20_000_000 >= taken,
        "{} ns, the server took {taken}",
        longest.ns
    );
    let verdict = phases::verdict(&trace, trace.root().end.unwrap());
    assert!(
        verdict.contains("for the network (10.77.94.1:6443, the API server"),
        "{verdict}"
    );
}
