//! What must be in the trace of each of the demo's networks.
//!
//! Written from the networks' configuration and the plugins' known habits, not from traces.

use std::fmt;

use crate::networks::{
    CROWDED_COMMAND, CROWDED_PLUGIN, FAILING_PLUGIN, HANGING_PLUGIN, LOCKED_COMMAND, LOCKED_PLUGIN, Network,
    SECOND_NETWORK, SHIM_PLUGIN, SLOW_COMMAND, SLOW_PLUGIN,
};
use crate::pods::{CallRecord, Runtime};

/// One ADD. Sorted by interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attachment {
    pub(super) ifname: String,
    pub(super) network: String,
    pub(super) plugins: Vec<String>,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ifname, self.plugins.join(", "))
    }
}

/// A process and what it must have started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) name: &'static str,
    pub(super) below: Vec<Tree>,
}

impl Tree {
    fn leaf(name: &'static str) -> Tree {
        Tree::of(name, Vec::new())
    }

    fn of(name: &'static str, below: Vec<Tree>) -> Tree {
        Tree { name, below }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for tree in &self.below {
            write!(f, " > {tree}")?;
        }
        Ok(())
    }
}

/// The ADDs of a sandbox, by interface. containerd attaches every sandbox to its own `cni-loopback` too; CRI-O brings `lo` up
/// itself (ocicni, `bringUpLoopback`).
pub(super) fn attachments(record: &CallRecord) -> Vec<Attachment> {
    let network = record.pod.network;
    let attachment = |ifname: &str, network: &str, plugins: &[&str]| Attachment {
        ifname: ifname.to_owned(),
        network: network.to_owned(),
        plugins: plugins.iter().map(|plugin| (*plugin).to_owned()).collect(),
    };
    let second = match network {
        Network::Plain | Network::Two => "portmap",
        Network::Slow => SLOW_PLUGIN,
        Network::Locked => LOCKED_PLUGIN,
        Network::Crowded => CROWDED_PLUGIN,
        Network::Failing => FAILING_PLUGIN,
        Network::Hanging => HANGING_PLUGIN,
        Network::Served => SHIM_PLUGIN,
    };
    let mut list = vec![attachment("eth0", network.handler(), &["bridge", second])];
    if network == Network::Two {
        list.push(attachment("eth1", SECOND_NETWORK, &["bridge"]));
    }
    if record.runtime == Runtime::Containerd {
        list.push(attachment("lo", "cni-loopback", &["loopback"]));
    }
    list
}

/// What some of the plugins must have started. CRI-O maps ports of the node itself (`internal/hostport`), and not by `portmap`.
pub(super) fn trees(record: &CallRecord) -> Vec<Tree> {
    let network = record.pod.network;
    let published = record.pod.host_port.is_some() && record.runtime == Runtime::Containerd;
    let mut trees = vec![Tree::of("bridge", vec![Tree::leaf("host-local")])];
    if network == Network::Slow {
        let command = Tree::of(SLOW_COMMAND, vec![Tree::leaf("sleep")]);
        trees.push(Tree::of(SLOW_PLUGIN, vec![command]));
    }
    for (of, plugin, command) in [
        (Network::Locked, LOCKED_PLUGIN, LOCKED_COMMAND),
        (Network::Crowded, CROWDED_PLUGIN, CROWDED_COMMAND),
    ] {
        if network == of {
            trees.push(Tree::of(plugin, vec![Tree::leaf(command)]));
        }
    }
    if published {
        trees.push(Tree::of("portmap", vec![Tree::leaf("iptables")]));
    }
    trees
}
