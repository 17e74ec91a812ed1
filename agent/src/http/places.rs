//! Bounds on what is served at once: in all, and for each peer address.
//!
//! Used by the listeners for connections and by the routes for event streams. Invariant: a place that is taken is given
//! back when its [`Place`] is dropped. Does not: know what a place is used for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The address that a share belongs to. One IPv6 host has a whole /64 of addresses (RFC 4291, section 2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    pub fn of(address: IpAddr) -> Peer {
        match address.to_canonical() {
            IpAddr::V4(address) => Peer(address.into()),
            IpAddr::V6(address) => Peer(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()),
        }
    }
}

/// A number of places of which each peer gets a share.
#[derive(Debug)]
pub struct Places {
    total: usize,
    share: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_peer: HashMap<Peer, usize>,
}

impl Places {
    pub fn new(total: usize, share: usize) -> Arc<Places> {
        Arc::new(Places {
            total,
            share,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A place, if there is one for this peer now.
    pub fn try_take(self: &Arc<Places>, peer: Peer) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = taken.by_peer.get(&peer).copied().unwrap_or(0);
        if taken.all >= self.total || of_peer >= self.share {
            return None;
        }
        taken.all += 1;
        taken.by_peer.insert(peer, of_peer + 1);
        Some(Place {
            places: Arc::clone(self),
            peer,
        })
    }

    /// A place, as soon as there is one for this peer.
    pub async fn take(self: &Arc<Places>, peer: Peer) -> Place {
        loop {
            // Registered before the look, so that a place that is freed in between is noticed.
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(place) = self.try_take(peer) {
                return place;
            }
            freed.await;
        }
    }

    /// How many are taken.
    pub fn used(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

/// A place that is taken.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    peer: Peer,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(of_peer) = taken.by_peer.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                taken.by_peer.remove(&self.peer);
            }
        }
        drop(taken);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::of(address.parse().unwrap())
    }

    #[test]
    fn a_peer_has_a_share_and_all_have_a_bound() {
        let places = Places::new(3, 2);
        let first = places.try_take(peer("10.0.0.1")).unwrap();
        let second = places.try_take(peer("10.0.0.1")).unwrap();
        assert!(places.try_take(peer("10.0.0.1")).is_none(), "more than its share");
        let other = places.try_take(peer("10.0.0.2")).unwrap();
        assert!(places.try_take(peer("10.0.0.3")).is_none(), "more than there are");
        drop(first);
        assert!(places.try_take(peer("10.0.0.3")).is_some());
        drop((second, other));
        assert_eq!(places.used(), 0);
        assert!(places.taken.lock().unwrap().by_peer.is_empty());
    }

    #[test]
    fn one_host_is_one_peer_whatever_addresses_it_uses() {
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
    }

    #[tokio::test]
    async fn a_freed_place_is_taken_by_who_waits() {
        let places = Places::new(1, 1);
        let held = places.try_take(peer("10.0.0.1")).unwrap();
        let waiting = {
            let places = Arc::clone(&places);
            tokio::spawn(async move { places.take(peer("10.0.0.2")).await })
        };
        tokio::task::yield_now().await;
        drop(held);
        drop(waiting.await.unwrap());
        assert_eq!(places.used(), 0);
    }
}
