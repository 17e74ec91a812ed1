//! How many entries of a full table each owner has, so that the owner with the most loses its own oldest entry first.
//!
//! Used by the tables that pods fill (ARCHITECTURE.md lists them), only while they are full: a table builds its shares when it
//! first evicts, and drops them when it is half empty. Each operation takes logarithmic time in the number of owners, which
//! a pod that forges addresses chooses. Does not: hold entries; it knows places.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::collections::HashMap;

/// Places of a table by owner, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// By place.
    links: Vec<Link>,
    owners: HashMap<u64, OwnedPlaces>,
    /// All owners; the one that makes room is the last.
    ranks: BTreeSet<Rank>,
    /// Places in use.
    count: usize,
    /// The last serial number of a place.
    serial: u64,
}

/// A place to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) place: u32,
    /// Its owner has more than a quarter of the table.
    pub(crate) is_noisy: bool,
}

/// By the number of places, then by the serial number of the oldest: of owners with as many, the one with the oldest place
/// makes room.
type Rank = (usize, Reverse<u64>, u64);

#[derive(Clone, Copy, Debug)]
struct Link {
    /// `None` while the place is not used.
    owner: Option<u64>,
    serial: u64,
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug)]
struct OwnedPlaces {
    oldest: u32,
    newest: u32,
    count: usize,
}

/// No place.
const NONE: u32 = u32::MAX;
/// An owner is noisy that has more than this part of a table.
const NOISY_PART: usize = 4;

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
                serial: 0,
                older: NONE,
                newer: NONE,
            };
            self.links.resize(index + 1, unused);
        }
        self.serial += 1;
        self.count += 1;
        let share = self.owners.get(&owner).copied();
        if let Some(share) = share {
            self.ranks.remove(&rank(&self.links, owner, share));
        }
        let older = share.map_or(NONE, |share| share.newest);
        if let Some(older) = self.links.get_mut(older as usize) {
            older.newer = place;
        }
        self.links[index] = Link {
            owner: Some(owner),
            serial: self.serial,
            older,
            newer: NONE,
        };
        let share = OwnedPlaces {
            oldest: share.map_or(place, |share| share.oldest),
            newest: place,
            count: share.map_or(0, |share| share.count) + 1,
        };
        self.owners.insert(owner, share);
        self.ranks.insert(rank(&self.links, owner, share));
    }

    /// Removes a place, if it is in use.
    pub(crate) fn remove(&mut self, place: u32) {
        let Some(link) = self.links.get(place as usize).copied() else {
            return;
        };
        let Some(owner) = link.owner else { return };
        let Some(mut share) = self.owners.get(&owner).copied() else {
            return;
        };
        self.ranks.remove(&rank(&self.links, owner, share));
        self.links[place as usize].owner = None;
        match self.links.get_mut(link.older as usize) {
            Some(older) => older.newer = link.newer,
            None => share.oldest = link.newer,
        }
        match self.links.get_mut(link.newer as usize) {
            Some(newer) => newer.older = link.older,
            None => share.newest = link.older,
        }
        self.count -= 1;
        share.count -= 1;
        if share.count == 0 {
            self.owners.remove(&owner);
        } else {
            self.owners.insert(owner, share);
            self.ranks.insert(rank(&self.links, owner, share));
        }
    }

    /// The oldest place of the owner with the most; of several such owners, the oldest of all.
    pub(crate) fn next_victim(&self) -> Option<Victim> {
        let &(count, _, owner) = self.ranks.last()?;
        Some(Victim {
            place: self.owners.get(&owner)?.oldest,
            is_noisy: count > self.count / NOISY_PART,
        })
    }

    /// The places of the owner of `next_victim`, oldest first.
    pub(crate) fn of_next_victim(&self) -> impl Iterator<Item = u32> {
        let first = self.next_victim().map(|victim| victim.place);
        std::iter::successors(first, |place| {
            let newer = self.links.get(*place as usize)?.newer;
            (newer != NONE).then_some(newer)
        })
    }

    /// The owner of a place in use.
    pub(crate) fn owner(&self, place: u32) -> Option<u64> {
        self.links.get(place as usize)?.owner
    }
}

fn rank(links: &[Link], owner: u64, share: OwnedPlaces) -> Rank {
    let oldest = links.get(share.oldest as usize).map_or(0, |link| link.serial);
    (share.count, Reverse(oldest), owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_with_the_most_loses_its_oldest() {
        // Places 0 to 5, in order of age.
        let mut shares = Shares::new([(0, 7), (1, 8), (2, 8), (3, 9), (4, 8), (5, 9)].into_iter());
        let of_most: Vec<u32> = shares.of_next_victim().collect();
        assert_eq!(of_most, [1, 2, 4]);
        let mut victims = Vec::new();
        while let Some(victim) = shares.next_victim() {
            victims.push(victim.place);
            shares.remove(victim.place);
        }
        // Owner 8 until it has as few as 9, then the older of both, and so on.
        assert_eq!(victims, [1, 2, 3, 0, 4, 5]);
        assert_eq!((shares.count, shares.owners.len(), shares.ranks.len()), (0, 0, 0));
        assert_eq!(shares.of_next_victim().count(), 0);
    }

    #[test]
    fn places_are_used_again_and_removed_in_any_order() {
        let mut shares = Shares::default();
        for place in 0..9 {
            shares.add(place, u64::from(place % 2));
        }
        for place in [4, 0, 8, 3, 3] {
            shares.remove(place);
        }
        shares.add(4, 1);
        assert_eq!((shares.count, shares.owner(4), shares.owner(0)), (6, Some(1), None));
        // Owner 1 has 1, 5, 7 and now 4; owner 0 has 2 and 6.
        let next = |shares: &Shares| shares.next_victim().map(|victim| victim.place);
        assert_eq!(next(&shares), Some(1));
        for place in [1, 5, 7, 4, 2] {
            shares.remove(place);
        }
        assert_eq!(next(&shares), Some(6));
    }

    #[test]
    fn an_owner_with_more_than_a_quarter_is_noisy() {
        let mut shares = Shares::new((0..16).map(|place| (place, u64::from(place % 4))));
        assert_eq!(
            shares.next_victim(),
            Some(Victim {
                place: 0,
                is_noisy: false
            })
        );
        shares.remove(3);
        shares.add(3, 1);
        assert_eq!(
            shares.next_victim(),
            Some(Victim {
                place: 1,
                is_noisy: true
            })
        );
    }

    /// With an owner for each entry, as a sender of forged addresses has, the oldest goes, and no look takes longer for it.
    #[test]
    fn ten_thousand_owners_of_one_entry_go_in_order_of_age() {
        let mut shares = Shares::new((0..10_000).map(|place| (place, u64::from(place))));
        for place in 0..10_000 {
            assert_eq!(shares.next_victim().map(|victim| victim.place), Some(place));
            shares.remove(place);
            shares.add(place, 20_000 + u64::from(place));
        }
        assert_eq!(shares.ranks.len(), 10_000);
    }
}
