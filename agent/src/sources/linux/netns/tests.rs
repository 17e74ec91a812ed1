//! The watch of namespaces: requests, begins, older sandboxes, the status.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sandglass_model::ProcessKey;

use super::*;
use crate::sources::queue::channel;

fn plugin(command: &str, sandbox: &str, path: &str) -> Exec {
    let env = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", sandbox),
        ("CNI_NETNS", path),
    ];
    Exec {
        process: ProcessKey::new(std::process::id(), 0),
        parent: ProcessKey::new(1, 0),
        parent_comm: "containerd".into(),
        path: "/opt/cni/bin/bridge".into(),
        args: Default::default(),
        args_truncated: false,
        env: env.into_iter().collect(),
        cgroup: String::new(),
        netns: 0,
        counted: None,
        running: false,
    }
}

#[test]
fn a_namespace_is_looked_at_once_for_a_chain_and_again_after_a_del() {
    let (sender, receiver) = channel(16, Gauge::default());
    let mut watch = NetnsWatch::start(sender, KnownNamespaces::default(), &[], None).unwrap();
    let second = 1_000_000_000;
    let [one, other] = ["/proc/self/ns/net", "/proc/thread-self/ns/net"];
    for (command, sandbox, path, at) in [
        ("ADD", "a", one, 1),
        ("ADD", "a", one, 2),
        ("ADD", "b", one, 2),
        ("ADD", "b", other, 2),
        // A slow chain.
        ("ADD", "a", one, 6),
        ("DEL", "a", one, 7),
        ("ADD", "a", one, 8),
        ("ADD", "a", "", 8),
        ("CHECK", "c", one, 8),
    ] {
        watch.request(&plugin(command, sandbox, path), Timestamp(at * second));
    }
    drop(watch);
    let mut observed = Vec::new();
    while let Ok(Some(event)) = receiver.receive(Duration::ZERO) {
        if let Body::NetnsObserved(netns) = event.body {
            observed.push((netns.sandbox.0, netns.path));
        }
    }
    let observed: Vec<_> = observed.iter().map(|(id, path)| (id.as_str(), path.as_str())).collect();
    assert_eq!(observed, [("a", one), ("b", one), ("b", other), ("a", one), ("a", one)]);
}

#[test]
fn the_first_name_in_a_directory_makes_it_known() {
    let watch = NameWatch::start(None, None).unwrap();
    let names = watch.names();
    let directory = tempfile::tempdir().unwrap();
    let at = |name| directory.path().join(name);
    let created = |name| {
        let request = NamespaceRequest {
            pids: [std::process::id(); 2],
            sandbox: SandboxId("sb".to_owned()),
            path: at(name).to_string_lossy().into_owned(),
            requested: clock::now(),
        };
        let netns = look(request, Some(&*names)).unwrap();
        (netns.created.unwrap(), netns.there)
    };
    // What the runtime does: the name, and later what is mounted there.
    let make = |name| {
        fs::write(at(name), "").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o600)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    };
    make("cni-1");
    assert_eq!(created("cni-1").1, None);
    make("cni-2");
    let (created, there) = created("cni-2");
    assert!(created.plus(50_000_000) < there.unwrap());
}

#[test]
fn names_of_runtimes_are_sent_when_they_come_and_when_they_go() {
    let (sender, receiver) = channel(16, Gauge::default());
    let watch = NameWatch::start(Some(sender), None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let opened = fs::File::open(directory.path()).unwrap();
    watch.names().watch("/run/netns", opened.as_fd()).unwrap();
    let of_containerd = "cni-0a1b2c3d-1111-2222-3333-0123456789ab";
    // A namespace of `ip netns add`, one of podman, one of a sandbox.
    for name in ["blue", "netns-0a1b2c3d-1111-2222-3333-0123456789ab", of_containerd] {
        fs::write(directory.path().join(name), "").unwrap();
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let event = receiver.receive(Duration::from_secs(60)).unwrap().unwrap();
        let Body::NetnsNamed { name, removed } = event.body else {
            panic!("{event:?}");
        };
        seen.push((name, removed));
    }
    assert_eq!(seen, [false, true].map(|removed| (of_containerd.to_owned(), removed)));
}

#[test]
fn the_status_names_what_is_lost() {
    let error = io::Error::from_raw_os_error(libc::EMFILE);
    let best = status(None, None);
    assert!(best.attached && best.consequence.is_empty() && best.hint.is_empty());
    for (refused, unwatched, attached, lost) in [
        (None, Some(&error), true, "when its network namespace is there"),
        (Some(&error), None, false, "begins with its first plugin"),
        (Some(&error), Some(&error), false, "begins with its first plugin"),
    ] {
        let status = status(refused, unwatched);
        assert_eq!(status.attached, attached);
        assert!(
            status.consequence.contains(lost) && !status.hint.is_empty(),
            "{status:?}"
        );
        assert_ne!(status.hook, best.hook);
    }
}
