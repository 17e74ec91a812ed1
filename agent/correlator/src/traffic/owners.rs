//! Whose traffic it is: from a network namespace, or an address, to a sandbox.
//!
//! A namespace is a sandbox's once its plugin has named it, and until its last interface is removed: the kernel gives
//! the numbers out again. Addresses are learnt from the plugins' results and from the traffic itself; they tell whose a
//! packet is that is seen outside of its sandbox. Who owns a namespace may be known late: what is open then is asked
//! about again (`attempts.rs`). Bounded: what was entered first goes first.

use std::net::IpAddr;
use std::sync::Arc;

use sandglass_model::{CniCommand, Timestamp};

use crate::collections::bounded::Bounded;
use crate::plugins::operations::Operation;
use crate::sandboxes::memory::Recent;
use crate::traffic::Scope;

/// Whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Party {
    /// The network namespace; 0 when not known.
    pub(crate) netns: u64,
    /// The sandbox; `None` for the node.
    pub(crate) sandbox: Option<Arc<str>>,
}

impl Party {
    /// In this namespace, and no sandbox is known for it.
    pub(crate) fn is_nobodys(&self, netns: u64) -> bool {
        self.netns == netns && self.sandbox.is_none()
    }

    pub(crate) fn scope(&self) -> Scope {
        match self.sandbox {
            Some(_) => Scope::Sandbox,
            None => Scope::Node,
        }
    }
}

/// Everything known.
#[derive(Debug)]
pub(crate) struct Owners {
    /// The node's own, once somebody watches.
    pub(crate) node: Option<u64>,
    by_netns: Bounded<u64, Owner>,
    by_address: Bounded<IpAddr, Arc<str>>,
    /// The other way round: a sandbox that goes must not cost a walk through all that is known.
    owned: Recent<Owned>,
}

/// Whose a network namespace is.
#[derive(Clone, Debug)]
struct Owner {
    sandbox: Arc<str>,
    /// When the namespace was created, as far as that is known: what is older was another's with the same number.
    created: Timestamp,
}

/// What was learnt of one sandbox.
#[derive(Debug, Default)]
struct Owned {
    netns: Vec<u64>,
    addresses: Vec<IpAddr>,
}

/// Most namespaces, and most addresses, that are forgotten with their sandbox; more go by age.
const MAX_OWNED: usize = 16;

impl Owners {
    pub(crate) fn new(max: usize) -> Owners {
        Owners {
            node: None,
            by_netns: Bounded::new(max),
            by_address: Bounded::new(max.saturating_mul(2)),
            owned: Recent::new(max),
        }
    }

    /// How many namespaces and addresses are known.
    pub(crate) fn len(&self) -> usize {
        self.by_netns.len() + self.by_address.len()
    }

    /// The namespace is this sandbox's from now on, whoever had its number before.
    pub(crate) fn own(&mut self, netns: u64, sandbox: &str, now: Timestamp) {
        self.own_since(netns, sandbox, None, now);
    }

    /// The same of a namespace whose age is known. `false` when nothing is new about it.
    pub(crate) fn own_since(&mut self, netns: u64, sandbox: &str, created: Option<Timestamp>, now: Timestamp) -> bool {
        let usable = netns != 0 && self.node != Some(netns) && !sandbox.is_empty();
        let known = self
            .by_netns
            .get(&netns)
            .is_some_and(|owner| *owner.sandbox == *sandbox);
        if usable {
            let owner = Owner {
                sandbox: sandbox.into(),
                created: created.unwrap_or_default(),
            };
            self.by_netns.insert(netns, owner, now);
            self.note(sandbox, |owned| push(&mut owned.netns, netns));
        }
        usable && !known
    }

    pub(crate) fn own_address(&mut self, address: IpAddr, sandbox: &Arc<str>, now: Timestamp) {
        if is_foreign(address) && self.by_address.get(&address) != Some(sandbox) {
            self.by_address.insert(address, Arc::clone(sandbox), now);
            self.note(sandbox, |owned| push(&mut owned.addresses, address));
        }
    }

    /// A plugin gave these addresses, with the length of their prefix, to an interface. Returns whether the sandbox's
    /// traffic can be told by one of them.
    pub(crate) fn learn(&mut self, operation: &Operation, addresses: &[String], now: Timestamp) -> bool {
        if operation.command != CniCommand::Add || operation.container.is_empty() {
            return false;
        }
        let mut told = false;
        let sandbox: Arc<str> = operation.container.as_str().into();
        for address in addresses {
            let address = address.split('/').next().unwrap_or_default();
            if let Ok(address) = address.parse::<IpAddr>() {
                self.own_address(address, &sandbox, now);
                told |= is_foreign(address);
            }
        }
        told
    }

