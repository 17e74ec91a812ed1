//! A real containerd for tests: its own root, state, socket and CNI directories in a temporary directory.
//!
//! Compiled for tests only. Nothing of the node's own runtime is touched; the process is killed when dropped.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Cri;

pub(crate) struct Containerd {
    process: Child,
    directory: tempfile::TempDir,
}

impl Containerd {
    /// Starts one and waits until it answers. `Err` says why that cannot be done here.
    pub(crate) async fn start() -> Result<(Containerd, Cri), String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("net.d")).map_err(|error| error.to_string())?;
        fs::write(path("config.toml"), config(directory.path())).map_err(|error| error.to_string())?;
        let log = fs::File::create(path("log")).map_err(|error| error.to_string())?;
        let process = Command::new("containerd")
            .arg("--config")
            .arg(path("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start containerd: {error}"))?;
        let mut containerd = Containerd { process, directory };
        let begin = Instant::now();
        loop {
            if let Ok(cri) = Cri::connect(&containerd.endpoint(), Duration::from_secs(5)).await
                && cri.version().await.is_ok()
            {
                return Ok((containerd, cri));
            }
            let ended = containerd.process.try_wait().is_ok_and(|status| status.is_some());
            if ended || begin.elapsed() > Duration::from_secs(20) {
                let log = fs::read_to_string(containerd.path("log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(3).collect();
                return Err(format!("containerd does not start here: {tail:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn endpoint(&self) -> String {
        self.path("s").display().to_string()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config(directory: &Path) -> String {
    let plugins = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
    let bin_dir = plugins
        .into_iter()
        .find(|path| Path::new(path).is_dir())
        .unwrap_or(plugins[1]);
    let directory = directory.display();
    format!(
        r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{directory}/s"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{directory}/net.d"
    bin_dir = "{bin_dir}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"#
    )
}
