//! The owner of traffic: the sandbox, or the node, that a record is attributed to.
//!
//! Also the owner that an entry of a full table counts for ([`ShareKey`], [`namespace_key`]).
//!
//! Used by the rooms of traffic and of Windows, and by the tables that several owners share. A sandbox is named by its id, not by the key of a trace, since it has
//! traffic long after its trace closed. Imports no room.

use std::net::IpAddr;
use std::sync::Arc;

use crate::collections::bounded::Hashed as _;
use crate::collections::mix::mix;
use crate::finding::Scope;

/// An owner, and the namespace in which the traffic was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Inode of the network namespace (Linux), number of the compartment (Windows); 0 when not known.
    pub(crate) netns: u64,
    /// The sandbox; `None` for the node.
    pub(crate) sandbox: Option<Arc<str>>,
}

impl Owner {
    /// It was seen in this namespace, and no sandbox is known as its owner.
    pub(crate) fn is_unknown_in(&self, netns: u64) -> bool {
        self.netns == netns && self.sandbox.is_none()
    }

    /// The same sandbox, or the same namespace where no sandbox is known.
    pub(crate) fn is_same(&self, other: &Owner) -> bool {
        self.sandbox == other.sandbox && (self.sandbox.is_some() || self.netns == other.netns)
    }

    /// The kind of owner, for metrics.
    pub(crate) fn scope(&self) -> Scope {
        match self.sandbox {
            Some(_) => Scope::Sandbox,
            None => Scope::Node,
        }
    }

    /// The owner that its entries count for in full tables.
    pub(crate) fn share(&self) -> ShareKey {
        match &self.sandbox {
            Some(sandbox) => ShareKey::of_sandbox(sandbox),
            None => ShareKey::of_class(mix(0, &self.netns.to_le_bytes())),
        }
    }
}

/// The owner that an entry of a full table counts for: a sandbox, or a class of what belongs to no known sandbox. There are
/// few classes, because whoever may make network namespaces or forge addresses makes as many of these as they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareKey(u32);

/// Set in the share of a sandbox.
const OF_SANDBOX: u32 = 1 << 31;
/// Classes of namespaces and addresses without a known sandbox.
const CLASSES: u64 = 32;

impl ShareKey {
    pub(crate) fn of_sandbox(sandbox: &str) -> ShareKey {
        ShareKey(mix(0, sandbox.as_bytes()) as u32 | OF_SANDBOX)
    }

    /// The share of what was seen in the node's namespace and is attributed to this owner, or else to an address.
    pub(crate) fn of_address(owner: &Owner, address: IpAddr) -> ShareKey {
        match &owner.sandbox {
            Some(sandbox) => ShareKey::of_sandbox(sandbox),
            None => ShareKey::of_class(address.hash()),
        }
    }

    fn of_class(hash: u64) -> ShareKey {
        ShareKey((hash % CLASSES) as u32)
    }

    /// As an owner of entries in a table.
    pub(crate) fn key(self) -> u64 {
        u64::from(self.0)
    }

    /// The kind of owner, for metrics.
    pub(crate) fn scope(self) -> Scope {
        match self.0 & OF_SANDBOX {
            0 => Scope::Node,
            _ => Scope::Sandbox,
        }
    }
}

/// The Kubernetes namespace of a pod as the owner of entries in a table. Pods without a known one share it.
pub(crate) fn namespace_key(namespace: &str) -> u64 {
    match namespace {
        "" => 0,
        namespace => mix(0, namespace.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn who_makes_namespaces_or_addresses_gets_few_shares_for_them() {
        let unknown = |netns| Owner { netns, sandbox: None };
        let of_netns: BTreeSet<u64> = (0..10_000).map(|netns| unknown(netns).share().key()).collect();
        assert!(of_netns.len() <= CLASSES as usize, "{of_netns:?}");
        let forged = |number: u32| ShareKey::of_address(&unknown(1), IpAddr::from(number.to_be_bytes()));
        let of_address: BTreeSet<u64> = (0..10_000).map(|number| forged(number).key()).collect();
        assert!(of_address.len() <= CLASSES as usize, "{of_address:?}");
        let known = |netns| Owner {
            netns,
            sandbox: Some("sb".into()),
        };
        assert_eq!(
            known(1).share(),
            known(2).share(),
            "one sandbox, whatever namespaces it makes"
        );
        assert_eq!(
            (known(1).share().scope(), unknown(1).share().scope()),
            (Scope::Sandbox, Scope::Node)
        );
        assert!(!of_netns.contains(&known(1).share().key()));
    }
}