    /// The sandbox has no network any more.
    pub(crate) fn disown(&mut self, sandbox: &str) {
        let Some(owned) = self.owned.get_mut(sandbox).map(std::mem::take) else {
            return;
        };
        for netns in owned.netns {
            if self
                .by_netns
                .get(&netns)
                .is_some_and(|owner| *owner.sandbox == *sandbox)
            {
                self.by_netns.remove(&netns);
            }
        }
        for address in owned.addresses {
            if self.by_address.get(&address).is_some_and(|owner| **owner == *sandbox) {
                self.by_address.remove(&address);
            }
        }
    }

    fn note(&mut self, sandbox: &str, note: impl FnOnce(&mut Owned)) {
        if let Some(owned) = self.owned.get_mut(sandbox) {
            return note(owned);
        }
        let mut owned = Owned::default();
        note(&mut owned);
        self.owned.insert(sandbox, owned);
    }

    /// Whose traffic it is that a socket of this namespace, with this address, sends.
    pub(crate) fn party(&self, netns: u64, address: IpAddr) -> Party {
        let sandbox = match self.by_netns.get(&netns) {
            Some(owner) => Some(&owner.sandbox),
            None if self.node == Some(netns) => None,
            None => self.of_address(address),
        };
        Party {
            netns,
            sandbox: sandbox.cloned(),
        }
    }

    /// Whose traffic it is that nobody's was when it began.
    pub(crate) fn late_owner(&self, netns: u64, address: IpAddr, began: Timestamp) -> Option<Arc<str>> {
        match self.by_netns.get(&netns) {
            // What the node asks itself: most of what nobody owns.
            None if self.node == Some(netns) => None,
            Some(owner) if owner.created > began => None,
            Some(owner) => Some(Arc::clone(&owner.sandbox)),
            None => self.of_address(address).cloned(),
        }
    }

    /// Whose a packet is that was seen in this namespace, perhaps on its way through the node.
    pub(crate) fn party_of_packet(&self, netns: u64, ends: [IpAddr; 2]) -> Party {
        let sandbox = self.by_netns.get(&netns).map(|owner| &owner.sandbox);
        let sandbox = sandbox.or_else(|| ends.into_iter().find_map(|address| self.of_address(address)));
        Party {
            netns,
            sandbox: sandbox.cloned(),
        }
    }

    /// Whose network namespace it is.
    pub(crate) fn party_of_netns(&self, netns: u64) -> Party {
        Party {
            netns,
            sandbox: self.by_netns.get(&netns).map(|owner| Arc::clone(&owner.sandbox)),
        }
    }

    fn of_address(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.by_address.get(&address).filter(|_| is_foreign(address))
    }
}

/// The address is of use outside of its namespace.
fn is_foreign(address: IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

fn push<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if list.len() < MAX_OWNED && !list.contains(&item) {
        list.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_number_is_the_next_sandboxes_once_it_is_given_out_again() {
        let mut owners = Owners::new(8);
        owners.node = Some(1);
        let address = IpAddr::from([10, 0, 0, 9]);
        let owner = |owners: &Owners, netns| owners.party(netns, address).sandbox.as_deref().map(str::to_owned);
        assert_eq!(owner(&owners, 5), None);
        owners.own(5, "a", Timestamp(1));
        owners.own_address(address, &"a".into(), Timestamp(1));
        assert_eq!(owner(&owners, 5).as_deref(), Some("a"));
        assert_eq!(owner(&owners, 0).as_deref(), Some("a"));
        assert_eq!(owner(&owners, 1), None);
        owners.own(1, "a", Timestamp(1));
        assert_eq!(owner(&owners, 1), None);
        let forwarded = owners.party_of_packet(1, [IpAddr::from([10, 0, 0, 1]), address]);
        assert_eq!(forwarded.sandbox.as_deref(), Some("a"));
        assert!(owners.own_since(5, "b", Some(Timestamp(2)), Timestamp(2)));
        assert!(!owners.own_since(5, "b", Some(Timestamp(2)), Timestamp(3)), "known");
        let late = |began| owners.late_owner(5, IpAddr::from([10, 0, 0, 7]), Timestamp(began));
        assert_eq!((late(1), late(2)), (None, Some("b".into())));
        owners.disown("a");
        assert_eq!(owner(&owners, 5).as_deref(), Some("b"));
        assert_eq!(owner(&owners, 0), None);
        assert_eq!(owners.len(), 1);
        owners.own_address(IpAddr::from([127, 0, 0, 1]), &"b".into(), Timestamp(2));
        assert_eq!(owners.len(), 1);
    }
}
