//! What only Unix has: links, pipes and executable bits.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn links_to_nowhere_and_special_files_do_not_hang() {
    let node = Node::new();
    std::os::unix::fs::symlink("/nonexistent", node.0.path().join("conf/a.conf")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", node.0.path().join("conf/b.conf")).unwrap();
    fs::create_dir(node.0.path().join("conf/c.conf")).unwrap();
    let conf = node.read();
    assert_eq!(conf.directories[0].files.len(), 2);
    assert!(matches!(
        conf.directories[0].files[0].network,
        Err(ConfError::Read(ReadError::Io(_)))
    ));
    assert_eq!(
        conf.directories[0].files[1].network,
        Err(ConfError::Read(ReadError::Special))
    );
}

#[test]
fn crio_takes_the_network_of_its_settings() {
    let node = Node::new();
    let binary = node.0.path().join("bin/x");
    fs::write(&binary, "").unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    node.conf("10-a.conf", r#"{"name":"a","type":"x"}"#);
    node.conf("20-b.conf", r#"{"name":"b","type":"x"}"#);
    fs::create_dir_all(node.0.path().join("etc/crio")).unwrap();
    let crio_conf = node.0.path().join("etc/crio/crio.conf");
    let choice = || {
        CniConf::read(&node.options(RuntimeKind::Crio)).directories[0]
            .choice
            .clone()
    };
    assert_eq!(choice(), Choice::Networks(vec![0]));
    fs::write(&crio_conf, "[crio.network]\ncni_default_network='b'").unwrap();
    assert_eq!(choice(), Choice::Networks(vec![1]));
    fs::write(&crio_conf, "[crio.network]\ncni_default_network='c'").unwrap();
    assert_eq!(choice(), Choice::NotFound("c".to_owned()));
}

#[test]
fn binaries_are_looked_for_in_order() {
    let node = Node::new();
    let directories = [
        node.0.path().join("none"),
        node.0.path().join("bin"),
        node.0.path().join("conf"),
    ];
    let path = node.0.path().join("bin/bridge");
    fs::create_dir_all(node.0.path().join("conf/host-local")).unwrap();
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        Binary::find("bridge", &directories),
        Binary::NotExecutable(path.clone())
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(Binary::find("bridge", &directories), Binary::Found(path));
    assert_eq!(Binary::find("host-local", &directories), Binary::Missing);
}

/// CRI-O passes over a network of which a plugin does not list the version; others are not queried.
#[test]
fn crio_takes_the_first_network_that_its_plugins_support() {
    let node = Node::new();
    let plugin = |name: &str, script: &str| {
        let path = node.0.path().join("bin").join(name);
        fs::write(
            &path,
            format!("#!/bin/sh\n[ \"$CNI_COMMAND\" = VERSION ] || exit 9\n{script}\n"),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    plugin(
        "new",
        r#"echo '{"CNIVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'"#,
    );
    plugin("old", r#"echo '{"cniVersion":"0.2.0"}'"#);
    plugin(
        "older",
        r#"echo '{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}'; exit 1"#,
    );
    plugin("mute", "exit 0");
    plugin("empty", r#"echo '{"cniVersion":"1.0.0"}'"#);
    plugin("broken", r#"echo '{"code":7,"msg":"no license"}'; exit 1"#);
    let list = |name: &str, version: &str, plugins: &[&str]| {
        let plugins: Vec<String> = plugins.iter().map(|kind| format!(r#"{{"type":"{kind}"}}"#)).collect();
        let plugins = plugins.join(",");
        let text = format!(r#"{{"cniVersion":"{version}","name":"{name}","plugins":[{plugins}]}}"#);
        node.conf(&format!("{name}.conflist"), text);
    };
    list("1-mixed", "1.1.0", &["new", "old"]);
    list("2-mute", "1.0.0", &["mute"]);
    list("3-empty", "1.0.0", &["empty"]);
    list("4-broken", "1.0.0", &["broken"]);
    list("5-too-new", "0.4.0", &["new"]);
    list("6-older", "", &["older"]);
    list("7-fits", "1.0.0", &["new", "new"]);
    let mut conf = CniConf::read(&node.options(RuntimeKind::Crio));
    assert_eq!(
        conf.directories[0].choice,
        Choice::Networks(vec![0]),
        "none was queried"
    );
    conf.ask_plugins();
    let directory = &conf.directories[0];
    let objections: Vec<String> = directory
        .files
        .iter()
        .map(|file| file.supported.clone().unwrap().err().unwrap_or_default())
        .collect();
    assert_eq!(
        objections,
        [
            "plugin old does not support version 1.1.0, only 0.1.0, 0.2.0",
            "plugin mute does not tell its versions: its answer is no JSON",
            "plugin empty does not tell its versions: its answer has no supportedVersions",
            "plugin broken does not tell its versions: no license",
            "plugin new does not support version 0.4.0, only 1.0.0, 1.1.0",
            "",
            "",
        ]
    );
    assert_eq!(directory.choice, Choice::Networks(vec![5]));
    let mut conf = CniConf::read(&node.options(RuntimeKind::Containerd));
    conf.ask_plugins();
    assert!(conf.directories[0].files.iter().all(|file| file.supported.is_none()));
}
