//! A private Kubernetes node without the Kubernetes: containerd with CNI plugins, in one directory, all its own.
//!
//! The demo, the end-to-end tests and the benchmarks make pod sandboxes in it. Own root, state, socket, bridges, pause
//! image and configuration; own cgroup, so that every process it ever starts is known; own *network namespace for the
//! node itself*, so that bridges, addresses, `ip_forward` and iptables rules of the demo never meet the host's.
//! Dropping it removes everything, by [`teardown`]; what a killed owner left behind is removed at the next start.
//! Does not: speak CRI (that is [`sandglass::cri`]), touch the host's own runtime, pull from a registry.

mod config;
mod mounts;
mod teardown;

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandglass_model::time::Timestamp;

use super::scenarios::PluginClock;
use super::services::Services;
use super::{image, networks};
use sandglass::failure::{Advice, Exit};
use teardown::Site;
pub use teardown::TeardownError;

/// What a rig can be told.
#[derive(Clone, Debug)]
pub struct RigOptions {
    /// Directory of all rigs. Only root may write to it.
    pub base: PathBuf,
    /// How long the command of the slow plugin takes.
    pub slow: Duration,
    /// Directory with a `containerd`, its shim and `ctr`, instead of the installed ones.
    pub containerd: Option<PathBuf>,
    /// What containerd starts containers with, instead of runc.
    pub oci_runtime: Option<PathBuf>,
}

impl Default for RigOptions {
    fn default() -> RigOptions {
        RigOptions {
            // Not /run, which is often noexec should the rig not get a file system of its own, and not /tmp, where
            // anybody could lay something out for root.
            base: PathBuf::from("/var/lib/sandglass-demo"),
            slow: Duration::from_secs(2),
            // The demo, the tests and the benchmarks all run on another containerd then.
            containerd: std::env::var_os("SANDGLASS_CONTAINERD_BIN_DIR").map(PathBuf::from),
            oci_runtime: None,
        }
    }
}

/// A running node.
#[derive(Debug)]
pub struct Rig {
    site: Site,
    id: String,
    /// Where the node's programs look for others.
    search: String,
    containerd: Option<Child>,
    services: Option<Arc<Services>>,
    /// Held for as long as the rig lives; the kernel lets go of it with its owner.
    _lock: File,
}

