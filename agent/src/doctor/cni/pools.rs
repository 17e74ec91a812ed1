//! The pools of addresses that host-local allocates from: how full they are, and what is leaked.
//!
//! Used by `doctor::cni`. The stores are read as the agent does; here are the words and the weight. Does not: free an address.

use std::path::Path;

use super::super::cri::RuntimeView;
use super::super::{Finding, Level};
use crate::cni_conf::CniConf;
use crate::ip_pools::store::Stores;
use crate::ip_pools::{IpPool, RangeSet};

/// A finding for each pool that exists, and one for each that is low, leaks or cannot be read.
pub(super) fn check(conf: &CniConf, root: &Path, runtime: &RuntimeView) -> Vec<Finding> {
    let known = runtime.sandboxes.as_ref().ok_or("the runtime was not asked");
    let pools = Stores::default().read(&conf.pools(), known, root);
    pools.iter().flat_map(of_pool).collect()
}

fn of_pool(pool: &IpPool) -> Vec<Finding> {
    let at = |text: String| format!("{text} ({})", pool.directory);
    if let Some(error) = &pool.unreadable {
        let what = at(format!(
            "network {}: no store of addresses can be read: {error}",
            pool.network
        ));
        return vec![
            Finding::new(Level::Note, "cni.pool", what)
                .why("how full the pool is, and what is leaked, is not known")
                .hint("mount the directory into the agent's container, read-only"),
        ];
    }
    let is_full = |set: &RangeSet| set.addresses > 0 && set.used >= set.addresses;
    let mut findings = Vec::new();
    if pool.sets.iter().any(is_full) {
        findings.push(
            Finding::new(Level::Fail, "cni.pool", at(pool.summary()))
                .why("no address is left: every further ADD fails with \"no IP addresses available in range set\"")
                .hint("remove files of containers that are gone, lower the node's maximum of pods, or widen the range"),
        );
    } else if pool.is_low() {
        findings.push(
            Finding::new(Level::Warn, "cni.pool", at(pool.summary()))
                .why("the next sandboxes may find no address")
                .hint("widen the range, or lower the node's maximum of pods"),
        );
    } else {
        findings.push(Finding::ok("cni.pool", at(pool.summary())));
    }
    let leaked: u64 = pool.sets.iter().filter_map(|set| set.leaked).sum();
    if leaked > 0 {
        let what = at(format!(
            "network {}: {leaked} addresses belong to containers that are gone",
            pool.network
        ));
        findings.push(
            Finding::new(Level::Warn, "cni.pool", what)
                .why("a DEL did not run or failed, so the addresses are never released")
                .hint("look for failed DELs; a file whose container (first line) the runtime does not list can be removed"),
        );
    }
    if pool.skipped > 0 {
        let what = at(format!(
            "network {}: {} entries of the store are no address",
            pool.network, pool.skipped
        ));
        findings.push(Finding::new(Level::Note, "cni.pool", what));
    }
    findings
}
