//! What stops sandboxes, by configuration and plugins in temporary directories, and the watch that notices it.

use super::*;

impl Node {
    fn plugin(&self, name: &str) -> &Node {
        let path = self.0.path().join("bin").join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        self
    }

    /// Problems without the path of the test's directory.
    fn problems(&self) -> Vec<(ProblemKind, String)> {
        let root = self.0.path().display().to_string();
        let problems = self.read().problems().into_iter();
        problems
            .map(|problem| (problem.kind, problem.text.replace(&root, "")))
            .collect()
    }
}

#[test]
fn what_stops_sandboxes_is_named_with_its_place() {
    let node = Node::new();
    let nothing = "no network configuration in /conf".to_owned();
    assert_eq!(node.problems(), [(ProblemKind::NoConfiguration, nothing)]);
    node.conf("10-pods.conflist", "{\n  \"name\": \"pods\",,\n}");
    let [(kind, text)] = &node.problems()[..] else {
        panic!("{:?}", node.problems())
    };
    assert_eq!(*kind, ProblemKind::BadFile);
    assert!(
        text.starts_with("/conf/10-pods.conflist: not JSON, line 2, column 18"),
        "{text}"
    );
    node.conf("10-pods.conflist", BRIDGE);
    for plugin in ["bridge", "host-local", "firewall"] {
        node.plugin(plugin);
    }
    let missing = [
        "/conf/10-pods.conflist: no plugin \"portmap\" in /bin",
        "no plugin \"loopback\" in /bin, which containerd runs for every sandbox",
    ];
    assert_eq!(
        node.problems(),
        missing.map(|text| (ProblemKind::NoPlugin, text.to_owned()))
    );
    node.plugin("portmap").plugin("loopback");
    assert_eq!(node.problems(), []);
    node.conf("10-pods.conflist", BRIDGE.replace("\"pods\"", "\"p/o\""));
    let bad = "/conf/10-pods.conflist: the network's name \"p/o\" is not allowed".to_owned();
    assert_eq!(node.problems(), [(ProblemKind::BadNetwork, bad)]);
    // A container without the mount of the plugins cannot know.
    fs::remove_dir_all(node.0.path().join("bin")).unwrap();
    node.conf("10-pods.conflist", BRIDGE);
    let blind = "no plugin directory: /bin".to_owned();
    assert_eq!(node.problems(), [(ProblemKind::NotReadable, blind)]);
    assert!(!ProblemKind::NotReadable.stops_sandboxes());
}

#[test]
fn the_watch_notices_a_plugin_that_comes_and_goes() {
    let node = Node::new();
    node.conf("10-pods.conflist", BRIDGE);
    let mut watch = Watch::new(node.options(RuntimeKind::Containerd));
    assert!(watch.poll().is_some());
    assert_eq!(watch.problems().len(), 5);
    for plugin in ["bridge", "host-local", "firewall", "portmap", "loopback"] {
        node.plugin(plugin);
    }
    // The networks are the same.
    assert_eq!(watch.poll(), None);
    assert_eq!(watch.problems(), []);
    assert!(watch.changed().is_some());
    fs::remove_file(node.0.path().join("bin/portmap")).unwrap();
    assert_eq!(watch.poll(), None);
    assert_eq!(watch.problems().len(), 1);
}
