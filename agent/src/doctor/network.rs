//! How sandboxes and node resolve names, and how much conntrack can hold: read from `/proc`, `/sys` and `resolv.conf`.
//!
//! A sandbox's `resolv.conf` is read through a process in its network namespace (`/proc/PID/root`), as its programs see
//! it. The kubelet writes that file from the pod's dnsPolicy and dnsConfig and the node's resolv.conf
//! (`pkg/kubelet/network/dns/dns.go`). Does not: resolve a name, enter a namespace, or change a setting. Where `/proc` is absent
//! there are no findings.

mod conntrack;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use super::{Finding, Level, system};

/// Findings about the node's resolver, those of its sandboxes, and conntrack.
pub(super) fn check(root: &Path) -> Vec<Finding> {
    if !system::has_proc(root) {
        return Vec::new();
    }
    // From the node to its sandboxes, which inherit servers from it.
    let mut findings = vec![node_resolver(root)];
    findings.extend(sandbox_resolvers(root));
    findings.extend(conntrack::check(root));
    findings
}

/// The parts of a `resolv.conf` that decide how a name is resolved (resolv.conf(5)). Read as glibc reads it: musl and Go take the
/// same keywords with other limits, and a pod's libc is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ResolvConf {
    /// `nameserver`, in order of use.
    servers: Vec<String>,
    /// `search`, or `domain` as a list of one.
    search: Vec<String>,
    /// Dots from which on a name is resolved as it is before the search path is tried. Default 1, 5 in pods (kubelet's
    /// `defaultDNSOptions`, `pkg/kubelet/network/dns/dns.go`).
    ndots: u32,
    /// Seconds until a query is sent again, to the next server. Default 5 (RES_TIMEOUT of glibc's resolv/resolv.h).
    timeout_s: u32,
    /// Rounds over all servers. Default 2 (RES_DFLRETRY, same file).
    attempts: u32,
    /// Options that do not change the figures here, as written.
    options: Vec<String>,
}