/// Why there is no rig.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// Not root.
    #[error("a private containerd needs root")]
    NotRoot,
    /// A program is not installed.
    #[error("{program} is not installed")]
    Missing {
        /// Which.
        program: String,
        /// What to install.
        package: &'static str,
    },
    /// Something below the rig's directory could not be made.
    #[error("cannot set up {path}")]
    SetUp {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No cgroup could be made.
    #[error("no cgroup hierarchy lets a group be made")]
    NoCgroup,
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Which.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// containerd ended, or did not answer in time.
    #[error("containerd did not come up: {last_words}")]
    NotUp {
        /// End of its log.
        last_words: String,
    },
    /// The pause image was refused.
    #[error("containerd does not take the pause image: {message}")]
    Import {
        /// What `ctr` said.
        message: String,
    },
    /// The pods would have nobody to talk to.
    #[error("cannot start the services that the demo's pods talk to")]
    Services(#[source] io::Error),
    /// containerd's metrics cannot be read.
    #[error("cannot read containerd's metrics")]
    Metrics(#[source] io::Error),
}

impl Advice for RigError {
    fn hint(&self) -> Cow<'_, str> {
        match self {
            RigError::NotRoot => "run it with sudo".into(),
            RigError::Missing { package, .. } => {
                format!("`make setup` installs what is missing; on Debian and Ubuntu it is the package {package}")
                    .into()
            }
            RigError::SetUp { .. } => {
                "the directory must be root's own, on a disk with space, not mounted noexec".into()
            }
            RigError::Services(_) => {
                "the kernel must let iptables translate addresses (nf_nat), in a network namespace of its own".into()
            }
            RigError::NoCgroup => "inside a container give it a writable /sys/fs/cgroup, or run it on the host".into(),
            RigError::Start { .. } | RigError::NotUp { .. } | RigError::Import { .. } | RigError::Metrics(_) => {
                "SANDGLASS_LOG=debug shows containerd's whole log".into()
            }
        }
    }

    fn exit(&self) -> Exit {
        match self {
            RigError::NotRoot => Exit::NoPermission,
            RigError::Missing { .. } | RigError::NoCgroup => Exit::Unavailable,
            _ => Exit::Runtime,
        }
    }
}

impl Rig {
    /// Starts a node; about a second. Blocks.
    pub fn start(options: &RigOptions) -> Result<Rig, RigError> {
        let programs = Programs::find(options)?;
        clear_left_behind(&options.base);
        let (dir, lock) = claim(&options.base)?;
        let id = dir.file_name().map(|name| name.to_string_lossy().into_owned());
        // From here on, dropping it cleans up.
        let mut rig = Rig {
            site: Site { dir },
            id: id.unwrap_or_default(),
            search: programs.search.clone(),
            containerd: None,
            services: None,
            _lock: lock,
        };
        rig.set_up(&programs, options)
            .map_err(|(path, source)| RigError::SetUp { path, source })?;
        let members = rig.make_cgroup()?;
        rig.containerd = Some(rig.spawn(&programs, &members)?);
        rig.wait_until_up()?;
        rig.import_pause()?;
        let services = Services::start(&rig.node_netns(), &rig.search).map_err(RigError::Services)?;
        rig.services = Some(Arc::new(services));
        Ok(rig)
    }

    /// What keeps a rig from starting here, if anything does: for tests that are then skipped.
    #[must_use]
    pub fn obstacle(options: &RigOptions) -> Option<String> {
        Programs::find(options).err().map(|error| error.to_string())
    }

    /// Where containerd answers CRI calls.
    #[must_use]
    pub fn cri_socket(&self) -> PathBuf {
        self.site.dir.join("containerd.sock")
    }

    /// containerd's process.
    #[must_use]
    pub fn containerd_pid(&self) -> u32 {
        self.containerd.as_ref().map_or(0, Child::id)
    }

    /// The node's own network namespace.
    #[must_use]
    pub fn node_netns(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.containerd_pid()))
    }

    /// Where containerd gives names to its sandboxes' network namespaces.
    #[must_use]
    pub fn netns_directory(&self) -> PathBuf {
        self.site.dir.join("state/io.containerd.grpc.v1.cri/netns")
    }

    /// What its pods can talk to; `None` when it is going down.
    #[must_use]
    pub fn services(&self) -> Option<Arc<Services>> {
        self.services.clone()
    }

    /// The rig's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.site.dir
    }

    /// Directory with containerd's network configuration for a runtime handler.
    #[must_use]
    pub fn conf_dir(&self, network: networks::Network) -> PathBuf {
        self.site.dir.join("cni").join(network.handler())
    }

    /// Directory with the plugins.
    #[must_use]
    pub fn bin_dir(&self) -> PathBuf {
        self.site.dir.join("bin")
    }

    /// Parent cgroup for sandboxes, as the CRI wants it.
    #[must_use]
    pub fn cgroup_parent(&self) -> String {
        format!("/{}", self.site.cgroup())
    }

    /// What a script plugin read on its own clock for the last sandbox of the pod with this uid.
    #[must_use]
    pub fn plugin_clock(&self, uid: &str) -> Option<PluginClock> {
        let text = fs::read_to_string(self.site.dir.join("clock").join(uid)).ok()?;
        let mut times = text.split_whitespace().map(hundredths_to_ns);
        Some(PluginClock {
            begin: Timestamp(times.next()??),
            end: times.next().flatten().map(Timestamp),
        })
    }

    /// containerd's own metrics, in Prometheus text.
    pub fn containerd_metrics(&self) -> Result<String, RigError> {
        let netns = self.node_netns();
        // A namespace is entered by a thread: one that ends with the question.
        std::thread::spawn(move || -> io::Result<String> {
            let node = File::open(netns)?;
            move_into_link_name_space(node.as_fd(), Some(LinkNameSpaceType::Network))?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, config::METRICS_PORT));
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /v1/metrics HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.take(16 << 20).read_to_string(&mut answer)?;
            Ok(answer)
        })
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the asking thread died")))
        .map_err(RigError::Metrics)
    }

    /// Starts a program beside the node, in the machine's own network namespace. It belongs to the rig's cgroup, and so
    /// ends with the rig whatever becomes of its owner.
    pub fn spawn_beside(&self, program: &Path, arguments: &[String], log: File) -> io::Result<Child> {
        const SCRIPT: &str = r#"echo $$ > "$1" && shift && exec "$@""#;
        Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(self.make_cgroup().map_err(io::Error::other)?)
            .arg(program)
            .args(arguments)
            .env_clear()
            .env("PATH", SEARCH)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
    }

    /// containerd's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.site.dir.join("containerd.log")).unwrap_or_default()
    }

    /// Ends it and says what could not be removed; dropping it does the same silently.
    pub fn stop(mut self) -> Result<(), TeardownError> {
        self.end()
    }

    fn set_up(&self, programs: &Programs, options: &RigOptions) -> Result<(), (PathBuf, io::Error)> {
        let dir = &self.site.dir;
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| (path, source)
        };
        teardown::note_missing_directories(dir).map_err(at(dir))?;
        networks::write(dir, &programs.plugins, &self.id, options.slow).map_err(at(dir))?;
        let snapshotter = if config::overlay_works(dir) {
            "overlayfs"
        } else {
            "native"
        };
        let path = dir.join("containerd.toml");
        fs::write(&path, config::text(dir, snapshotter, options.oci_runtime.as_deref())).map_err(at(&path))?;
        fs::write(dir.join("snapshotter"), snapshotter).map_err(at(dir))?;
        let path = dir.join("pause.tar");
        fs::write(&path, image::archive()).map_err(at(&path))?;
        let path = self.netns_directory();
        fs::create_dir_all(&path).map_err(at(&path))
    }

    /// Makes the node's cgroup in the first hierarchy that lets it be made; gives its `cgroup.procs`.
    fn make_cgroup(&self) -> Result<PathBuf, RigError> {
        mounts::cgroup_roots()
            .into_iter()
            // Sandboxes get cgroups beside it: a version 2 group with processes cannot have children.
            .map(|root| root.point.join(self.site.cgroup()).join("node"))
            .find(|group| fs::create_dir_all(group).is_ok())
            .map(|group| group.join("cgroup.procs"))
            .ok_or(RigError::NoCgroup)
    }

    /// `unshare` gives the node its network namespace; the shell enters the cgroup before anything is forked from it.
    /// The node goes before the machine's other work, as far as that is allowed: what it does is measured.
    fn spawn(&self, programs: &Programs, members: &Path) -> Result<Child, RigError> {
        const SCRIPT: &str = r#"echo $$ > "$1" && shift && ip link set lo up && exec nice -n -10 "$@""#;
        let failed = |source| RigError::Start {
            program: "containerd",
            source,
        };
        let log = File::create(self.site.dir.join("containerd.log")).map_err(failed)?;
        Command::new("unshare")
            .args(["--net", "--", "sh", "-c", SCRIPT, "sh"])
            .arg(members)
            .arg(&programs.containerd)
            .arg("--config")
            .arg(self.site.dir.join("containerd.toml"))
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

    fn wait_until_up(&mut self) -> Result<(), RigError> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let ended = self
                .containerd
                .as_mut()
                .is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || Instant::now() > deadline {
                let log = self.log();
                tracing::debug!(log, "containerd did not come up");
                let last_words = log
                    .lines()
                    .rev()
                    .find(|line| !line.is_empty())
                    .unwrap_or("it said nothing");
                return Err(RigError::NotUp {
                    last_words: last_words.to_owned(),
                });
            }
            if self.ctr(&["version"]).is_ok_and(|output| output.status.success()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn import_pause(&self) -> Result<(), RigError> {
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

    fn ctr(&self, args: &[&str]) -> io::Result<std::process::Output> {
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

    fn end(&mut self) -> Result<(), TeardownError> {
        // Its sockets and its thread hold the node's namespace.
        self.services = None;
        if let Some(mut containerd) = self.containerd.take() {
            // In order first: it closes its databases and its shims' connections.
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&containerd),
                rustix::process::Signal::TERM,
            );
            let deadline = Instant::now() + Duration::from_secs(3);
            while matches!(containerd.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = containerd.kill();
            let _ = containerd.wait();
        }
        if !self.site.dir.exists() {
            return Ok(());
        }
        self.site.clear()?;
        if let Some(base) = self.site.dir.parent() {
            // Not empty while another rig lives.
            let _ = fs::remove_dir(base);
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(dir = %self.site.dir.display(), %error, "the demo's node was not removed completely");
        }
    }
}

/// Makes a directory of a new name and locks it.
fn claim(base: &Path) -> Result<(PathBuf, File), RigError> {
    let failed = |path: &Path, source| RigError::SetUp {
        path: path.to_owned(),
        source,
    };
    fs::create_dir_all(base).map_err(|source| failed(base, source))?;
    let mut seed = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_nanos())
        ^ std::process::id().rotate_left(12);
    loop {
        let dir = base.join(format!("{:06x}", seed & 0xff_ffff));
        match fs::create_dir(&dir) {
            Ok(()) => {
                in_memory(&dir);
                let lock = File::open(&dir).map_err(|source| failed(&dir, source))?;
                flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| failed(&dir, error.into()))?;
                return Ok((dir, lock));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => seed = seed.wrapping_add(1),
            Err(source) => return Err(failed(&dir, source)),
        }
    }
}

/// For containerd: enough for the sandboxes that are made at the same time.
fn go_processors() -> usize {
    std::thread::available_parallelism().map_or(8, |here| here.get().max(8))
}

/// Mounts a file system in memory on `dir`: containerd syncs its databases to disk within every call, which on a busy
/// disk takes longer than all the rest. Where that is not allowed, the disk will do.
fn in_memory(dir: &Path) {
    let _ = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "mode=0755,size=512m", "sandglass-demo"])
        .arg(dir)
        .env("PATH", SEARCH)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Clears every rig whose owner is gone: its lock can be had. A directory younger than a moment may be one that is
