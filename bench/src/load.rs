//! Sandboxes created and deleted at a constant rate, as the kernel sees them: real processes with a CNI environment.
//!
//! Used by the footprint part and by the delivery part. Each sandbox is an ADD (`bench-main` with its delegate `bench-ipam`, then `bench-meta`
//! with its command `bench-command`) and, two seconds later, a DEL of the same; all are links to the program
//! `sandglass-bench-plugin`. No other program has these names, so that the agent's metrics can be compared with the load,
//! whatever else runs on the machine. Does not: create network namespaces, or use a runtime.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::agent::Metrics;

/// The plugins of the load, in a directory of their own that is removed when this is dropped.
#[derive(Debug)]
pub struct Load {
    directory: PathBuf,
}

/// What was run.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    /// Sandboxes added, and deleted.
    pub sandboxes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Load {
    /// Creates the directory and the links.
    pub fn new() -> Result<Load> {
        let program = std::env::current_exe()?.with_file_name("sandglass-bench-plugin");
        ensure!(program.is_file(), "{} does not exist", program.display());
        let directory = std::env::temp_dir().join(format!("sandglass-bench-{}", std::process::id()));
        let load = Load { directory };
        for (below, names) in [("bin", &PLUGINS[..]), ("sbin", &[COMMAND][..])] {
            let below = load.directory.join(below);
            std::fs::create_dir_all(&below).with_context(|| format!("cannot make {}", below.display()))?;
            for name in names {
                symlink(&program, below.join(name))?;
            }
        }
        Ok(load)
    }

    /// Adds and deletes `rate` sandboxes a second for `period`.
    pub fn play(&self, rate: u64, period: Duration) -> Result<Played> {
        self.play_from(0, rate, period)
    }

    /// The same with sandboxes whose numbers begin at `first`.
    pub fn play_from(&self, first: u64, rate: u64, period: Duration) -> Result<Played> {
        let sandboxes = rate * period.as_secs();
        let slot = Duration::from_secs(1) / u32::try_from(rate)?;
        let delay = 2 * rate;
        let next = AtomicU64::new(0);
        let begin = Instant::now();
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= sandboxes + delay {
                    return Ok(());
                }
                let due = begin + slot * u32::try_from(number)?;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                if number < sandboxes {
                    self.operation("ADD", first + number, &["bench-main", "bench-meta"])?;
                }
                if let Some(old) = number.checked_sub(delay) {
                    self.operation("DEL", first + old, &["bench-meta", "bench-main"])?;
                }
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err(anyhow::anyhow!("a worker of the load panicked")))
            })
        })?;
        Ok(Played {
            sandboxes,
            took: begin.elapsed(),
        })
    }

    fn operation(&self, verb: &str, number: u64, chain: &[&str]) -> Result<()> {
        for plugin in chain {
            let path = self.directory.join("bin").join(plugin);
            let status = call(&path, verb, number).with_context(|| format!("cannot run {}", path.display()))?;
            ensure!(status, "{plugin} failed");
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The container ids of all sandboxes of this process begin with this; their number follows, with as many digits.
pub fn id_prefix() -> String {
    format!("{:08x}", std::process::id())
}

/// Runs a plugin as libcni does.
fn call(path: &Path, verb: &str, number: u64) -> io::Result<bool> {
    let id = format!("{}{number:08x}", id_prefix()).repeat(4);
    let bin = path.parent().unwrap_or(Path::new("/"));
    let status = Command::new(path)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", &id)
        .env("CNI_NETNS", format!("/var/run/netns/cni-bench-{number}"))
        .env("CNI_IFNAME", "eth0")
        .env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod-{number};K8S_POD_UID={id}"),
        )
        .env("CNI_PATH", bin)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    Ok(status.success())
}

/// The load's processes that the agent reports: plugins, delegates and commands of both verbs.
pub fn reported(metrics: &Metrics) -> f64 {
    let plugins = PLUGINS.iter().map(|plugin| {
        let label = format!("plugin=\"{plugin}\"");
        metrics.sum("sandglass_cni_plugin_duration_seconds_count", &[&label])
    });
    let command = format!("command=\"{COMMAND}\"");
    plugins.sum::<f64>() + metrics.sum("sandglass_cni_command_duration_seconds_count", &[&command])
}

/// Processes of one sandbox.
pub const PROCESSES_PER_SANDBOX: u64 = 8;

const PLUGINS: [&str; 3] = ["bench-main", "bench-ipam", "bench-meta"];
const COMMAND: &str = "bench-command";
/// Enough to keep the rate when the machine is busy with something else.
const WORKERS: usize = 6;
