//! What a machine of the test `guests` has: this executable, and this machine's containerd, runc, CNI plugins and iptables.
//!
//! Does not: find or boot the kernel (`boot.rs` of the test `kernels`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sandglass_demo::networks::DISTRIBUTION_PLUGINS;
use sandglass_demo::rig::{Rig, RigOptions};

use crate::archive::{Archive, stripped};
use crate::boot::{Bounds, Kernel};
use crate::inside::MARK;
use crate::machines::Machine;

/// What a machine consists of.
pub struct Parts {
    pub kernel: Kernel,
    /// Programs, libraries and other files of this machine, at the same places there.
    files: Vec<PathBuf>,
    /// Where iptables lies here, whatever the links to it.
    iptables: PathBuf,
}

impl Parts {
    /// The error names what is not there: the machine is skipped.
    pub fn of(machine: &Machine) -> Result<Parts, String> {
        if std::env::consts::ARCH != machine.platform.name {
            return Err("programs of this machine run on another of its architecture only".to_owned());
        }
        // What the node needs here it needs there.
        if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
            return Err(obstacle);
        }
        let kernel = Kernel::of(machine)?;
        let mut files = Vec::new();
        for program in PROGRAMS {
            files.push(installed(program).ok_or_else(|| format!("{program} is not installed"))?);
        }
        // The node's end is judged by it where it is there.
        files.extend(installed("bpftool"));
        let plugins = PLUGINS.iter().map(Path::new);
        let has_all = |folder: &&Path| DISTRIBUTION_PLUGINS.iter().all(|plugin| folder.join(plugin).is_file());
        let plugins = plugins.into_iter().find(has_all).ok_or("no CNI plugins")?;
        files.extend(DISTRIBUTION_PLUGINS.map(|plugin| plugins.join(plugin)));
        let iptables = installed("iptables").ok_or("iptables is not installed")?;
        let iptables = fs::canonicalize(iptables).map_err(|error| format!("iptables: {error}"))?;
        Ok(Parts {
            kernel,
            files,
            iptables,
        })
    }
}

/// The initramfs.
pub fn archive(machine: &Machine, parts: &Parts) -> Result<Archive> {
    let mut archive = parts.kernel.archive(INIT, &MODULES)?;
    for folder in [
        "node",
        "root",
        "run",
        "usr",
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib/cni",
        "usr/local",
        "usr/local/bin",
        "usr/local/lib",
        "usr/local/lib/cni",
        "usr/local/sbin",
        "usr/libexec",
        "usr/libexec/cni",
        "opt",
        "opt/cni",
        "opt/cni/bin",
        "var",
        "var/lib",
    ] {
        archive.put(folder, 0o040_755, &[]);
    }
    // containerd writes a sandbox's own after these.
    archive.put("etc/hosts", 0o100_644, b"127.0.0.1 localhost\n");
    archive.put("etc/resolv.conf", 0o100_644, b"");
    archive.put("node-init", 0o100_755, NODE_INIT.as_bytes());
    archive.put(
        "run-the-test",
        0o100_755,
        format!(
            "#!/bin/sh\nexec env {MARK}=1 RUST_BACKTRACE=0 /guests --exact {} --nocapture\n",
            crate::TEST
        )
        .as_bytes(),
    );
    let scratch = tempfile::tempdir()?;
    let executable = std::env::current_exe()?;
    archive.program("guests", &stripped(&executable, machine.platform.strip, scratch.path()))?;
    for file in &parts.files {
        archive.program(inside(file)?, file)?;
    }
    archive.program("usr/sbin/iptables", &parts.iptables)?;
    archive.link("usr/sbin/iptables-save", "iptables");
    // It opens those of its matches and targets by name.
    let extensions = Path::new("/usr/lib").join(format!("{}-linux-gnu/xtables", std::env::consts::ARCH));
    ensure!(
        extensions.is_dir(),
        "no extensions of iptables in {}",
        extensions.display()
    );
    archive.put(inside(extensions.parent().context("a parent")?)?, 0o040_755, &[]);
    archive.folder(inside(&extensions)?, &extensions)?;
    Ok(archive)
}

/// A path as the archive has it.
fn inside(path: &Path) -> Result<&str> {
    path.to_str()
        .and_then(|path| path.strip_prefix('/'))
        .with_context(|| path.display().to_string())
}

fn installed(program: &str) -> Option<PathBuf> {
    let folders = [
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ];
    let paths = folders.map(|folder| Path::new(folder).join(program));
    paths.into_iter().find(|path| path.is_file())
}

const INIT: &str = include_str!("init");
const NODE_INIT: &str = include_str!("node-init");
/// A boot takes a minute and a half where nothing else runs.
pub const BOUNDS: Bounds = Bounds {
    memory_mib: 2048,
    disk_kib: 4,
    deadline: Duration::from_secs(600),
};
/// What the node runs; of busybox' own, `mount` and its like know too few options.
const PROGRAMS: [&str; 9] = [
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "flock",
    "ip",
    "mount",
    "umount",
    "unshare",
];
/// Where distributions have the plugins.
const PLUGINS: [&str; 4] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/local/lib/cni"];
/// What a node's kernel loads by itself when containerd, the plugins and iptables ask for it.
const MODULES: [&str; 30] = [
    "crc32c_generic",
    "libcrc32c",
    "nfnetlink",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nf_tables",
    "nft_chain_nat",
    "nft_nat",
    "nft_limit",
    "nft_ct",
    "x_tables",
    "nft_compat",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_limit",
    "xt_mark",
    "xt_multiport",
    "xt_nat",
    "xt_MASQUERADE",
    "xt_tcpudp",
    "ip_tables",
    "llc",
    "stp",
    "bridge",
    "veth",
    "overlay",
];
