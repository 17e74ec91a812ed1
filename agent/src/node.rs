//! Facts about the node: the source of every trace id, every resource and every recording's header.

use serde::Serialize;

/// Facts about the node that do not change while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeInfo {
    /// Node name: configured, or the host name.
    pub name: String,
    /// `service.name` of exported spans.
    pub service: String,
    /// Version of the agent.
    pub version: String,
    /// Boot id of the node.
    pub boot_id: String,
    /// `Linux` or `Windows`.
    pub os: String,
    /// Kernel release or Windows build.
    pub kernel: String,
    /// Machine architecture, as `uname -m`.
    pub machine: String,
}

/// Major and minor number of a kernel's release such as `6.12.9-amd64`; distributions add what they like behind them. `None` where
/// it does not begin with two numbers.
#[must_use]
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
