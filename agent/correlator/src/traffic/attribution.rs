//! Attribution: which sandbox a network namespace or an address belongs to.
//!
//! Used by the files of this room for every record. A namespace belongs to a sandbox once its plugin has named it, and
//! until its last interface is removed: the kernel reuses inode numbers of namespaces (fs/nsfs.c takes them from
//! `proc_alloc_inum`, fs/proc/generic.c). Addresses come from the plugins' results and from the traffic itself; they
//! attribute a packet that is seen outside of its sandbox's namespace.
//! Bounded by `max_remembered` namespaces and twice as many addresses; the sandbox with the most loses its oldest.
//! Does not: know traces.
//!
//! Order of evidence for a record: the namespace of its socket, then an address. The namespace is certain, while an
//! address may have been given to another sandbox by IPAM a moment ago; that is why the node's namespace never falls
//! back to addresses for sockets.

use std::net::IpAddr;
use std::sync::Arc;

use sandglass_model::trace::OperationDetail;
use sandglass_model::{CniCommand, Timestamp};

use crate::collections::bounded::Bounded;
use crate::collections::recent::Recent;
use crate::counters::Evictions;
use crate::finding::Scope;
use crate::owner::{Owner, ShareKey};

/// Owners by namespace and by address.
#[derive(Debug)]
pub(crate) struct Owners {
    /// Inode of the node's own network namespace; `None` until a source observes traffic.
    pub(crate) node: Option<u64>,
    /// By inode of the network namespace, or number of the compartment.
    by_netns: Bounded<u64, NetnsOwner>,
    /// By address, for packets that are seen outside of the sandbox's namespace.
    by_address: Bounded<IpAddr, Arc<str>>,
    /// Namespaces and addresses by sandbox, so that removing a sandbox needs no walk through both maps.
    owned: Recent<Attributed>,
    evicted: Evictions,
}

/// The sandbox that a network namespace belongs to.
#[derive(Clone, Debug)]
struct NetnsOwner {
    sandbox: Arc<str>,
    /// When the namespace was created, 0 if unknown. Traffic that is older belongs to an earlier namespace with the
    /// same number.
    created: Timestamp,
}

/// What was attributed to one sandbox.
#[derive(Debug, Default)]
struct Attributed {
    /// Namespaces that were assigned to it, at most `MAX_OWNED`.
    netns: Vec<u64>,
    /// Addresses that were assigned to it, at most `MAX_OWNED`.
    addresses: Vec<IpAddr>,
}

/// Bound on the addresses of one sandbox, and on the namespaces that are removed with it. Further namespaces are evicted by age.
const MAX_OWNED: usize = 16;

impl Owners {
    pub(crate) fn new(max: usize) -> Owners {
        Owners {
            node: None,
            by_netns: Bounded::shared(max, |_, owner| ShareKey::of_sandbox(&owner.sandbox).key()),
            by_address: Bounded::shared(max.saturating_mul(2), |_, sandbox| ShareKey::of_sandbox(sandbox).key()),
            owned: Recent::new(max),
            evicted: Evictions::default(),
        }
    }

    /// The number of namespaces and addresses with an owner.
    pub(crate) fn len(&self) -> usize {
        self.by_netns.len() + self.by_address.len()
    }

    /// What was evicted since the start.
    pub(crate) fn evicted(&self) -> Evictions {
        self.evicted
    }

    /// The namespace belongs to this sandbox from now on, whichever sandbox had its number before. Returns whether that
    /// is new, so that open exchanges in it need an owner. Ignores the node's own namespace, which pods with host
    /// network have. `created` is when the namespace was made, where known.
    pub(crate) fn assign_netns(
        &mut self,
        netns: u64,
        sandbox: &str,
        created: Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        // The node's own namespace and an unknown one belong to no sandbox.
        let usable = netns != 0 && self.node != Some(netns) && !sandbox.is_empty();
        let known = self
            .by_netns
            .get(&netns)
            .is_some_and(|owner| *owner.sandbox == *sandbox);
        if usable {
            let owner = NetnsOwner {
                sandbox: sandbox.into(),
                created: created.unwrap_or_default(),
            };
            let evicted = &mut self.evicted;
            self.by_netns.insert_reporting(netns, owner, now, |_, is_noisy| {
                evicted.count(Scope::Sandbox, is_noisy);
            });
            self.note(sandbox, |owned| {
                push(&mut owned.netns, netns);
            });
        }
        usable && !known
    }

