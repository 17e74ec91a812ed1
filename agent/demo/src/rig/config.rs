//! containerd's configuration for the rig.
//!
//! Written in version 2 of its format, which 1.6 and 1.7 speak and 2.x translates. Every path that has a default
//! outside the rig's directory is set; what cannot be set is in [`super::teardown`].

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::programs::SEARCH;
use crate::image;
use crate::networks::Network;

/// Port of the runtime's metrics, in the node's network namespace.
pub(super) const METRICS_PORT: u16 = 1338;

/// The configuration file. Without an `oci_runtime` containers are started with runc, from the search path.
pub(super) fn text(dir: &Path, snapshotter: &str, oci_runtime: Option<&Path>) -> String {
    let at = dir.display();
    let image = image::NAME;
    let mut text = format!(
        r#"version = 2
root = "{at}/root"
state = "{at}/state"

[grpc]
address = "{at}/containerd.sock"

[ttrpc]
address = "{at}/containerd.sock.ttrpc"

[metrics]
address = "127.0.0.1:{METRICS_PORT}"

[plugins."io.containerd.internal.v1.opt"]
path = "{at}/opt"

[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
# Lowering its own score needs CAP_SYS_RESOURCE, which containers lack.
restrict_oom_score_adj = true
# Not in /run/netns, where the host's own runtime has its namespaces.
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{at}/bin"
conf_dir = "{at}/cni/{default}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "{default}"
"#,
        default = Network::Plain.handler()
    );
    for network in Network::ALL {
        let (handler, lists) = (network.handler(), network.lists());
        text.push_str(&format!(
            r#"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."{handler}"]
runtime_type = "io.containerd.runc.v2"
cni_conf_dir = "{at}/cni/{handler}"
cni_max_conf_num = {lists}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."{handler}".options]
Root = "{at}/runc"
"#
        ));
        if let Some(path) = oci_runtime {
            text.push_str(&format!("BinaryName = \"{}\"\n", path.display()));
        }
    }
    text
}

/// Whether overlayfs can be mounted below `dir`: impossible inside most containers, whose own root is an overlay.
pub(super) fn overlay_works(dir: &Path) -> bool {
    let probe = dir.join("overlay-probe");
    let layers = ["lower", "upper", "work", "merged"].map(|layer| probe.join(layer));
    if layers.iter().any(|layer| fs::create_dir_all(layer).is_err()) {
        return false;
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        layers[0].display(),
        layers[1].display(),
        layers[2].display()
    );
    let quiet = |command: &mut Command| {
        let command = command.env("PATH", SEARCH).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status();
        status.is_ok_and(|status| status.success())
    };
    let works = quiet(
        Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&layers[3]),
    );
    // When this fails, the teardown does it again.
    quiet(Command::new("umount").arg(&layers[3]));
    let _ = fs::remove_dir_all(&probe);
    works
}
