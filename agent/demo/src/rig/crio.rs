//! The rig's other runtime: CRI-O, its configuration, its pause image, and its only network.
//!
//! CRI-O attaches every pod to the one network that its directory names first, whatever the pod's runtime handler: so the
//! list of a network is put there before pods of it are made ([`Rig::choose`]). Every path that has a default outside the
//! rig's directory is set; libcni's result cache, which cannot be, is removed by [`super::teardown`].
//! Does not: build CRI-O (`scripts/peer.sh crio`), contact a registry.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::config::METRICS_PORT;
use super::programs::{Programs, SEARCH};
use super::{Rig, RigError};
use crate::image;
use crate::networks::Network;
use crate::pods::Runtime;

impl Rig {
    /// The directory of networks that CRI-O reads; it takes the one of the first list in it.
    #[must_use]
    pub fn chosen_networks(&self) -> PathBuf {
        self.site.dir.join(CHOSEN)
    }

    /// Makes `network` the one that new sandboxes are attached to, and returns when the runtime has read it. Nothing to do
    /// where the runtime takes the network from the pod's handler.
    ///
    /// # Errors
    /// When the list cannot be written, or CRI-O does not read it within ten seconds.
    pub async fn choose(&self, network: Network) -> Result<(), RigError> {
        let chosen = self.chosen_networks().join(LIST);
        let list = fs::read(self.conf_dir(network).join(LIST)).unwrap_or_default();
        if self.kind != Runtime::Crio || list.is_empty() || fs::read(&chosen).is_ok_and(|now| now == list) {
            return Ok(());
        }
        // Renamed, so that CRI-O never reads half of it.
        let new = self.site.dir.join("chosen.new");
        fs::write(&new, &list)
            .and_then(|()| fs::rename(&new, &chosen))
            .map_err(|source| RigError::SetUp { path: chosen, source })?;
        // ocicni logs each reading of the directory (`syncNetworkConfig`).
        let read = format!("{READ}{}\"", network.handler());
        let deadline = Instant::now() + Duration::from_secs(10);
        while self
            .log()
            .lines()
            .rfind(|line| line.contains(READ))
            .is_none_or(|line| !line.contains(&read))
        {
            if Instant::now() > deadline {
                return Err(RigError::NotUp {
                    last_words: format!("it does not read the network {}", network.handler()),
                });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// Writes what CRI-O reads, and loads the pause image into its storage: it has no other way in without a registry.
pub(super) fn set_up(dir: &Path, programs: &Programs) -> Result<(), (PathBuf, io::Error)> {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|source| (path, source))
    };
    for below in [
        CHOSEN, "state", "root", "exits", "attach", "hooks", "cdi", "ns", "empty.d",
    ] {
        let path = dir.join(below);
        fs::create_dir_all(&path).map_err(|source| (path, source))?;
    }
    let list = dir.join("cni").join(Network::Plain.handler()).join(LIST);
    if list.exists() {
        let chosen = dir.join(CHOSEN).join(LIST);
        fs::copy(list, &chosen).map_err(|source| (chosen, source))?;
    }
    write("policy.json", r#"{"default":[{"type":"insecureAcceptAnything"}]}"#)?;
    write("oci-runtime", &oci_runtime(&programs.oci_runtime))?;
    let path = dir.join("oci-runtime");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|source| (path, source))?;
    write("crio.conf", &text(dir, programs))?;
    // It makes a lock there, at its start.
    write("containers.conf", "[network]\nnetwork_config_dir = \"/mnt/state\"\n")?;
    load_pause(dir).map_err(|source| (dir.join("root"), source))
}

/// The configuration file. `drop_infra_ctr` stays at its default: a sandbox has a process of its own only where its
/// containers share their process ids.
fn text(dir: &Path, programs: &Programs) -> String {
    let at = dir.display();
    let image = image::NAME;
    let conmon = programs.conmon.display();
    let pinns = programs.daemon.with_file_name("pinns");
    let mut text = format!(
        r#"[crio]
root = "{at}/root"
runroot = "{at}/state"
storage_driver = "vfs"
log_dir = "{at}/logs"
version_file = "{at}/version"
version_file_persist = "{at}/version-persist"
clean_shutdown_file = "{at}/clean-shutdown"
internal_wipe = false
internal_repair = false

[crio.api]
listen = "{at}/crio.sock"
stream_address = "127.0.0.1"
stream_port = "0"

[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{pinns}"
# A directory `netns` below it has the sandboxes' network namespaces.
namespaces_dir = "{at}/ns"
container_exits_dir = "{at}/exits"
container_attach_socket_dir = "{at}/attach"
hooks_dir = ["{at}/hooks"]
cdi_spec_dirs = ["{at}/cdi"]
apparmor_profile = "unconfined"
seccomp_profile = "unconfined"
irqbalance_config_file = ""
irqbalance_config_restore_file = "disable"
default_runtime = "{default}"

[crio.image]
pause_image = "{image}"
pause_command = "/pause"
signature_policy = "{at}/policy.json"
signature_policy_dir = "{at}/policies"

[crio.network]
network_dir = "{at}/{CHOSEN}"
plugin_dirs = ["{at}/bin"]

[crio.metrics]
enable_metrics = true
metrics_host = "127.0.0.1"
metrics_port = {METRICS_PORT}

[crio.nri]
enable_nri = false
"#,
        pinns = pinns.display(),
        default = Network::Plain.handler(),
    );
    // `crun` is there unless it is named, and CRI-O executes it at its start, which makes a directory in /run.
    for handler in Network::ALL.map(Network::handler).into_iter().chain(["crun"]) {
        text.push_str(&format!(
            r#"
[crio.runtime.runtimes."{handler}"]
runtime_path = "{at}/oci-runtime"
runtime_type = "oci"
runtime_root = "{at}/runc"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
"#
        ));
    }
    text
}

/// CRI-O gives each pause process an OOM score of -998 (`PodInfraOOMAdj`) and has no setting for it; lowering a score needs
/// CAP_SYS_RESOURCE, which containers lack. There it is 0, and everywhere runc itself is what is executed.
fn oci_runtime(runc: &Path) -> String {
    format!(
        r#"#!/bin/sh
if ! echo -998 2> /dev/null > /proc/self/oom_score_adj; then
    previous=
    for word do
        [ "$previous" != --bundle ] || sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' "$word/config.json"
        previous=$word
    done
fi
exec {} "$@"
"#,
        runc.display()
    )
}

/// podman keeps its own files below /run, /var/lib and /etc/cni/net.d: here these are its own, and the rig's directory is at another place.
fn load_pause(dir: &Path) -> io::Result<()> {
    const SCRIPT: &str = r#"mount --bind "$1" /mnt && mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /run &&
        exec podman --root /mnt/root --runroot /mnt/state --storage-driver vfs load --input /mnt/pause.tar"#;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"])
        .arg(dir)
        .env_clear()
        .env("PATH", SEARCH)
        .env("CONTAINERS_CONF", "/mnt/containers.conf")
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "podman does not load the pause image: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

/// CRI-O's directory of networks, below the rig's.
const CHOSEN: &str = "cni/chosen";
/// The list in it, and in each network's own directory.
const LIST: &str = "10-pods.conflist";
const READ: &str = "Updated default CNI network name to ";
