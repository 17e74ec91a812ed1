//! A private Kubernetes node without the Kubernetes: containerd or CRI-O with CNI plugins, in one directory, all its own.
//!
//! The demo, the end-to-end tests and the benchmarks make pod sandboxes in it. Own root, state, socket, bridges, pause
//! image and configuration; own cgroup, so that every process it ever starts is known; own *network namespace for the
//! node itself*, so that bridges, addresses, `ip_forward` and iptables rules of the demo never meet the host's.
//! Dropping it removes everything, by [`teardown`]. When its owner is killed, [`guard`] ends its processes, and its files are
//! removed at the next start.
//! Does not: speak CRI (that is [`sandglass::cri`]), touch the host's own runtime, pull from a registry.

mod config;
mod crio;
mod directory;
mod error;
mod guard;
mod launch;
mod mounts;
mod programs;
mod teardown;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_lab::netns;

use crate::networks::Network;
use crate::pods::Runtime;
use crate::services::Services;
use crate::timing::PluginClock;
use guard::Guard;
use programs::{Programs, SEARCH};
use teardown::Site;

pub use error::RigError;
pub use teardown::TeardownError;

/// Options of a rig.
#[derive(Clone, Debug)]
pub struct RigOptions {
    /// Directory of all rigs. Only root may write to it.
    pub base: PathBuf,
    /// Whether networks are configured; without them the runtime reports `NetworkReady = false`.
    pub networks: bool,
    /// How long the command of the slow plugin takes.
    pub slow: Duration,
    /// Directory with a `containerd`, its shim and `ctr`, instead of the installed ones.
    pub containerd: Option<PathBuf>,
    /// Directory with `crio` and `pinns`: the node's runtime is CRI-O then. The image comes in by podman.
    pub crio: Option<PathBuf>,
    /// What containerd starts containers with, instead of runc.
    pub oci_runtime: Option<PathBuf>,
    /// The binary `sandglass-demo`, which is a plugin and its daemon too ([`crate::shim`]); without it no pod of
    /// [`Network::Served`] can be made.
    pub program: Option<PathBuf>,
}

impl Default for RigOptions {
    fn default() -> RigOptions {
        RigOptions {
            // Not /run, which is often noexec should the rig not get a file system of its own, and not /tmp, where
            // anybody could lay something out for root.
            base: PathBuf::from("/var/lib/sandglass-demo"),
            networks: true,
            slow: Duration::from_secs(2),
            // The demo, the tests and the benchmarks all run on another containerd then.
            containerd: std::env::var_os("SANDGLASS_CONTAINERD_BIN_DIR").map(PathBuf::from),
            crio: None,
            oci_runtime: None,
            program: None,
        }
    }
}