/// about to be locked.
fn clear_left_behind(base: &Path) {
    for dir in teardown::entries(base) {
        let Ok(lock) = File::open(&dir) else { continue };
        let young = lock
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(1)));
        if young || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        tracing::info!(dir = %dir.display(), "removing what an earlier demo left behind");
        let site = Site { dir };
        if let Err(error) = site.clear() {
            tracing::warn!(dir = %site.dir.display(), %error, "an earlier demo was not removed completely");
        }
    }
}

/// Programs that the rig runs, found before anything is changed.
struct Programs {
    search: String,
    containerd: PathBuf,
    plugins: PathBuf,
}

impl Programs {
    fn find(options: &RigOptions) -> Result<Programs, RigError> {
        if !rustix::process::geteuid().is_root() {
            return Err(RigError::NotRoot);
        }
        let search = match &options.containerd {
            Some(first) => format!("{}:{SEARCH}", first.display()),
            None => SEARCH.to_owned(),
        };
        let find = |program: &str, package| {
            search
                .split(':')
                .map(|dir| Path::new(dir).join(program))
                .find(|path| path.is_file())
                .ok_or(RigError::Missing {
                    program: program.to_owned(),
                    package,
                })
        };
        for program in ["ctr", "containerd-shim-runc-v2"] {
            find(program, "containerd")?;
        }
        match &options.oci_runtime {
            Some(path) => find(&path.to_string_lossy(), "crun")?,
            None => find("runc", "runc")?,
        };
        find("ip", "iproute2")?;
        find("iptables", "iptables")?;
        find("unshare", "util-linux")?;
        Ok(Programs {
            containerd: find("containerd", "containerd")?,
            plugins: Programs::plugins()?,
            search,
        })
    }

    /// The first directory that has all the plugins.
    fn plugins() -> Result<PathBuf, RigError> {
        PLUGIN_DIRS
            .into_iter()
            .map(PathBuf::from)
            .find(|dir| {
                networks::DISTRIBUTION_PLUGINS
                    .iter()
                    .all(|plugin| dir.join(plugin).is_file())
            })
            .ok_or_else(|| RigError::Missing {
                program: "the CNI plugin bridge, host-local, loopback or portmap".to_owned(),
                package: "containernetworking-plugins",
            })
    }
}

fn hundredths_to_ns(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split_once('.')?;
    if hundredths.len() != 2 {
        return None;
    }
    let (seconds, hundredths) = (seconds.parse::<u64>().ok()?, hundredths.parse::<u64>().ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(hundredths * 10_000_000)
}

/// Debian, upstream's tarball, Fedora.
const PLUGIN_DIRS: [&str; 4] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/local/lib/cni"];
/// Where the programs are that the demo runs, whatever the caller's own `PATH` says.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(test)]
mod tests;
