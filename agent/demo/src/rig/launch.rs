//! The steps of a rig's start: files, cgroup, runtime, pause image.
//!
//! Used by [`Rig::start`], in this order. Does not: clean up after a step that failed (dropping the rig does).

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::programs::Programs;
use super::{LOG, Rig, RigError, RigOptions, config, crio, mounts, teardown};
use crate::pods::Runtime;
use crate::{image, networks};

impl Rig {
    pub(super) fn set_up(&self, programs: &Programs, options: &RigOptions) -> Result<(), (PathBuf, io::Error)> {
        let dir = &self.site.dir;
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| (path, source)
        };
        teardown::note_missing_directories(dir).map_err(at(dir))?;
        let needed = networks::Needed {
            plugins: &programs.plugins,
            flock: &programs.flock,
            own: options.program.as_deref(),
        };
        networks::write(dir, needed, &self.id, options.slow).map_err(at(dir))?;
        if !options.networks {
            networks::remove_lists(dir).map_err(at(dir))?;
        }
        let path = dir.join("pause.tar");
        fs::write(&path, image::archive()).map_err(at(&path))?;
        let path = self.netns_directory();
        fs::create_dir_all(&path).map_err(at(&path))?;
        if self.kind == Runtime::Crio {
            return crio::set_up(dir, programs);
        }
        let snapshotter = if config::overlay_works(dir) {
            "overlayfs"
        } else {
            "native"
        };
        let path = dir.join("containerd.toml");
        fs::write(&path, config::text(dir, snapshotter, options.oci_runtime.as_deref())).map_err(at(&path))?;
        fs::write(dir.join("snapshotter"), snapshotter).map_err(at(dir))
    }

    /// Makes the node's cgroup in the first hierarchy that lets it be made; returns its `cgroup.procs`.
    pub(super) fn make_cgroup(&self) -> Result<PathBuf, RigError> {
        mounts::cgroup_roots()
            .into_iter()
            // Sandboxes get cgroups beside it: a version 2 group with processes cannot have children.
            .map(|root| root.point.join(self.site.cgroup()).join("node"))
            .find(|group| fs::create_dir_all(group).is_ok())
            .map(|group| group.join("cgroup.procs"))
            .ok_or(RigError::NoCgroup)
    }

    /// `unshare` gives the node its network namespace, or `nsenter` one that it has; the shell enters the cgroup before anything is forked from it.
    pub(super) fn spawn(&self, programs: &Programs, members: &Path, node: Option<&File>) -> Result<Child, RigError> {
        const SCRIPT: &str = r#"echo $$ > "$1" && shift && ip link set lo up && exec "$@""#;
        let failed = |source| RigError::Start {
            program: self.kind.name(),
            source,
        };
        let log = File::create(self.site.dir.join(LOG)).map_err(failed)?;
        let mut command = match node {
            None => Command::new("unshare"),
            Some(_) => Command::new("nsenter"),
        };
        match node {
            None => command.arg("--net"),
            Some(node) => command.arg(format!("--net=/proc/{}/fd/{}", std::process::id(), node.as_raw_fd())),
        };
        command
            .args(["--", "sh", "-c", SCRIPT, "sh"])
            .arg(members)
            .arg(&programs.daemon);
        let at = |name: &str| self.site.dir.join(name);
        match self.kind {
            Runtime::Containerd => command.arg("--config").arg(at("containerd.toml")),
            // Without a directory of its own it would read /etc/crio/crio.conf.d too.
            Runtime::Crio => command
                .arg("--config")
                .arg(at("crio.conf"))
                .arg("--config-dir")
                .arg(at("empty.d")),
        };
        command
            // Nothing of the caller's environment: OTEL_* in it would make containerd export spans, to our collector.
            .env_clear()
            .env("PATH", &self.search)
            // A sandbox's network namespace is made by a system call that may take 20 ms. Each holds one of the Go runtime's
            // processors until its watcher looks, every 10 ms: with two of them a third sandbox waits before it begins.
            .env("GOMAXPROCS", go_processors().to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            // A Ctrl-C on the terminal is for the owner, who then takes it down in order.
            .process_group(0)
            .spawn()
            .map_err(failed)
    }

    pub(super) fn wait_until_up(&mut self) -> Result<(), RigError> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let ended = self
                .daemon
                .as_mut()
                .is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || Instant::now() > deadline {
                let log = self.log();
                tracing::debug!(log, "the runtime did not come up");
                let last_words = log
                    .lines()
                    .rev()
                    .find(|line| !line.is_empty())
                    .unwrap_or("its log is empty");
                return Err(RigError::NotUp {
                    last_words: last_words.to_owned(),
                });
            }
            let answers = match self.kind {
                Runtime::Containerd => self.ctr(&["version"]).is_ok_and(|output| output.status.success()),
                // It listens when it is ready to serve.
                Runtime::Crio => UnixStream::connect(self.cri_socket()).is_ok(),
            };
            if answers {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(super) fn import_pause(&self) -> Result<(), RigError> {
        let snapshotter = fs::read_to_string(self.site.dir.join("snapshotter")).unwrap_or_default();
        let tar = self.site.dir.join("pause.tar");
        let tar = tar.to_string_lossy();
        let import = ["-n", "k8s.io", "images", "import", "--snapshotter", &snapshotter, &tar];
        let output = self
            .ctr(&import)
            .map_err(|source| RigError::Start { program: "ctr", source })?;
        if output.status.success() {
            return Ok(());
        }
        Err(RigError::Import {
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    pub(super) fn ctr(&self, args: &[&str]) -> io::Result<std::process::Output> {
        Command::new("ctr")
            .arg("--address")
            .arg(self.cri_socket())
            .args(["--connect-timeout", "2s"])
            .args(args)
            .env_clear()
            .env("PATH", &self.search)
            .stdin(Stdio::null())
            .output()
    }
}

/// For the runtime: enough for the sandboxes that are made at the same time.
fn go_processors() -> usize {
    std::thread::available_parallelism().map_or(8, |here| here.get().max(8))
}