impl RigOptions {
    /// What makes the sandboxes.
    fn kind(&self) -> Runtime {
        match self.crio {
            Some(_) => Runtime::Crio,
            None => Runtime::Containerd,
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
    kind: Runtime,
    /// The runtime's process.
    daemon: Option<Child>,
    services: Option<Arc<Services>>,
    /// Ends the rig's processes when this process is killed.
    guard: Option<Guard>,
    /// Held for as long as the rig lives; the kernel releases it when the owner ends.
    _lock: File,
}

impl Rig {
    /// Starts a node; about a second. Blocks.
    pub fn start(options: &RigOptions) -> Result<Rig, RigError> {
        let programs = Programs::find(options)?;
        directory::clear_left_behind(&options.base);
        let (dir, lock) = directory::claim(&options.base)?;
        let id = dir.file_name().map(|name| name.to_string_lossy().into_owned());
        // From here on, dropping it cleans up.
        let mut rig = Rig {
            site: Site { dir },
            id: id.unwrap_or_default(),
            search: programs.search.clone(),
            kind: options.kind(),
            daemon: None,
            services: None,
            guard: None,
            _lock: lock,
        };
        rig.set_up(&programs, options)
            .map_err(|(path, source)| RigError::SetUp { path, source })?;
        let members = rig.make_cgroup()?;
        let guard =
            Guard::start(rig.site.cgroup_paths()).map_err(|source| RigError::Start { program: "sh", source })?;
        rig.guard = Some(guard);
        rig.daemon = Some(rig.spawn(&programs, &members, None)?);
        rig.wait_until_up()?;
        if rig.kind == Runtime::Containerd {
            rig.import_pause()?;
        }
        let services = Services::start(&rig.node_netns(), &rig.search).map_err(RigError::Services)?;
        rig.services = Some(Arc::new(services));
        Ok(rig)
    }

    /// Kills containerd (SIGKILL) and starts it again in the node's network namespace, with its state and its sandboxes. Blocks.
    pub fn restart_containerd(&mut self, options: &RigOptions) -> Result<(), RigError> {
        let programs = Programs::find(options)?;
        let node = self.node_netns();
        // Holds the namespace while nobody is in it.
        let node = File::open(&node).map_err(|source| RigError::SetUp { path: node, source })?;
        if let Some(mut containerd) = self.daemon.take() {
            let _ = containerd.kill();
            let _ = containerd.wait();
        }
        let members = self.make_cgroup()?;
        self.daemon = Some(self.spawn(&programs, &members, Some(&node))?);
        self.wait_until_up()
    }

    /// What keeps a rig from starting here, if anything does: for tests that are then skipped.
    #[must_use]
    pub fn obstacle(options: &RigOptions) -> Option<String> {
        Programs::find(options).err().map(|error| error.to_string())
    }

    /// What makes the sandboxes.
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        self.kind
    }

    /// Where the runtime answers CRI calls.
    #[must_use]
    pub fn cri_socket(&self) -> PathBuf {
        self.site.dir.join(match self.kind {
            Runtime::Containerd => "containerd.sock",
            Runtime::Crio => "crio.sock",
        })
    }

    /// The runtime's process.
    #[must_use]
    pub fn runtime_pid(&self) -> u32 {
        self.daemon.as_ref().map_or(0, Child::id)
    }

    /// The node's own network namespace.
    #[must_use]
    pub fn node_netns(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.runtime_pid()))
    }

    /// Where the runtime binds its sandboxes' network namespaces.
    #[must_use]
    pub fn netns_directory(&self) -> PathBuf {
        self.site.dir.join(match self.kind {
            Runtime::Containerd => "state/io.containerd.grpc.v1.cri/netns",
            Runtime::Crio => "ns/netns",
        })
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

    /// Directory with the network configuration for a runtime handler.
    #[must_use]
    pub fn conf_dir(&self, network: Network) -> PathBuf {
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
        PluginClock::parse(&text)
    }

    /// The runtime's own metrics, in Prometheus text.
    pub fn runtime_metrics(&self) -> Result<String, RigError> {
        let path = match self.kind {
            Runtime::Containerd => "/v1/metrics",
            Runtime::Crio => "/metrics",
        };
        let request = || -> io::Result<String> {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, config::METRICS_PORT));
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.take(16 << 20).read_to_string(&mut answer)?;
            Ok(answer)
        };
        netns::within(&self.node_netns(), request)
            .and_then(|answer| answer)
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

    /// The runtime's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.site.dir.join(LOG)).unwrap_or_default()
    }

    /// Ends it and returns what could not be removed; dropping it only logs that.
    pub fn stop(mut self) -> Result<(), TeardownError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), TeardownError> {
        // Its sockets and its thread hold the node's namespace.
        self.services = None;
        if let Some(mut daemon) = self.daemon.take() {
            // In order first: it closes its databases and its shims' connections.
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), rustix::process::Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(3);
            while matches!(daemon.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if !self.site.dir.exists() {
            return Ok(());
        }
        self.site.clear()?;
        self.guard = None;
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

/// The runtime's log, below the rig's directory.
const LOG: &str = "runtime.log";

#[cfg(test)]
mod tests;