impl ResolvConf {
    /// Reads what glibc reads; anything else in the file is passed over, as glibc does. Defaults: resolv.conf(5).
    fn read(text: &str) -> ResolvConf {
        let mut resolver = ResolvConf {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout_s: 5,
            attempts: 2,
            options: Vec::new(),
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                // Keywords: `__resolv_conf_load` of glibc's resolv/res_init.c.
                Some("nameserver") => resolver.servers.extend(words.next().map(str::to_owned)),
                // The last of several wins.
                Some("search" | "domain") => resolver.search = words.map(str::to_owned).collect(),
                Some("options") => words.for_each(|option| resolver.option(option)),
                _ => {}
            }
        }
        resolver
    }

    /// Limits as glibc has them (resolv/resolv.h: RES_MAXNDOTS, RES_MAXRETRANS, RES_MAXRETRY).
    fn option(&mut self, option: &str) {
        let number = |text: &str, most: u32| text.parse::<u32>().ok().map(|number| number.min(most));
        match option.split_once(':') {
            Some(("ndots", text)) => self.ndots = number(text, 15).unwrap_or(self.ndots),
            Some(("timeout", text)) => self.timeout_s = number(text, 30).unwrap_or(self.timeout_s).max(1),
            Some(("attempts", text)) => self.attempts = number(text, 5).unwrap_or(self.attempts).max(1),
            _ => {
                let option = option.to_owned();
                if !self.options.contains(&option) {
                    self.options.push(option);
                }
            }
        }
    }

    /// In one line, in the order of the file: servers, search path, options.
    // Options are shown as written, since a reader searches for them in dnsConfig or the node's file.
    fn words(&self) -> String {
        let list = |words: &[String]| match words {
            [] => "none".to_owned(),
            words => words.join(" "),
        };
        let mut line = format!(
            "servers {}; search {}; ndots:{}",
            list(&self.servers),
            list(&self.search),
            self.ndots
        );
        for option in &self.options {
            line.push(' ');
            line.push_str(option);
        }
        line
    }

    /// What it means for a lookup, and what to do about it: first what keeps programs from resolving at all, then what makes it
    /// slow. `owner` is whose resolver it is, in words.
    fn judge(&self, check: &'static str, owner: &str) -> Finding {
        // Each finding shows the whole resolver: a reader compares it with the file.
        let finding = |level, why: String, hint: &str| {
            Finding::new(level, check, format!("{owner}: {}", self.words()))
                .why(why)
                .hint(hint)
        };
        if self.servers.is_empty() {
            return finding(
                Level::Warn,
                "no name server is configured: programs send queries to 127.0.0.1, where usually none listens"
                    .to_owned(),
                "give the kubelet a resolv.conf with servers (resolvConf), or set dnsPolicy and dnsConfig of the pod",
            );
        }
        // A name with fewer dots than `ndots` is tried with each entry of the search path first, then as it is; programs resolve
        // A and AAAA for each (`__res_context_search` of glibc's resolv/res_query.c). Kubernetes sets ndots:5 for ClusterFirst.
        // The name itself is the last that is tried, or the first where it has dots enough.
        let names = self.search.len() + 1;
        // Without a search path ndots changes nothing.
        if self.ndots > 1 && names > 1 {
            // One for A and one for AAAA, each name.
            let queries = 2 * names;
            return finding(
                Level::Note,
                format!(
                    "a name with fewer than {} dots is resolved as up to {names} names, {queries} queries for A and \
                     AAAA{}; a lost query costs {} s before it is sent again",
                    self.ndots,
                    if self.ndots > 2 {
                        ", external names as api.example.org included"
                    } else {
                        ""
                    },
                    self.timeout_s,
                ),
                "end external names with a dot, or set ndots to 1 or 2 in dnsConfig.options of pods that resolve many",
            );
        }
        // MAXNS of resolv.h; the kubelet cuts its own list at the same number (`MaxDNSNameservers`).
        if self.servers.len() > 3 {
            return finding(
                Level::Note,
                format!(
                    "{} name servers are configured, and resolvers use the first three",
                    self.servers.len()
                ),
                "remove those that are not needed",
            );
        }
        Finding::ok(
            check,
            format!(
                "{owner}: {}; a lost query costs {} s, {} attempts",
                self.words(),
                self.timeout_s,
                self.attempts
            ),
        )
    }
}

/// The resolver of the node's own programs, the kubelet and the runtime among them. Pods of dnsPolicy Default have its servers,
/// and CoreDNS forwards to them unless it is configured otherwise.
fn node_resolver(root: &Path) -> Finding {
    // In a container the node's own is that of process 1, where its namespace and privilege let it be seen.
    // Of a container that is the container's: better than nothing, and the same where it has the node's network.
    let own = || text(&root.join("etc/resolv.conf"));
    match text(&root.join("proc/1/root/etc/resolv.conf")).or_else(own) {
        Some(text) => ResolvConf::read(&text).judge("dns.resolv_conf", "the node"),
        None => Finding::new(
            Level::Note,
            "dns.resolv_conf",
            "the node's /etc/resolv.conf cannot be read",
        )
        .why("how programs of the node resolve names is not known")
        .hint("in a container, mount the node's /etc/resolv.conf"),
    }
}

/// One finding for each distinct `resolv.conf` of the sandboxes on this node. Pods share a handful of them, one for each
/// namespace and dnsPolicy, so that these are counted and not listed. Differences show pods with a dnsConfig of their own, and
/// those that were made before the node's resolv.conf changed: the kubelet writes a pod's file once.
fn sandbox_resolvers(root: &Path) -> Vec<Finding> {
    // A sandbox with no readable file counts apart: it is no evidence of anything.
    let (resolvers, unreadable) = resolvers(root);
    // The most frequent first: with one per namespace, the last of many are those of a single pod.
    let mut findings: Vec<Finding> = resolvers
        .iter()
        .take(MAX_RESOLVERS)
        .map(|(resolver, count)| resolver.judge("dns.sandbox_resolv_conf", &sandboxes(*count)))
        .collect();
    if unreadable > 0 {
        findings.push(
            Finding::new(
                Level::Note,
                "dns.sandbox_resolv_conf",
                format!("{}: resolv.conf cannot be read", sandboxes(unreadable)),
            )
            .why("how their programs resolve names is not known")
            .hint("needs CAP_SYS_PTRACE and the node's pid namespace; an image without /etc/resolv.conf has none"),
        );
    }
    if findings.is_empty() {
        findings.push(Finding::new(
            Level::Note,
            "dns.sandbox_resolv_conf",
            "no sandbox with a readable resolv.conf runs here",
        ));
    }
    findings
}

