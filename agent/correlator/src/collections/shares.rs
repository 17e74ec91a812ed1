//! Who has how many entries of a full table, so that the owner with the most loses its own oldest entry first.
//!
//! Used by the tables that pods fill (lookups, connects, conntrack entries, resolved addresses), only while they are full: a table
//! builds its shares when it first evicts, and drops them when it is half empty. Does not: hold entries; it knows places.

use std::collections::BTreeMap;

/// Places of a table by owner, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// By place.
    links: Vec<Link>,
    owners: BTreeMap<u64, Share>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// `None` while the place is not used.
    owner: Option<u64>,
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    oldest: u32,
    newest: u32,
    count: usize,
}

/// No place.
const NONE: u32 = u32::MAX;

impl Shares {
    /// Of the places of a table, oldest first, each with its owner.
    pub(crate) fn new(places: impl Iterator<Item = (u32, u64)>) -> Shares {
        let mut shares = Shares::default();
        for (place, owner) in places {
            shares.add(place, owner);
        }
        shares
    }

    /// Adds a place as the newest of its owner. It must not be in use.
    pub(crate) fn add(&mut self, place: u32, owner: u64) {
        let index = place as usize;
        if self.links.len() <= index {
            let unused = Link {
                owner: None,
                older: NONE,
                newer: NONE,
            };
            self.links.resize(index + 1, unused);
        }
        let share = self.owners.entry(owner).or_insert(Share {
            oldest: place,
            newest: NONE,
            count: 0,
        });
        let older = std::mem::replace(&mut share.newest, place);
        share.count += 1;
        if let Some(older) = self.links.get_mut(older as usize) {
            older.newer = place;
        }
        self.links[index] = Link {
            owner: Some(owner),
            older,
            newer: NONE,
        };
    }

    /// Removes a place, if it is in use.
    pub(crate) fn remove(&mut self, place: u32) {
        let Some(link) = self.links.get_mut(place as usize) else {
            return;
        };
        let Link { older, newer, .. } = *link;
        let Some(owner) = link.owner.take() else { return };
        let Some(share) = self.owners.get_mut(&owner) else {
            return;
        };
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => share.oldest = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => share.newest = older,
        }
        share.count -= 1;
        if share.count == 0 {
            self.owners.remove(&owner);
        }
    }

    /// The oldest place of the owner with the most; of several such owners, the one with the least `age`.
    pub(crate) fn next_victim<A: Ord>(&self, age: impl Fn(u32) -> A) -> Option<u32> {
        let most = self.owners.values().map(|share| share.count).max()?;
        let fullest = self.owners.values().filter(|share| share.count == most);
        fullest.map(|share| share.oldest).min_by_key(|place| age(*place))
    }

    /// Places in all.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.owners.values().map(|share| share.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_with_the_most_loses_its_oldest() {
        // Places 0 to 5, in order of age.
        let mut shares = Shares::new([(0, 7), (1, 8), (2, 8), (3, 9), (4, 8), (5, 9)].into_iter());
        let mut victims = Vec::new();
        while let Some(victim) = shares.next_victim(|place| place) {
            victims.push(victim);
            shares.remove(victim);
        }
        // Owner 8 until it has as few as 9, then the older of both, and so on.
        assert_eq!(victims, [1, 2, 3, 0, 4, 5]);
        assert_eq!((shares.len(), shares.owners.len()), (0, 0));
    }

    #[test]
    fn places_are_used_again_and_removed_in_any_order() {
        let mut shares = Shares::default();
        for place in 0..9 {
            shares.add(place, u64::from(place % 2));
        }
        for place in [4, 0, 8, 3] {
            shares.remove(place);
        }
        shares.add(4, 1);
        assert_eq!(shares.len(), 6);
        // Owner 1 has 1, 5, 7 and now 4; owner 0 has 2 and 6.
        assert_eq!(shares.next_victim(|place| place), Some(1));
        for place in [1, 5, 7, 4, 2] {
            shares.remove(place);
        }
        assert_eq!(shares.next_victim(|place| place), Some(6));
    }
}
