//! The part of the configuration that concerns the source of this node, for every operating system.
//!
//! Made by `app`; each source takes what it has. Does not: hold defaults.

use std::path::PathBuf;
use std::time::Duration;

/// What the configuration selects for the source of this node; each operating system takes what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// Linux: size of the kernel's ring buffer in bytes; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Linux: read the standard output of plugins.
    pub stdio: bool,
    /// Linux: observe DNS messages.
    pub dns: bool,
    /// Linux: observe the establishment of TCP connections.
    pub connect: bool,
    /// Linux: observe conntrack's flows and counters.
    pub conntrack: bool,
    /// Linux: observe dropped DNS packets and SYNs.
    pub drops: bool,
    /// Linux: where the runtime's CRI socket may be, to see when the runtime is requested to make a sandbox; none: it is not read.
    pub cri_sockets: Vec<PathBuf>,
    /// Linux: how long a plugin runs before its waits are recorded; `None` records none.
    pub waits_after: Option<Duration>,
    /// Linux: ports of DNS servers.
    pub dns_ports: Vec<u16>,
    /// Linux: which processes are trusted to be plugins besides those of the root namespaces.
    pub trust: TrustSettings,
    /// Linux: the node's network namespace, where it is not that of process 1.
    pub node_netns: Option<PathBuf>,
    /// Linux: further directories in which a runtime names network namespaces.
    pub netns_directories: Vec<String>,
    /// Windows: how long from the start flows of the virtual switch are recorded.
    pub vfp: Duration,
    /// Windows: a table of activity names, added to the agent's own.
    pub activities: Option<PathBuf>,
}

/// Which processes are trusted to be plugins and runtimes, besides those of the initial namespaces with CAP_NET_ADMIN or
/// CAP_SYS_ADMIN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustSettings {
    /// Paths from the root of the cgroup v2 tree, with a leading `/`: their processes and those of all cgroups below.
    pub cgroups: Vec<String>,
    /// User ids: their processes in the initial pid namespace.
    pub users: Vec<u32>,
}