/// A number of sandboxes in words, as the subject of a finding.
fn sandboxes(count: usize) -> String {
    match count {
        1 => "1 sandbox".to_owned(),
        count => format!("{count} sandboxes"),
    }
}

/// The resolvers of network namespaces other than the node's, with the number that have each, the most frequent first; and the
/// number that could not be read. One process of a namespace is enough: the first whose file can be read, since any of them may
/// be gone by then, and an image need not have the file.
fn resolvers(root: &Path) -> (Vec<(ResolvConf, usize)>, usize) {
    let netns = |pid: &str| fs::read_link(root.join("proc").join(pid).join("ns/net")).ok();
    // Process 1 is the node's where the agent has its pid namespace; elsewhere the agent's own namespace has to do.
    let node = netns("1").or_else(|| netns("self"));
    let mut by_netns: BTreeMap<_, Option<ResolvConf>> = BTreeMap::new();
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    for entry in entries.take(MAX_PROCESSES) {
        let pid = entry.file_name();
        let Some(pid) = pid.to_str().filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        // The link of another user's process cannot be read without CAP_SYS_PTRACE (proc_pid_ns(5)).
        let Some(netns) = netns(pid).filter(|netns| Some(netns) != node.as_ref()) else {
            continue;
        };
        // Beyond the bound namespaces are left out; those that are known may still find a readable file.
        if by_netns.len() >= MAX_NAMESPACES && !by_netns.contains_key(&netns) {
            continue;
        }
        let resolver = by_netns.entry(netns).or_default();
        if resolver.is_none() {
            let path = root.join("proc").join(pid).join("root/etc/resolv.conf");
            *resolver = text(&path).map(|text| ResolvConf::read(&text));
        }
    }
    let mut counted: BTreeMap<ResolvConf, usize> = BTreeMap::new();
    let mut unreadable = 0;
    for resolver in by_netns.into_values() {
        match resolver {
            Some(resolver) => *counted.entry(resolver).or_default() += 1,
            None => unreadable += 1,
        }
    }
    let mut counted: Vec<(ResolvConf, usize)> = counted.into_iter().collect();
    // The sort is stable: resolvers of equal count stay in the order of their text, and two reports can be compared.
    counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    (counted, unreadable)
}

/// A setting that is one number; `None` when it does not exist or is none. Settings that lie below `/proc/sys` belong to the
/// network namespace of the reader: in a container with a network of its own they are the container's.
fn number(root: &Path, path: &str) -> Option<u64> {
    text(&root.join(path))?.trim().parse().ok()
}

/// The first 64 KiB of a file; `None` when it cannot be read. Its owner is a pod, which may have put anything there: what is a
/// pipe or a device in a sandbox's file system is not opened.
fn text(path: &Path) -> Option<String> {
    // `metadata` follows links within the pod's own root as its programs do; opening a pipe would wait for a writer.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(path)
        .ok()?
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// glibc has no limit on the file; those that the kubelet writes are below 2 KiB.
const MAX_BYTES: u64 = 64 << 10;
/// Twice the default `kernel.pid_max` of small machines; the work stays below a second.
const MAX_PROCESSES: usize = 65_536;
/// More sandboxes than a node has: the kubelet's default is 110 pods.
const MAX_NAMESPACES: usize = 512;
/// Distinct resolvers that are shown, the most frequent ones.
const MAX_RESOLVERS: usize = 5;
