//! The clock and the facts of systems other than Linux.
//!
//! Used by `clock`. Does not: fail; what the system does not have is empty.

use super::NodeFacts;

/// The wall clock: ETW stamps with it, so that one clock serves as both.
pub fn boot_ns() -> u64 {
    super::unix_ns()
}

/// The facts that the environment holds. Windows has no boot id, so it is empty.
pub fn node_facts() -> NodeFacts {
    let os = match std::env::consts::OS {
        "windows" => "Windows",
        other => other,
    };
    NodeFacts {
        host: std::env::var("COMPUTERNAME").unwrap_or_default(),
        os: os.to_owned(),
        machine: std::env::consts::ARCH.to_owned(),
        ..NodeFacts::default()
    }
}
