//! Tests of the rig; those that start one need root and containerd.

use rustix::fs::{FlockOperation, flock};

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
    let (dir, pid) = (rig.dir().to_owned(), rig.containerd.as_ref().unwrap().id());
    assert!(
        rig.containerd_metrics()
            .unwrap()
            .contains("containerd_build_info_total")
    );
    let cgroups = rig.site.cgroup();

    // A second rig may live beside it, and its start must not take the first for a leftover.
    let second = Rig::start(&options).unwrap();
    assert!(rig.containerd_metrics().is_ok());
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
    let mut containerd = rig.containerd.take().unwrap();
    // An owner that is killed runs no destructor and loses its lock.
    flock(&rig._lock, FlockOperation::Unlock).unwrap();
    std::mem::forget(rig);
    std::thread::sleep(Duration::from_millis(1100));

    clear_left_behind(&options.base);
    assert!(!dir.exists());
    assert!(!containerd.wait().unwrap().success(), "killed, not asked");
    fs::remove_dir(&options.base).unwrap();
}
