//! Tests of the rig; those that start one need root and containerd.

use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::directory::clear_left_behind;
use super::*;

fn scratch() -> RigOptions {
    RigOptions {
        base: PathBuf::from(format!("/var/lib/sandglass-rig-test-{}", std::process::id())),
        ..RigOptions::default()
    }
}

#[test]
fn a_rig_comes_up_and_leaves_nothing_behind() {
    if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
        eprintln!("SKIPPED a_rig_comes_up_and_leaves_nothing_behind: {obstacle}");
        return;
    }
    let options = scratch();
    let rig = Rig::start(&options).unwrap();
    let (dir, pid) = (rig.dir().to_owned(), rig.daemon.as_ref().unwrap().id());
    assert!(rig.runtime_metrics().unwrap().contains("containerd_build_info_total"));
    let cgroups = rig.site.cgroup();

    // A second rig may live beside it, and its start must not take the first for a leftover.
    let second = Rig::start(&options).unwrap();
    assert!(rig.runtime_metrics().is_ok());
    second.stop().unwrap();
    rig.stop().unwrap();

    assert!(!dir.exists() && !options.base.exists());
    assert!(mounts::below(&dir).is_empty());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    for root in mounts::cgroup_roots() {
        assert!(!root.point.join(&cgroups).exists());
    }
}

#[test]
fn what_a_killed_owner_left_behind_is_removed() {
    if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
        eprintln!("SKIPPED what_a_killed_owner_left_behind_is_removed: {obstacle}");
        return;
    }
    let options = RigOptions {
        base: scratch().base.with_extension("left"),
        ..scratch()
    };
    let mut rig = Rig::start(&options).unwrap();
    let dir = rig.dir().to_owned();
    let mut containerd = rig.daemon.take().unwrap();
    // An owner that is killed runs no destructor and loses its lock.
    flock(&rig._lock, FlockOperation::Unlock).unwrap();
    std::mem::forget(rig);
    std::thread::sleep(Duration::from_millis(1100));

    clear_left_behind(&options.base);
    assert!(!dir.exists());
    assert!(!containerd.wait().unwrap().success(), "killed, not terminated");
    fs::remove_dir(&options.base).unwrap();
}

#[test]
fn a_killed_owner_takes_its_processes_with_it() {
    const TEST: &str = "a_killed_owner_takes_its_processes_with_it";
    const BASE: &str = "SANDGLASS_TEST_RIG_BASE";
    // The owner: this program again, in a process of its own.
    if let Some(base) = std::env::var_os(BASE) {
        let options = RigOptions {
            base: PathBuf::from(base),
            ..RigOptions::default()
        };
        let rig = Rig::start(&options).unwrap();
        println!("containerd={}", rig.runtime_pid());
        loop {
            std::thread::park();
        }
    }
    if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
        eprintln!("SKIPPED {TEST}: {obstacle}");
        return;
    }
    let base = scratch().base.with_extension("killed");
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("rig::tests::{TEST}"), "--nocapture"])
        .env(BASE, &base)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let pid = lines.find_map(|line| Some(line.unwrap().split_once("containerd=")?.1.parse().unwrap()));
    let containerd = pidfd_open(Pid::from_raw(pid.unwrap()).unwrap(), PidfdFlags::empty()).unwrap();

    owner.kill().unwrap();
    owner.wait().unwrap();

    // A pidfd is readable once its process has ended (pidfd_open(2)).
    let mut ended = [PollFd::from_borrowed_fd(containerd.as_fd(), PollFlags::IN)];
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(
        poll(&mut ended, Some(&patience)).unwrap(),
        1,
        "containerd outlives its owner"
    );
    while base.exists() {
        clear_left_behind(&base);
        // Only an empty one goes; a directory younger than a second is left alone.
        let _ = fs::remove_dir(&base);
    }
}
