//! The name of the folder that the one-node Kubernetes is cached in: what changes the programs changes it, a comment does not.
//!
//! A part of `deploy.rs`. Building Kubernetes again takes half an hour. Does not: build anything.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::helm::root;

const RECIPE: &str = "deploy/cluster/recipe.sh";

#[test]
fn comments_do_not_rename_the_clusters_cache() {
    let copy = tempfile::tempdir().unwrap();
    let inputs = ["deploy/cluster", "scripts", "Cargo.toml"];
    let copied = Command::new("cp")
        .args(["--recursive", "--parents"])
        .args(inputs)
        .arg(copy.path())
        .current_dir(root("."))
        .status();
    assert!(copied.unwrap().success());
    let before = place(copy.path());
    edit(copy.path(), "deploy/cluster/build.sh", |text| {
        format!("{text}# Another comment.\n")
    });
    edit(copy.path(), RECIPE, |text| format!("# Another comment.\n\n{text}"));
    assert_eq!(place(copy.path()), before);
    edit(copy.path(), RECIPE, |text| {
        text.replace("kubernetes_version=v1.", "kubernetes_version=v2.")
    });
    let with_another_version = place(copy.path());
    assert_ne!(with_another_version, before);
    edit(copy.path(), "scripts/peer.sh", |text| {
        text.replace("containerd/v2  v2.", "containerd/v2  v3.")
    });
    assert_ne!(place(copy.path()), with_another_version);
}

fn edit(copy: &Path, file: &str, change: impl Fn(&str) -> String) {
    let path = copy.join(file);
    let text = fs::read_to_string(&path).unwrap();
    let changed = change(&text);
    assert_ne!(text, changed, "{file}");
    fs::write(path, changed).unwrap();
}

fn place(copy: &Path) -> String {
    let output = Command::new(copy.join("scripts/places.sh"))
        .arg("cluster")
        .env_remove("SANDGLASS_CLUSTER_BIN")
        .env_remove("SANDGLASS_KUBE_BIN")
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}