    /// The address belongs to this sandbox, unless it is one that every namespace has.
    pub(crate) fn assign_address(&mut self, address: IpAddr, sandbox: &Arc<str>, now: Timestamp) {
        if !is_foreign(address) || self.by_address.get(&address) == Some(sandbox) {
            return;
        }
        // A pod sends from as many addresses as it likes: only so many of one sandbox are learned.
        let mut is_learned = false;
        self.note(sandbox, |owned| is_learned = push(&mut owned.addresses, address));
        if is_learned {
            let evicted = &mut self.evicted;
            self.by_address
                .insert_reporting(address, Arc::clone(sandbox), now, |_, is_noisy| {
                    evicted.count(Scope::Sandbox, is_noisy);
                });
        }
    }

    /// An ADD reported these addresses of an interface, each with the length of its prefix (CNI spec 1.1.0, section 5,
    /// "Add Success"). Returns whether one of them identifies the sandbox's traffic.
    pub(crate) fn assign_addresses(&mut self, sandbox: &str, operation: &OperationDetail, now: Timestamp) -> bool {
        if operation.command != CniCommand::Add || sandbox.is_empty() {
            return false;
        }
        let mut identifies = false;
        let sandbox: Arc<str> = sandbox.into();
        for address in &operation.addresses {
            let address = address.split('/').next().unwrap_or_default();
            if let Ok(address) = address.parse::<IpAddr>() {
                self.assign_address(address, &sandbox, now);
                identifies |= is_foreign(address);
            }
        }
        identifies
    }

