//! Configuration directories, good and bad, in temporary directories.

use std::fs;

use super::*;

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Node {
        let node = Node(tempfile::tempdir().unwrap());
        fs::create_dir_all(node.0.path().join("conf")).unwrap();
        fs::create_dir_all(node.0.path().join("bin")).unwrap();
        node
    }

    fn conf(&self, name: &str, text: impl AsRef<[u8]>) -> &Node {
        let path = self.0.path().join("conf").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn options(&self, runtime: RuntimeKind) -> CniOptions {
        CniOptions {
            runtime: Some(runtime),
            conf_dir: Some(self.0.path().join("conf")),
            bin_dirs: vec![self.0.path().join("bin")],
            ..CniOptions::found_below(self.0.path())
        }
    }

    fn read(&self) -> CniConf {
        CniConf::read(&self.options(RuntimeKind::Containerd))
    }

    /// What one file of this text is worth.
    fn one(name: &str, text: impl AsRef<[u8]>) -> Result<Network, ConfError> {
        let node = Node::new();
        node.conf(name, text);
        let conf = node.read();
        let mut files = conf.directories.into_iter().next().unwrap().files;
        assert_eq!(files.len(), 1);
        files.remove(0).network
    }
}

fn kinds_of(conf: &CniConf) -> Vec<(String, Vec<String>)> {
    conf.networks()
        .into_iter()
        .map(|list| (list.network, list.plugins))
        .collect()
}

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[
    {"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/16"}]]}},
    {"type":"portmap","capabilities":{"portMappings":true}},
    {"type":"firewall"}]}"#;

#[test]
fn a_chain_is_read_with_its_delegates() {
    let network = Node::one("10-pods.conflist", BRIDGE).unwrap();
    assert_eq!((network.name.as_str(), network.version.as_str()), ("pods", "1.0.0"));
    assert_eq!(network.remarks, []);
    let bridge = &network.plugins[0];
    assert_eq!(
        bridge.all().map(|plugin| plugin.kind.as_str()).collect::<Vec<_>>(),
        ["bridge", "host-local"]
    );
    assert_eq!(bridge.delegates[0].key, "ipam");
    assert_eq!(kinds(&network.plugins), ["bridge", "portmap", "firewall"]);
    assert!(network.has_check() && !network.has_status() && !network.has_gc());
}

