//! The agent in runc under the chart's own seccomp profile, with the chart's capabilities: nothing is lost by the profile.
//!
//! As in a pod of the chart: the node's process ids and network, a read-only root, no new privileges. Skipped where runc is
//! missing, or the agent cannot observe this machine. Does not: enforce AppArmor, which this machine's kernel may not have (`kernels.rs` does).

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandglass_lab::skip;
use serde_json::{Value, json};

use super::helm::{chart, output};

#[test]
fn the_seccomp_profile_takes_nothing_from_the_agent() {
    let test = "the_seccomp_profile_takes_nothing_from_the_agent";
    if !rustix::process::geteuid().is_root() {
        return skip::skipped(test, "it needs root");
    }
    if !skip::has(test, "runc") {
        return;
    }
    let profile: Value = serde_json::from_slice(&fs::read(chart().join("profiles/seccomp.json")).unwrap()).unwrap();
    let without = match Contained::start("without", None) {
        Ok(agent) => agent.probes(),
        Err(reason) => return skip::skipped(test, &format!("the agent does not run in a container here: {reason}")),
    };
    let agent = Contained::start("with", Some(profile)).unwrap();
    let with = agent.probes();
    // It opens its spool beside its start.
    let begin = Instant::now();
    while !agent.spool().join("lock").exists() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "the spool is not opened: {}",
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let mode = fs::metadata(agent.spool()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert!(without.len() >= 5, "{without:?}");
    assert_eq!(
        with, without,
        "hooks of probes with the profile (left) and without (right)"
    );
}

#[test]
fn the_seccomp_profile_allows_what_it_names_and_no_more() {
    let profile: Value = serde_json::from_slice(&fs::read(chart().join("profiles/seccomp.json")).unwrap()).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let groups = profile["syscalls"].as_array().unwrap();
    assert!(groups.iter().all(|group| group["action"] == "SCMP_ACT_ALLOW"));
    let names: Vec<&str> = groups
        .iter()
        .flat_map(|group| group["names"].as_array().unwrap())
        .filter_map(Value::as_str)
        .collect();
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(distinct.len(), names.len(), "a name stands twice");
    assert!(distinct.contains("bpf") && distinct.contains("perf_event_open"));
    // What changes the node, other processes or the agent's own confinement.
    for forbidden in [
        "mount",
        "umount2",
        "move_mount",
        "fsopen",
        "pivot_root",
        "chroot",
        "setns",
        "unshare",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "init_module",
        "finit_module",
        "delete_module",
        "kexec_load",
        "reboot",
        "swapon",
        "setuid",
        "setgid",
        "capset",
        "keyctl",
        "userfaultfd",
        "io_uring_setup",
        "unlink",
        "unlinkat",
        "rename",
        "renameat2",
        "mkdir",
        "mkdirat",
        "chmod",
        "fchmodat",
        "chown",
        "symlink",
        "settimeofday",
        "clock_settime",
        "sethostname",
        "open_by_handle_at",
        "seccomp",
        "mknod",
        "mknodat",
        "bdflush",
        "acct",
        "quotactl",
    ] {
        assert!(!distinct.contains(forbidden), "{forbidden}");
    }
}

/// A running container.
struct Contained {
    name: String,
    bundle: tempfile::TempDir,
    runc: Child,
    address: SocketAddr,
}

impl Contained {
    /// The error is what the agent printed before it ended.
    fn start(name: &str, seccomp: Option<Value>) -> Result<Contained, String> {
        let bundle = tempfile::tempdir().unwrap();
        // The port after it serves the page, or another that is free.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = config(bundle.path(), address, seccomp);
        fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
        let log = fs::File::create(bundle.path().join("log")).unwrap();
        let name = format!("sandglass-{name}-{}", std::process::id());
        let runc = Command::new("runc")
            .args(["run", "--bundle"])
            .arg(bundle.path())
            .arg(&name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut agent = Contained {
            name,
            bundle,
            runc,
            address,
        };
        let begin = Instant::now();
        while get(address, "/readyz").is_none_or(|answer| !answer.starts_with("HTTP/1.1 200")) {
            if agent.runc.try_wait().unwrap().is_some() || begin.elapsed() > Duration::from_secs(120) {
                return Err(agent.log());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(agent)
    }

    /// Where its spool is on this machine.
    fn spool(&self) -> PathBuf {
        self.bundle.path().join("spool")
    }

    /// What the agent printed.
    fn log(&self) -> String {
        fs::read_to_string(self.bundle.path().join("log")).unwrap()
    }

    /// Each probe with its hook.
    fn probes(&self) -> BTreeSet<String> {
        let metrics = get(self.address, "/metrics").unwrap();
        let probes = metrics.lines().filter(|line| line.starts_with("sandglass_probe_info{"));
        probes.map(str::to_owned).collect()
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = output(Command::new("runc").args(["kill", &self.name, "KILL"]));
        let _ = self.runc.wait();
        let _ = output(Command::new("runc").args(["delete", "--force", &self.name]));
    }
}

/// A bundle's configuration: what the chart's DaemonSet asks for, and this machine's libraries, since the agent of a test
/// is not linked statically.
fn config(bundle: &Path, address: SocketAddr, seccomp: Option<Value>) -> Value {
    fs::create_dir(bundle.join("rootfs")).unwrap();
    let bind = |path: PathBuf, more: &str| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro", more]});
    let agent = Path::new(env!("CARGO_BIN_EXE_sandglass"));
    let folders = ["/proc", "/sys", "/usr", "/lib", "/lib64", "/etc"].map(PathBuf::from);
    let mut mounts: Vec<Value> = folders
        .into_iter()
        .filter(|path| path.is_dir())
        .map(|path| bind(path, "nosuid"))
        .collect();
    mounts.push(
        json!({"destination": "/agent", "type": "bind", "source": agent.parent().unwrap(), "options": ["rbind", "ro"]}),
    );
    // As a hostPath of the chart: made by the kubelet, open to all.
    fs::create_dir(bundle.join("spool")).unwrap();
    fs::set_permissions(bundle.join("spool"), fs::Permissions::from_mode(0o755)).unwrap();
    mounts.push(
        json!({"destination": "/var/lib/sandglass/spool", "type": "bind", "source": bundle.join("spool"), "options": ["rbind", "rw"]}),
    );
    mounts.push(json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}));
    let capabilities = ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_NET_ADMIN"];
    let mut config = json!({
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "env": ["PATH=/usr/bin"],
            "args": [
                Path::new("/agent").join(agent.file_name().unwrap()), "run", "--cri-endpoint", "none", "--listen", address.to_string(),
                // Nobody listens at this port: what the agent makes stays in the spool.
                "--otlp-endpoint", "http://127.0.0.1:1", "--set", "otlp.spool_directory=/var/lib/sandglass/spool",
            ],
            "noNewPrivileges": true,
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "mounts": mounts,
        "linux": {"namespaces": [{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]},
    });
    if let Some(profile) = seccomp {
        config["linux"]["seccomp"] = profile;
    }
    config
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
