//! Settings files of both runtimes, good and bad, in temporary directories.

use super::*;

const CONFIG: &str = CONTAINERD_CONFIGS[0];

fn beside(name: &str) -> String {
    CONFIG.replace("config.toml", name)
}

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Node {
        Node(tempfile::tempdir().unwrap())
    }
    fn file(&self, path: &str, text: &str) -> &Node {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }
    fn path(&self, path: &str) -> PathBuf {
        under(self.0.path(), path)
    }
    fn settings(&self) -> CniSettings {
        CniSettings::find(&CniOptions::found_below(self.0.path()))
    }
}

#[test]
fn an_empty_node_has_the_defaults() {
    let node = Node::new();
    let settings = node.settings();
    assert_eq!(settings.loader.runtime, RuntimeKind::Unknown);
    assert_eq!(settings.conf_dir, node.path(DEFAULT_CONF_DIR));
    assert_eq!(settings.bin_dirs, [node.path(DEFAULT_BIN_DIR)]);
    assert_eq!(settings.errors, []);
}

#[test]
fn all_layouts_of_containerd_are_read() {
    for (layout, bin) in [
        (
            "[plugins.cri.cni]\nconf_dir='/a'\nbin_dir='/b'\nmax_conf_num=2",
            vec!["/b"],
        ),
        (
            "version=2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir='/a'\nbin_dir='/b'\nmax_conf_num=2",
            vec!["/b"],
        ),
        (
            "version=3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir='/a'\nbin_dir=''\nbin_dirs=['/b','/c']\nmax_conf_num=2",
            vec!["/b", "/c"],
        ),
    ] {
        let node = Node::new();
        node.file(CONFIG, layout);
        let settings = node.settings();
        assert_eq!(settings.loader.runtime, RuntimeKind::Containerd);
        assert_eq!(settings.conf_dir, node.path("/a"), "{layout}");
        assert_eq!(
            settings.bin_dirs,
            bin.iter().map(|dir| node.path(dir)).collect::<Vec<_>>()
        );
        assert_eq!(settings.max_networks, Some(2));
        assert!(settings.loopback_plugin);
        assert_eq!(settings.sources, [node.path(CONFIG)]);
    }
}

#[test]
fn imports_replace_the_section_and_may_form_a_circle() {
    let node = Node::new();
    node.file(
        CONFIG,
        &format!("version=2\nimports=['conf.d/*.toml', '{CONFIG}']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir='/a'\nmax_conf_num=5"),
    );
    node.file(
        &beside("conf.d/a.toml"),
        "[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir='/x'",
    );
    node.file(&beside("conf.d/b.toml"), "imports=['../config.toml']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir='/y'\nmax_conf_num=0\nuse_internal_loopback=true");
    node.file(
        &beside("conf.d/c.bak"),
        "[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir='/z'",
    );
    let settings = node.settings();
    assert_eq!(settings.bin_dirs, [node.path("/y")]);
    assert_eq!(settings.conf_dir, node.path(DEFAULT_CONF_DIR));
    assert_eq!(settings.max_networks, None);
    assert!(!settings.loopback_plugin);
}

#[test]
fn a_disabled_cri_plugin_is_noticed() {
    let node = Node::new();
    node.file(CONFIG, "disabled_plugins = [\"cri\"]");
    assert_eq!(node.settings().cri_disabled_in, Some(node.path(CONFIG)));
}

#[test]
fn crio_is_read_key_by_key() {
    let node = Node::new();
    node.file(
        "/etc/crio/crio.conf",
        "[crio.network]\nnetwork_dir='/a'\nplugin_dirs=['/b']",
    );
    node.file(
        "/etc/crio/crio.conf.d/10-x.conf",
        "[crio.network]\nplugin_dirs=['/c','/d']",
    );
    node.file(
        "/etc/crio/crio.conf.d/20-y.conf",
        "[crio.network]\ncni_default_network='pods'",
    );
    let settings = node.settings();
    assert_eq!(settings.loader.runtime, RuntimeKind::Crio);
    assert_eq!(settings.conf_dir, node.path("/a"));
    assert_eq!(settings.bin_dirs, [node.path("/c"), node.path("/d")]);
    assert_eq!(settings.default_network, "pods");
    assert!(!settings.loopback_plugin);
}

#[test]
fn bad_toml_has_a_position_and_leaves_the_defaults() {
    let node = Node::new();
    node.file(CONFIG, "version = 2\n[plugins\nx = 1\n");
    let settings = node.settings();
    assert_eq!(settings.conf_dir, node.path(DEFAULT_CONF_DIR));
    assert!(
        matches!(&settings.errors[..], [SettingsError::Toml { line: 2, .. }]),
        "{:?}",
        settings.errors
    );
    node.file(
        CONFIG,
        "[plugins.cri.cni]\nconf_dir = 7\nbin_dirs = 'x'\nmax_conf_num = 'y'",
    );
    assert_eq!(node.settings().errors.len(), 3);
}

#[test]
fn the_agents_own_settings_win() {
    let node = Node::new();
    node.file(CONFIG, "[plugins.cri.cni]\nconf_dir='/a'");
    let settings = CniSettings::find(&CniOptions {
        conf_dir: Some("/own".into()),
        bin_dirs: vec!["/own/bin".into()],
        ..CniOptions::found_below(node.0.path())
    });
    assert_eq!(settings.conf_dir, Path::new("/own"));
    assert_eq!(settings.bin_dirs, [Path::new("/own/bin")]);
}

#[test]
fn patterns_match_as_a_shell_does() {
    assert!(containerd::matches("*.toml", "a.toml"));
    assert!(containerd::matches("a*c*e", "abcde"));
    assert!(!containerd::matches("a*c*e", "abde"));
    assert!(!containerd::matches("a", "ab"));
    assert!(containerd::matches("*", ""));
}