    /// The sandbox has no network any more. Entries that another sandbox has taken over meanwhile stay.
    pub(crate) fn release(&mut self, sandbox: &str) {
        let Some(owned) = self.owned.remove(sandbox) else {
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

    /// Changes what is attributed to a sandbox, in an entry that is created where there is none.
    fn note(&mut self, sandbox: &str, note: impl FnOnce(&mut Attributed)) {
        if let Some(owned) = self.owned.get_mut(sandbox) {
            return note(owned);
        }
        let mut owned = Attributed::default();
        note(&mut owned);
        if self.owned.insert(sandbox, owned).1.is_some() {
            self.evicted.count(Scope::Sandbox, false);
        }
    }

    /// The owner of what a socket in this namespace, with this address, sends. The namespace decides; the address only
    /// where the namespace is neither a sandbox's nor the node's, and that of the address's sandbox is not known.
    pub(crate) fn owner_of_socket(&self, netns: u64, address: IpAddr) -> Owner {
        let sandbox = match self.by_netns.get(&netns) {
            Some(owner) => Some(&owner.sandbox),
            None if self.node == Some(netns) => None,
            None => self.of_address_in(netns, address),
        };
        Owner {
            netns,
            sandbox: sandbox.cloned(),
        }
    }

    /// As `owner_of_socket`, and remembers the address where the owner is a sandbox.
    pub(crate) fn attribute(&mut self, netns: u64, address: IpAddr, now: Timestamp) -> Owner {
        let owner = self.owner_of_socket(netns, address);
        if let Some(sandbox) = &owner.sandbox {
            self.assign_address(address, sandbox, now);
        }
        owner
    }

    /// The owner of an exchange that had none when it began at `began`; `None` if there still is none. A namespace that
    /// was created later is another one with the same number.
    pub(crate) fn late_owner(&self, netns: u64, address: IpAddr, began: Timestamp) -> Option<Arc<str>> {
        match self.by_netns.get(&netns) {
            // The node's own traffic is most of what has no owner.
            None if self.node == Some(netns) => None,
            Some(owner) if owner.created > began => None,
            Some(owner) => Some(Arc::clone(&owner.sandbox)),
            None => self.of_address_in(netns, address).cloned(),
        }
    }

    /// The owner of a packet that was seen in this namespace, perhaps on its way through the node: then one of its
    /// addresses, if translation has left one, is the sandbox's.
    pub(crate) fn owner_of_packet(&self, netns: u64, ends: [IpAddr; 2]) -> Owner {
        let sandbox = self.by_netns.get(&netns).map(|owner| &owner.sandbox);
        let sandbox = sandbox.or_else(|| ends.into_iter().find_map(|address| self.of_address(address)));
        Owner {
            netns,
            sandbox: sandbox.cloned(),
        }
    }

    /// The owner of a network namespace.
    pub(crate) fn owner_of_netns(&self, netns: u64) -> Owner {
        Owner {
            netns,
            sandbox: self.by_netns.get(&netns).map(|owner| Arc::clone(&owner.sandbox)),
        }
    }

    /// The sandbox that the address belongs to, as the owner of a socket in a namespace without an owner. Whoever makes a
    /// network namespace of their own gives it any address: where the sandbox's namespace is known, this is another.
    fn of_address_in(&self, netns: u64, address: IpAddr) -> Option<&Arc<str>> {
        let sandbox = self.of_address(address)?;
        let is_elsewhere = netns != 0 && self.owned.get(sandbox).is_some_and(|owned| !owned.netns.is_empty());
        (!is_elsewhere).then_some(sandbox)
    }

    /// The sandbox that the address belongs to.
    fn of_address(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.by_address.get(&address).filter(|_| is_foreign(address))
    }
}

/// The address means something outside of its namespace: not a loopback address, and not the unspecified one.
fn is_foreign(address: IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

/// Adds an item to a list that has room. Returns whether it is in the list.
fn push<T: PartialEq>(list: &mut Vec<T>, item: T) -> bool {
    if list.contains(&item) {
        return true;
    }
    let has_room = list.len() < MAX_OWNED;
    if has_room {
        list.push(item);
    }
    has_room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sandbox_does_not_fill_the_table_of_addresses() {
        let mut owners = Owners::new(64);
        let quiet = IpAddr::from([10, 0, 0, 9]);
        owners.assign_address(quiet, &"quiet".into(), Timestamp(1));
        for n in 0..1_000_u16 {
            let [high, low] = n.to_be_bytes();
            owners.assign_address(IpAddr::from([10, 1, high, low]), &"noisy".into(), Timestamp(2));
        }
        assert_eq!(owners.len(), 1 + MAX_OWNED);
        assert_eq!(owners.owner_of_socket(0, quiet).sandbox.as_deref(), Some("quiet"));
    }

    #[test]
    fn a_namespaces_number_is_the_next_sandboxes_once_it_is_given_out_again() {
        let mut owners = Owners::new(8);
        owners.node = Some(1);
        let address = IpAddr::from([10, 0, 0, 9]);
        let owner = |owners: &Owners, netns| {
            owners
                .owner_of_socket(netns, address)
                .sandbox
                .as_deref()
                .map(str::to_owned)
        };
        assert_eq!(owner(&owners, 5), None);
        owners.assign_netns(5, "a", None, Timestamp(1));
        owners.assign_address(address, &"a".into(), Timestamp(1));
        assert_eq!(owner(&owners, 5).as_deref(), Some("a"));
        assert_eq!(owner(&owners, 0).as_deref(), Some("a"));
        assert_eq!(owner(&owners, 1), None);
        owners.assign_netns(1, "a", None, Timestamp(1));
        assert_eq!(owner(&owners, 1), None);
        let forwarded = owners.owner_of_packet(1, [IpAddr::from([10, 0, 0, 1]), address]);
        assert_eq!(forwarded.sandbox.as_deref(), Some("a"));
        assert!(owners.assign_netns(5, "b", Some(Timestamp(2)), Timestamp(2)));
        assert!(!owners.assign_netns(5, "b", Some(Timestamp(2)), Timestamp(3)), "known");
        let late = |began| owners.late_owner(5, IpAddr::from([10, 0, 0, 7]), Timestamp(began));
        assert_eq!((late(1), late(2)), (None, Some("b".into())));
        owners.release("a");
        assert_eq!(owner(&owners, 5).as_deref(), Some("b"));
        assert_eq!(owner(&owners, 0), None);
        assert_eq!(owners.len(), 1);
        owners.assign_address(IpAddr::from([127, 0, 0, 1]), &"b".into(), Timestamp(2));
        assert_eq!(owners.len(), 1);
    }

    /// A pod that unshares its network namespace gives the new one the address of another pod.
    #[test]
    fn an_address_in_a_namespace_of_ones_own_is_nobodys() {
        let mut owners = Owners::new(8);
        owners.node = Some(1);
        let address = IpAddr::from([10, 0, 0, 9]);
        owners.assign_address(address, &"victim".into(), Timestamp(1));
        let owner = |owners: &Owners, netns| owners.owner_of_socket(netns, address).sandbox;
        assert_eq!(
            owner(&owners, 7).as_deref(),
            Some("victim"),
            "its namespace is not known"
        );
        owners.assign_netns(5, "victim", None, Timestamp(2));
        assert_eq!(
            (owner(&owners, 5).as_deref(), owner(&owners, 7)),
            (Some("victim"), None)
        );
        assert_eq!(owners.late_owner(7, address, Timestamp(3)), None);
        // A packet on its way through the node is in the node's namespace.
        assert_eq!(
            owners.owner_of_packet(1, [address, address]).sandbox.as_deref(),
            Some("victim")
        );
        assert_eq!(
            owner(&owners, 0).as_deref(),
            Some("victim"),
            "no namespace was reported"
        );
    }
}
