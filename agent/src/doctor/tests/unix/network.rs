//! How names are asked for and what conntrack holds, on made-up nodes.

use super::*;

impl Node {
    fn process(&self, pid: u32, netns: u64, resolv_conf: Option<&str>) -> &Node {
        let path = self.0.path().join(format!("proc/{pid}/ns"));
        fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::symlink(format!("net:[{netns}]"), path.join("net")).unwrap();
        if let Some(text) = resolv_conf {
            self.file(&format!("proc/{pid}/root/etc/resolv.conf"), text);
        }
        self
    }

    fn conntrack(&self, settings: &[(&str, &str)]) -> &Node {
        for (name, value) in settings {
            self.file(
                &format!("proc/sys/net/netfilter/nf_conntrack_{name}"),
                format!("{value}\n"),
            );
        }
        self
    }

    fn network(&self) -> Vec<Finding> {
        super::super::network::check(self.0.path())
    }
}

const POD: &str =
    "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n";

fn find<'a>(findings: &'a [Finding], part: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.what.contains(part));
    found.unwrap_or_else(|| panic!("no finding says {part:?}: {findings:#?}"))
}
#[test]
fn sandboxes_are_grouped_by_how_they_ask_for_names() {
    let node = Node::new();
    node.good_kernel().file("etc/resolv.conf", "nameserver 9.9.9.9\n");
    node.process(1, 10, Some("nameserver 192.0.2.1\noptions edns0 trust-ad\n"))
        .process(100, 20, None)
        .process(101, 20, Some(POD))
        .process(102, 21, Some(POD))
        .process(103, 22, Some("options ndots:99 timeout:1\n"))
        .process(104, 23, None);
    let findings = node.network();
    assert_eq!(
        find(
            &findings,
            "the node: servers 192.0.2.1; search none; ndots:1 edns0 trust-ad"
        )
        .level,
        Level::Ok
    );
    let pods = find(&findings, "2 sandboxes: servers 10.96.0.10;");
    assert_eq!(pods.level, Level::Note);
    assert!(
        pods.why.contains("up to 4 names, 8 queries") && pods.why.contains("5 s"),
        "{pods:?}"
    );
    assert!(pods.hint.contains("end external names with a dot"), "{pods:?}");
    let none = find(&findings, "1 sandbox: servers none; search none; ndots:15");
    assert!(none.level == Level::Warn && none.why.contains("127.0.0.1"), "{none:?}");
    assert!(
        find(&findings, "1 sandbox: resolv.conf cannot be read")
            .hint
            .contains("CAP_SYS_PTRACE")
    );
    assert!(
        !findings.iter().any(|finding| finding.what.contains("9.9.9.9")),
        "{findings:#?}"
    );
}

#[test]
fn a_node_without_sandboxes_and_conntrack_says_so() {
    let node = Node::new();
    let findings = node.good_kernel().network();
    assert!(
        find(&findings, "/etc/resolv.conf cannot be read")
            .hint
            .contains("mount")
    );
    find(&findings, "no sandbox with a readable resolv.conf");
    find(&findings, "connection tracking is not loaded");
    assert!(
        findings.iter().all(|finding| finding.level <= Level::Note),
        "{findings:#?}"
    );
    // Where there is no /proc nothing is said at all.
    assert_eq!(Node::new().network(), []);
}

#[test]
fn conntrack_that_is_full_has_long_chains_or_is_mute_is_told_with_the_mending() {
    let good = [
        ("max", "262144"),
        ("count", "812"),
        ("buckets", "65536"),
        ("events", "2"),
        ("timestamp", "0"),
    ];
    let node = Node::new();
    let findings = node.good_kernel().conntrack(&good).network();
    assert_eq!(find(&findings, "812 of 262144").level, Level::Ok);
    assert_eq!(find(&findings, "65536 hash buckets, 4 entries").level, Level::Ok);
    assert_eq!(find(&findings, "nf_conntrack_events = 2").level, Level::Ok);
    assert_eq!(find(&findings, "nf_conntrack_timestamp = 0").level, Level::Ok);

    let node = Node::new();
    node.good_kernel()
        .conntrack(&[("max", "1000"), ("count", "990"), ("events", "0")])
        .file("sys/module/nf_conntrack/parameters/hashsize", "16\n");
    let findings = node.network();
    for (part, level, hint) in [
        ("990 of 1000 conntrack entries (99 %)", Level::Warn, "nf_conntrack_max"),
        ("16 hash buckets, 62 entries", Level::Note, "hashsize"),
        ("nf_conntrack_events = 0", Level::Warn, "nf_conntrack_events=1"),
    ] {
        let finding = find(&findings, part);
        assert!(
            finding.level == level && finding.hint.contains(hint) && !finding.why.is_empty(),
            "{finding:?}"
        );
    }
}

#[test]
fn whatever_stands_in_the_files_is_no_panic() {
    let node = Node::new();
    node.good_kernel()
        .file(
            "etc/resolv.conf",
            [
                0xff, 0xfe, b'\n', b'o', b'p', b't', b'i', b'o', b'n', b's', b' ', b':', 0,
            ],
        )
        .conntrack(&[("max", "0"), ("count", "99999999999999999999"), ("buckets", "x")]);
    assert!(!node.network().is_empty());
    node.conntrack(&[("count", "18446744073709551615"), ("buckets", "0")]);
    assert!(!node.network().is_empty());
}
