//! What of a machine's kernel a node or a cluster may leave behind: network namespaces, links, mounts, chains of iptables.
//!
//! Used by the clean-up checks of the end-to-end tests and of the cluster's, with [`crate::bpf`] for BPF objects. Linux only; needs
//! root, runs `ip` and `iptables-save`. Does not: remove anything, or know whose a thing is (the caller compares).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Everything that has a name in this process's namespaces, each with its kind: `namespace`, `link`, `mount`, `chain`. Bridges are
/// left out: the plugin `bridge` never removes a network's (`plugins/main/bridge/bridge.go`).
///
/// # Errors
/// A program that lists them is missing or fails.
pub fn named() -> Result<BTreeSet<String>, String> {
    let first = |line: &str| line.split([' ', '@']).next().map(str::to_owned);
    let bridges = output("ip", &["-brief", "link", "show", "type", "bridge"])?;
    let bridges: BTreeSet<String> = bridges.lines().filter_map(first).collect();
    let namespaces = output("ip", &["netns", "list"])?;
    let links = output("ip", &["-brief", "link"])?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
    let chains = output("iptables-save", &[])?;
    let kinds = [
        ("namespace", namespaces.lines().filter_map(first).collect::<Vec<_>>()),
        (
            "link",
            links
                .lines()
                .filter_map(first)
                .filter(|link| !bridges.contains(link))
                .collect(),
        ),
        (
            "mount",
            mounts
                .lines()
                .filter_map(|line| line.split(' ').nth(4))
                .map(str::to_owned)
                .collect(),
        ),
        (
            "chain",
            chains
                .lines()
                .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
                .map(str::to_owned)
                .collect(),
        ),
    ];
    let named = kinds
        .into_iter()
        .flat_map(|(kind, names)| names.into_iter().map(move |name| format!("{kind} {name}")));
    Ok(named.collect())
}

/// The network namespaces that a process is in or has mounted below `directory`, as `net:[4026532000]`. None where it is gone.
#[must_use]
pub fn namespaces_of(pid: u32, directory: &Path) -> BTreeSet<String> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let mut found: BTreeSet<String> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(3);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(root, point)| root.starts_with("net:[") && Path::new(point).starts_with(directory))
        .map(|(root, _)| root.to_owned())
        .collect();
    let own = fs::read_link(format!("/proc/{pid}/ns/net"));
    found.extend(own.ok().map(|link| link.to_string_lossy().into_owned()));
    found
}

/// The network namespaces that some process is in or has mounted. One that is in none of them has gone with its links, addresses
/// and chains (`net/core/net_namespace.c`, cleanup_net), unless a descriptor holds it.
#[must_use]
pub fn namespaces() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.flat_map(|pid| namespaces_of(pid, Path::new("/"))).collect()
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
