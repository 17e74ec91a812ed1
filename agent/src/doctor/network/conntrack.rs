//! How much the node's conntrack table can hold, how full it is, and whether the kernel reports its entries.
//!
//! Used by `network.rs`. Does not: read an entry, or change a setting.

use std::path::Path;

use super::super::{Finding, Level};
use super::number;

/// Size and fill of the node's conntrack table, and whether the kernel reports its entries. Settings:
/// Documentation/networking/nf_conntrack-sysctl.rst. They exist once the module is loaded, mostly by the first rule that needs
/// it.
pub(super) fn check(root: &Path) -> Vec<Finding> {
    let setting = |name: &str| number(root, &format!("proc/sys/net/netfilter/nf_conntrack_{name}"));
    let (Some(most), Some(count)) = (setting("max"), setting("count")) else {
        return vec![
            Finding::new(Level::Note, "conntrack.table", "connection tracking is not loaded")
                .why("no address on this node is translated by conntrack so far"),
        ];
    };
    // The hash table is one for all namespaces; `hashsize` is the same number, and writable.
    let buckets = setting("buckets").or_else(|| number(root, "sys/module/nf_conntrack/parameters/hashsize"));
    // Fill, chains, events: what fails first comes first.
    let mut findings = vec![fill(count, most)];
    findings.extend(buckets.map(|buckets| chains(most, buckets)));
    findings.push(events(setting("events")));
    if let Some(timestamp) = setting("timestamp") {
        findings.push(Finding::ok(
            "conntrack.timestamp",
            format!("nf_conntrack_timestamp = {timestamp} (not needed: entries are timed as they come)"),
        ));
    }
    findings
}

/// How full the table is.
/// From 80 % on a burst can fill the table within seconds. A full one drops the packet that needs an entry, unless it can evict
/// one that is not assured (`__nf_conntrack_alloc` and `early_drop` of net/netfilter/nf_conntrack_core.c).
fn fill(count: u64, most: u64) -> Finding {
    let percent = count.saturating_mul(100) / most.max(1);
    let what = format!("{count} of {most} conntrack entries ({percent} %)");
    if percent < 80 {
        return Finding::ok("conntrack.table", what);
    }
    Finding::new(Level::Warn, "conntrack.table", what)
        .why(
            "when the table is full, first packets are dropped: lookups stall for seconds, connections for one or more",
        )
        .hint(
            "raise net.netfilter.nf_conntrack_max (kube-proxy: conntrack.maxPerCore), or find the program that opens so many flows",
        )
}

/// How long chains may get.
/// Each packet walks the chain of its bucket, in which an entry stands twice, once for each direction. The kernel's own ratio is
/// one entry a bucket (four in older kernels), and eight where the table's size is set by hand (`nf_conntrack_init_start` of
/// net/netfilter/nf_conntrack_core.c): more than that nobody chose.
fn chains(most: u64, buckets: u64) -> Finding {
    let what = format!(
        "{buckets} hash buckets, {} entries each when full",
        most / buckets.max(1)
    );
    if most <= buckets.saturating_mul(8) {
        return Finding::ok("conntrack.buckets", what);
    }
    Finding::new(Level::Note, "conntrack.buckets", what)
        .why("long chains make every new flow slower, the fuller the table")
        .hint("write a fourth of nf_conntrack_max or more to /sys/module/nf_conntrack/parameters/hashsize")
}

/// 0: none; 1: always; 2: while somebody listens, the default (Documentation/networking/nf_conntrack-sysctl.rst). Only entries
/// that are made while it is on are reported.
fn events(setting: Option<u64>) -> Finding {
    match setting {
        Some(1) => Finding::ok("conntrack.events", "nf_conntrack_events = 1"),
        Some(2) => Finding::ok(
            "conntrack.events",
            "nf_conntrack_events = 2 (while a program subscribes)",
        ),
        Some(other) => Finding::new(
            Level::Warn,
            "conntrack.events",
            format!("nf_conntrack_events = {other}"),
        )
        .why("the kernel does not report conntrack entries: backends behind service addresses cannot be named")
        .hint("sysctl net.netfilter.nf_conntrack_events=1"),
        None => Finding::new(Level::Warn, "conntrack.events", "nf_conntrack_events does not exist")
            .why("the kernel does not report conntrack entries: backends behind service addresses cannot be named")
            .hint("use a kernel with CONFIG_NF_CONNTRACK_EVENTS=y"),
    }
}