#[test]
fn bad_files_say_what_is_wrong_and_where() {
    let deep = "[".repeat(500);
    for (name, text, expected) in [
        ("a.conf", "", "line 1, column 1: the file is empty"),
        (
            "a.conf",
            "{\n  \"name\": \"x\",\n  \"type\": \"bridge\",\n}",
            "line 4, column 1: trailing comma",
        ),
        (
            "a.conf",
            "{\"name\": \"x\"\n \"type\": 1}",
            "line 2, column 2: expected `,` or `}`",
        ),
        (
            "a.conf",
            "\u{feff}{}",
            "line 1, column 1: the file starts with a byte order mark, which JSON does not allow",
        ),
        (
            "a.conf",
            "{\n  // name\n",
            "line 2, column 3: a comment, which JSON does not allow",
        ),
        (
            "a.conf",
            "{\0}\0",
            "line 1, column 1: the file is UTF-16; JSON is UTF-8",
        ),
        ("a.conf", "{} {}", "line 1, column 4: trailing characters"),
        ("a.conf", "{\"a\": 01}", "line 1, column 8: invalid number"),
        (
            "a.conf",
            "{\"a\": \"\n\"}",
            "line 1, column 8: a line break, tab or other control character within a string",
        ),
        ("a.conf", "{\"a\": tru", "line 1, column 10: the file ends too early"),
        ("a.conf", "[1]", "\"the plugin\" is not an object"),
        ("a.conf", deep.as_str(), "line 1, column 501: the file ends too early"),
        ("a.conf", r#"{"name":7,"type":"bridge"}"#, "\"name\" is not a text"),
        ("a.conf", r#"{"name":"x"}"#, "\"type\" of the plugin is missing"),
        (
            "a.conf",
            r#"{"name":"x","type":"","Type":"y"}"#,
            "\"type\" of the plugin is missing or empty; the last of it and \"Type\" counts",
        ),
        (
            "a.conf",
            r#"{"name":"x","type":"y","a":1e999}"#,
            "a number is too large for a 64-bit float",
        ),
        (
            "a.conf",
            BRIDGE,
            "a list (\"plugins\") in a file that is not called .conflist",
        ),
        ("a.conflist", "[1]", "not a JSON object"),
        (
            "a.conflist",
            r#"{"Name":"x","plugins":[]}"#,
            "\"name\" is missing; \"Name\" does not count, since case matters here",
        ),
        ("a.conflist", r#"{"name":"x"}"#, "\"plugins\" is missing or empty"),
        (
            "a.conflist",
            r#"{"name":"x","plugins":[]}"#,
            "\"plugins\" is missing or empty",
        ),
        (
            "a.conflist",
            r#"{"name":"x","plugins":{}}"#,
            "\"plugins\" is not a list",
        ),
        (
            "a.conflist",
            r#"{"name":"x","plugins":[{"type":"a"},7]}"#,
            "\"plugins[1]\" is not an object",
        ),
        (
            "a.conflist",
            r#"{"name":"x","plugins":[{"type":"a"},{}]}"#,
            "\"type\" of plugins[1] is missing",
        ),
        (
            "a.conflist",
            r#"{"name":"x","cniVersion":null,"plugins":[{"type":"a"}]}"#,
            "\"cniVersion\" is not a text",
        ),
        (
            "a.conflist",
            r#"{"name":"x","plugins":[{"type":"a","capabilities":{"portMappings":"true"}}]}"#,
            "\"capabilities.portMappings\" is not true or false",
        ),
        (
            "a.conflist",
            r#"{"name":"x","plugins":[{"type":"a","dns":{"nameservers":"8.8.8.8"}}]}"#,
            "\"dns.nameservers\" is not a list",
        ),
        (
            "a.conflist",
            r#"{"name":"x","plugins":[{"type":"a","ipam":"host-local"}]}"#,
            "\"ipam\" is not an object",
        ),
        (
            "a.conflist",
            r#"{"name":"x","disableCheck":"maybe","plugins":[{"type":"a"}]}"#,
            "\"disableCheck\" is not true or false",
        ),
        (
            "a.conflist",
            r#"{"name":"x","cniVersions":"1.0.0","plugins":[{"type":"a"}]}"#,
            "\"cniVersions\" is not a list",
        ),
    ] {
        let error = Node::one(name, text).unwrap_err();
        assert_eq!(error.to_string(), expected, "{name}: {text:.80}");
        assert!(!error.hint().is_empty() && !error.is_own_limit());
    }
}

#[test]
fn a_limit_of_the_agent_is_no_verdict() {
    let node = Node::new();
    node.conf("10-a.conf", vec![b' '; (1 << 20) + 1]);
    node.conf("20-b.conflist", BRIDGE);
    let conf = node.read();
    let error = conf.directories[0].files[0].network.as_ref().unwrap_err();
    assert!(error.is_own_limit());
    assert_eq!(
        error.to_string(),
        "larger than 1 MiB, which is the most that the agent reads"
    );
    assert_eq!(conf.directories[0].choice, Choice::Unknown(0));
}

#[test]
fn what_serde_refuses_and_go_does_not_is_loaded() {
    let nested = [
        r#"{"type":"x","name":"y","z":"#,
        &"[".repeat(9_000),
        &"]".repeat(9_000),
        "}",
    ]
    .concat();
    for text in [
        nested.as_bytes(),
        br#"{"type":"x","name":"y","z":"\ud800"}"#,
        b"{\"type\":\"x\",\"name\":\"y\",\"z\":\"\xff\"}",
    ] {
        assert_eq!(Node::one("a.conf", text).unwrap().name, "y");
    }
}

#[test]
fn names_and_versions_that_fail_later_are_loaded() {
    let remarks = |text: &str| Node::one("a.conf", text).unwrap().remarks;
    assert_eq!(remarks(r#"{"type":"x","cniVersion":"1.0.0"}"#), [Remark::NoName]);
    assert_eq!(
        remarks(r#"{"name":"a b","type":"x","cniVersion":"1.0.0"}"#),
        [Remark::BadName]
    );
    assert_eq!(
        remarks(r#"{"name":"a","type":"x","cniVersion":"one"}"#),
        [Remark::BadVersion]
    );
    let node = Node::new();
    node.conf("10-a.conf", r#"{"type":"x","cniVersion":"1.0.0"}"#);
    let crio = CniConf::read(&node.options(RuntimeKind::Crio));
    let network = crio.directories[0].files[0].network.as_ref().unwrap();
    assert_eq!(
        (network.name.as_str(), &network.remarks[..]),
        ("10-a.conf", &[Remark::NamedAfterFile][..])
    );
}

#[test]
fn versions_decide_what_a_runtime_may_ask() {
    let network = |extra: &str| {
        Node::one(
            "a.conflist",
            format!(r#"{{"name":"x",{extra}"plugins":[{{"type":"a"}}]}}"#),
        )
    };
    let may = |extra: &str| {
        let network = network(extra).unwrap();
        (network.has_check(), network.has_status(), network.has_gc())
    };
    assert_eq!(may(r#""cniVersion":"0.3.1","#), (false, false, false));
    assert_eq!(may(r#""cniVersion":"0.4.0","#), (true, false, false));
    assert_eq!(may(r#""cniVersion":"1.1.0","#), (true, true, true));
    assert_eq!(
        may(r#""cniVersion":"1.1.0","disableCheck":true,"disableGC":"True","#),
        (false, true, false)
    );
    assert_eq!(
        may(r#""cniVersions":["0.3.1","1.1.0","9.0.0"],"cniVersion":"1.0.0","#),
        (true, true, true)
    );
    assert_eq!(network("").unwrap().remarks, [Remark::NoVersion]);
    let future = network(r#""cniVersion":"2.0.0","#).unwrap().remarks;
    assert_eq!(future, [Remark::FutureVersion]);
}

#[test]
fn names_and_versions_inside_a_list_do_not_count() {
    let text = r#"{"name":"x","cniVersion":"1.0.0","plugins":[{"type":"a","name":"y","cniVersion":"0.2.0"},{"type":"b","name":"x"}]}"#;
    let remarks = Node::one("a.conflist", text).unwrap().remarks;
    assert_eq!(
        remarks,
        [
            Remark::NameOverwritten {
                plugin: "a".to_owned(),
                name: "y".to_owned()
            },
            Remark::VersionOverwritten {
                plugin: "a".to_owned(),
                version: "0.2.0".to_owned()
            },
        ]
    );
}

#[test]
fn plugins_in_a_directory_of_the_networks_name_are_appended() {
    let node = Node::new();
    node.conf("a.conflist", r#"{"name":"pods","cniVersion":"1.1.0"}"#);
    node.conf("pods/20-b.conf", r#"{"type":"second"}"#);
    node.conf("pods/10-a.conf", r#"{"type":"first"}"#);
    let conf = node.read();
    assert_eq!(
        kinds(&conf.directories[0].files[0].network.as_ref().unwrap().plugins),
        ["first", "second"]
    );
}

#[test]
fn delegations_of_multus_and_flannel_are_followed() {
    let node = Node::new();
    node.conf(
        "00-multus.conf",
        r#"{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus","clusterNetwork":"/host/etc/cni/net.d/10-calico.conflist",
            "delegates":[{"name":"front","plugins":[{"type":"calico","ipam":{"type":"calico-ipam"}},{"type":"portmap"}]},{"type":"macvlan","ipam":{"type":"dhcp"}}, 7, {"type":9}]}"#,
    );
    node.conf(
        "10-flannel.conflist",
        r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true}}]}"#,
    );
    let conf = node.read();
    let multus = &conf.directories[0].files[0].network.as_ref().unwrap().plugins[0];
    let all: Vec<_> = multus.all().map(|plugin| plugin.kind.as_str()).collect();
    assert_eq!(all, ["multus", "calico", "calico-ipam", "portmap", "macvlan", "dhcp"]);
    assert!(multus.delegates.contains(&Delegate {
        key: "clusterNetwork",
        to: DelegateTo::Named("/host/etc/cni/net.d/10-calico.conflist".to_owned())
    }));
    let flannel = &conf.directories[0].files[1].network.as_ref().unwrap().plugins[0];
    assert_eq!(
        flannel.all().map(|plugin| plugin.kind.as_str()).collect::<Vec<_>>(),
        ["flannel", "bridge"]
    );
    assert_eq!(
        kinds_of(&conf),
        [
            ("multus-cni-network".to_owned(), vec!["multus".to_owned()]),
            ("cbr0".to_owned(), vec!["flannel".to_owned()]),
            ("front".to_owned(), vec!["calico".to_owned(), "portmap".to_owned()]),
            ("cni-loopback".to_owned(), vec!["loopback".to_owned()]),
        ]
    );
}

#[test]
fn endless_delegation_is_cut() {
    let mut text = r#"{"type":"leaf"}"#.to_owned();
    for _ in 0..40 {
        text = format!(r#"{{"type":"a","delegate":{text}}}"#);
    }
    let network = Node::one("a.conflist", format!(r#"{{"name":"x","plugins":[{text}]}}"#)).unwrap();
    assert_eq!(network.plugins[0].all().count(), 5);
}

#[test]
fn the_first_file_by_name_wins_and_a_bad_one_stops_containerd_only() {
    let node = Node::new();
    node.conf("20-b.conflist", r#"{"name":"b","plugins":[{"type":"x"}]}"#);
    node.conf("10-a.conf", r#"{"name":"a","type":"x"}"#);
    node.conf("README", "no configuration");
    node.conf("05-old.conf.bak", "{");
    let conf = node.read();
    assert_eq!(conf.directories[0].choice, Choice::Networks(vec![0]));
    assert!(conf.directories[0].files[0].path.ends_with("10-a.conf"));
    assert_eq!(conf.directories[0].ignored.len(), 2);

    node.conf("00-broken.json", "{");
    assert_eq!(node.read().directories[0].choice, Choice::StoppedAt(0));
    let unknown = CniConf::read(&node.options(RuntimeKind::Unknown));
    assert_eq!(unknown.directories[0].choice, Choice::Networks(vec![1]));
    // CRI-O passes over networks whose plugins are missing.
    assert_eq!(
        CniConf::read(&node.options(RuntimeKind::Crio)).directories[0].choice,
        Choice::Nothing
    );
}

#[test]
fn no_directory_is_no_error() {
    let conf = CniConf::read(&CniOptions {
        conf_dir: Some("/nonexistent/net.d".into()),
        runtime: Some(RuntimeKind::Containerd),
        ..CniOptions::found_below(Path::new("/"))
    });
    assert_eq!(conf.directories[0].choice, Choice::Nothing);
    assert_eq!(conf.directories[0].unreadable, None);
    assert_eq!(
        kinds_of(&conf),
        [("cni-loopback".to_owned(), vec!["loopback".to_owned()])]
    );
}

#[test]
fn a_handlers_directory_is_read_beside_the_default_one() {
    let node = Node::new();
    node.conf("a.conflist", BRIDGE);
    node.conf("../kata/b.conf", r#"{"name":"isolated","type":"x"}"#);
    let config = os::under(node.0.path(), os::CONTAINERD_CONFIGS[0]);
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let settings = "[plugins.cri.containerd.runtimes.runc]\n\
        [plugins.cri.containerd.runtimes.kata]\ncni_conf_dir='/kata'\ncni_max_conf_num=-1\n\
        [plugins.cri.containerd.runtimes.kata-fc]\ncni_conf_dir='/kata'\ncni_max_conf_num=-1\n";
    fs::write(config, settings).unwrap();
    let conf = node.read();
    assert_eq!(conf.directories.len(), 2);
    assert_eq!(conf.directories[1].handlers, ["kata", "kata-fc"]);
    assert_eq!(conf.directories[1].max_networks, None);
    assert_eq!(conf.directories[1].choice, Choice::Networks(vec![0]));
    let names: Vec<_> = conf.networks().into_iter().map(|list| list.network).collect();
    assert_eq!(names, ["pods", "isolated", "cni-loopback"]);
}

#[test]
fn a_change_is_noticed_once() {
    let node = Node::new();
    let mut watch = Watch::new(node.options(RuntimeKind::Unknown));
    assert_eq!(watch.poll(), Some(vec![]));
    assert_eq!(watch.poll(), None);
    node.conf("a.conflist", BRIDGE);
    assert_eq!(watch.poll().unwrap()[0].network, "pods");
    assert_eq!(watch.poll(), None);
    // Touched, but the same networks.
    node.conf("a.conflist", format!("{BRIDGE}\n"));
    assert_eq!(watch.poll(), None);
    fs::remove_file(node.0.path().join("conf/a.conflist")).unwrap();
    assert_eq!(watch.poll(), Some(vec![]));
}

#[test]
fn a_new_settings_file_is_noticed() {
    let node = Node::new();
    let options = CniOptions {
        conf_dir: None,
        ..node.options(RuntimeKind::Containerd)
    };
    let mut watch = Watch::new(options);
    assert_eq!(watch.poll().unwrap().len(), 1);
    node.conf("a.conflist", BRIDGE);
    assert_eq!(watch.poll(), None);
    let config = os::under(node.0.path(), os::CONTAINERD_CONFIGS[0]);
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(config, "[plugins.cri.cni]\nconf_dir='/conf'").unwrap();
    assert_eq!(watch.poll().unwrap()[0].network, "pods");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// A valid file with some bytes overwritten, inserted or cut off, and settings of any text.
    #[test]
    fn no_file_makes_reading_panic(
        at in 0..BRIDGE.len(),
        noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..12),
        keep in 0..BRIDGE.len(),
        toml in "(?s)[\\[\\]a-z.='\"\n0-9 ü]{0,80}",
    ) {
        let node = Node::new();
        let mut bytes = BRIDGE.as_bytes().to_vec();
        bytes.splice(at..at, noise.iter().copied());
        node.conf("10-a.conflist", &bytes);
        bytes.truncate(keep);
        node.conf("20-b.json", &bytes);
        fs::create_dir_all(node.0.path().join("etc/containerd")).unwrap();
        fs::write(node.0.path().join("etc/containerd/config.toml"), toml).unwrap();
        let conf = node.read();
        proptest::prop_assert_eq!(conf.directories[0].files.len(), 2);
        proptest::prop_assert!(conf.networks().len() <= 3);
    }
}

#[cfg(unix)]
mod problems;
#[cfg(unix)]
mod unix;
