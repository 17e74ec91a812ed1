//! Addresses whose duplicate address detection has not ended: what the process probe reads while a plugin is slow.
//!
//! IPv6 gives an address to programs only after it has asked the link whether somebody has it already (RFC 4862, section 5.4);
//! until then the address is tentative. Plugins list addresses again and again until none is, and sleep in between. Does not:
//! say who waits for that; the correlator's room of waits does.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::ProcessKey;

/// The tentative addresses of a network namespace that a plugin works in, as one reading found them. A source emits one for each
/// change, at the time of reading, and the last one at the process's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TentativeSeen {
    /// The process with a thread in that namespace.
    pub process: ProcessKey,
    /// Inode of the namespace.
    pub netns: u64,
    /// All of them, at most [`TentativeSeen::ADDRESSES_MAX`]; empty when none is tentative any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<TentativeAddress>,
}

/// An address that programs cannot use yet (`IFA_F_TENTATIVE`, include/uapi/linux/if_addr.h).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TentativeAddress {
    /// The address.
    pub address: Ipv6Addr,
    /// The interface that has it.
    pub interface: SmolStr,
    /// The detection has found that another machine has the address (`IFA_F_DADFAILED`): it stays tentative.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

impl TentativeSeen {
    /// Bound on `addresses`.
    pub const ADDRESSES_MAX: usize = 16;
}
