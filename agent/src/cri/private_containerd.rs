//! A real containerd for tests: its own root, state, socket and CNI directories in a temporary directory.
//!
//! Compiled for tests only. Nothing of the node's own runtime is touched; the process is killed when dropped.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use prost::Message;

use super::messages::{
    ContainerMetadata, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig, PodSandboxMetadata,
};
use super::{Cri, CriError, Repeat};

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

impl Containerd {
    /// Starts one in which sandboxes can be made.
    pub(crate) async fn start_with_network() -> Result<(Containerd, Cri), String> {
        let (containerd, cri) = Containerd::start().await?;
        containerd.prepare_sandboxes()?;
        Ok((containerd, cri))
    }

    /// Makes the sandbox of pod `shop/cart-0`, uid `u-1`, with the label `app=cart`.
    pub(crate) async fn make_sandbox(&self, cri: &Cri) -> String {
        let made = cri.run_pod_sandbox(self.sandbox_config(), "", PATIENCE).await;
        made.unwrap_or_else(|error| panic!("cannot make a sandbox: {error:?}"))
    }

    fn sandbox_config(&self) -> PodSandboxConfig {
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: "cart-0".to_owned(),
                uid: "u-1".to_owned(),
                namespace: "shop".to_owned(),
                attempt: 0,
            }),
            hostname: "cart-0".to_owned(),
            log_directory: self.path("logs").display().to_string(),
            labels: [("app".to_owned(), "cart".to_owned())].into(),
            annotations: [("note".to_owned(), "x".to_owned())].into(),
            linux: Some(LinuxPodSandboxConfig {
                // containerd 1.6 gives statistics of no sandbox at all when one has no cgroup parent.
                cgroup_parent: format!("/{}", self.cgroup()),
                security_context: Some(LinuxSandboxSecurityContext::default()),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    fn cgroup(&self) -> String {
        format!("sandglass-test-{}", self.process.id())
    }

    /// Starts a container that computes without end in a sandbox; goes with the sandbox.
    pub(crate) async fn start_container(&self, cri: &Cri, sandbox: &str) -> Result<String, CriError> {
        let create = CreateContainer {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(ContainerConfig {
                metadata: Some(ContainerMetadata {
                    name: "app".to_owned(),
                    attempt: 0,
                }),
                image: Some(ImageSpec {
                    image: PAUSE_IMAGE.to_owned(),
                }),
                command: vec!["/spin".to_owned()],
                log_path: "app.log".to_owned(),
                // containerd 1.6 reads it without asking whether it is there.
                linux: Some(Nothing {}),
            }),
            sandbox_config: Some(self.sandbox_config()),
        };
        let made: ContainerId = cri
            .call_within("CreateContainer", &create, Repeat::Never, PATIENCE)
            .await?;
        let _: Nothing = cri
            .call_within("StartContainer", &made, Repeat::Never, PATIENCE)
            .await?;
        Ok(made.container_id)
    }

    pub(crate) async fn remove_sandbox(&self, cri: &Cri, id: &str) {
        let stopped = cri.stop_pod_sandbox(id, PATIENCE).await;
        let removed = cri.remove_pod_sandbox(id, PATIENCE).await;
        assert!(stopped.is_ok() && removed.is_ok(), "{stopped:?} {removed:?}");
    }

    /// Gives it an image for sandboxes, and a network of the ptp plugin, whose traces go with the sandbox.
    fn prepare_sandboxes(&self) -> Result<(), String> {
        let layer = self.path("layer");
        fs::create_dir_all(&layer).map_err(|error| error.to_string())?;
        fs::write(self.path("pause.c"), PAUSE).map_err(|error| error.to_string())?;
        let compiler = ["cc", "clang", "clang-19"]
            .into_iter()
            .find(|name| run(Command::new(name).arg("--version")).is_ok());
        let compiler = compiler.ok_or("needs a C compiler")?;
        for (program, option) in [("pause", "-DPAUSE"), ("spin", "-DSPIN")] {
            let mut compile = Command::new(compiler);
            compile.args(["-static", "-nostdlib", "-O1", option, "-o"]);
            run(compile.arg(layer.join(program)).arg(self.path("pause.c")))?;
        }
        let tar = |archive: &str, directory: &Path, names: &[&str]| {
            run(Command::new("tar")
                .arg("-cf")
                .arg(self.path(archive))
                .arg("-C")
                .arg(directory)
                .args(names))
        };
        tar("layer.tar", &layer, &["pause", "spin"])?;
        let digest = run(Command::new("sha256sum").arg(self.path("layer.tar")))?;
        let digest = digest.split(' ').next().unwrap_or_default().to_owned();
        let architecture = if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        };
        let write = |name: &str, text: String| fs::write(self.path(name), text).map_err(|error| error.to_string());
        write(
            "image.json",
            format!(
                r#"{{"architecture":"{architecture}","os":"linux","config":{{"Entrypoint":["/pause"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{digest}"]}}}}"#
            ),
        )?;
        write(
            "manifest.json",
            format!(r#"[{{"Config":"image.json","RepoTags":["{PAUSE_IMAGE}"],"Layers":["layer.tar"]}}]"#),
        )?;
        tar(
            "image.tar",
            self.directory.path(),
            &["manifest.json", "image.json", "layer.tar"],
        )?;
        let mut import = Command::new("ctr");
        import.args([
            "-a",
            &self.endpoint(),
            "-n",
            "k8s.io",
            "images",
            "import",
            "--snapshotter",
            "native",
        ]);
        run(import.arg(self.path("image.tar")))?;
        let network = format!(
            r#"{{"cniVersion":"1.0.0","name":"test","plugins":[{{"type":"ptp","ipam":{{"type":"host-local","dataDir":"{}","subnet":"10.213.{}.0/24"}}}}]}}"#,
            self.path("ipam").display(),
            // Tests run at the same time, and all in the node's one network.
            (std::process::id() + MADE.fetch_add(1, Ordering::Relaxed)) % 256
        );
        write("net.d/10-test.conflist", network)
    }
}

/// Says that a test could not run here. Written to the stream itself: the test harness swallows what `eprintln!` says
/// in a test that passes.
pub(crate) fn skipped(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}

#[derive(Clone, PartialEq, Message)]
struct CreateContainer {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
    #[prost(string, tag = "11")]
    log_path: String,
    #[prost(message, optional, tag = "15")]
    linux: Option<Nothing>,
}

#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

/// Answer of CreateContainer, question of StartContainer.
#[derive(Clone, PartialEq, Message)]
struct ContainerId {
    #[prost(string, tag = "1")]
    container_id: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Nothing {}

/// Output of a command; `Err` says what went wrong.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{:?}: {}", command.get_program(), error.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // A test that failed may leave processes and mounts of its own behind; all carry the directory in their names.
        let directory = self.directory.path().display().to_string();
        let tasks = self.path("state/io.containerd.runtime.v2.task/k8s.io");
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            if let Ok(pid) = fs::read_to_string(task.path().join("init.pid")) {
                let _ = run(Command::new("kill").args(["-9", pid.trim()]));
            }
        }
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let command = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            let pid = process.file_name().to_string_lossy().into_owned();
            if command.contains("containerd-shim") && command.contains(&directory) {
                let _ = run(Command::new("kill").args(["-9", &pid]));
            }
        }
        // containerd removes the groups it made, not the parent it was given.
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let _ = fs::remove_dir(hierarchy.path().join(self.cgroup()));
        }
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(self.cgroup()));
        for mount in fs::read_to_string("/proc/self/mountinfo")
            .unwrap_or_default()
            .lines()
            .rev()
        {
            if let Some(point) = mount.split(' ').nth(4).filter(|point| point.starts_with(&directory)) {
                let _ = run(Command::new("umount").args(["-l", point]));
            }
        }
    }
}

/// A program that waits, or computes, without a C library.
const PAUSE: &str = r#"
void _start(void) {
  for (;;) {
#if defined(SPIN)
    __asm__ volatile("" ::: "memory");
#elif defined(__x86_64__)
    long number = 34; /* pause */
    __asm__ volatile("syscall" : "+a"(number) : : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number __asm__("x8") = 73; /* ppoll of nothing, without end */
    register long a __asm__("x0") = 0, b __asm__("x1") = 0, c __asm__("x2") = 0, d __asm__("x3") = 0;
    __asm__ volatile("svc 0" : "+r"(a) : "r"(number), "r"(b), "r"(c), "r"(d) : "memory");
#endif
  }
}
"#;
static MADE: AtomicU32 = AtomicU32::new(0);
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE_IMAGE: &str = "sandglass.test/pause:1";

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
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{directory}/net.d"
    bin_dir = "{bin_dir}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"#
    )
}
