//! Connections that have not yet sent a whole request: bounded in number, and cheap.
//!
//! Used by the listeners. When the lobby is full, a new connection displaces the oldest one of the peer that has most.
//! So a peer with thousands of idle connections displaces its own, and a request that comes at once is served
//! whatever else waits. Does not: close connections itself; the displaced one is notified and ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::places::Peer;

/// The connections of one listener that wait.
#[derive(Debug)]
pub struct Lobby {
    bound: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    all: usize,
    /// Of each peer, oldest first.
    by_peer: HashMap<Peer, VecDeque<(u64, oneshot::Sender<()>)>>,
}

impl Lobby {
    pub fn new(bound: usize) -> Arc<Lobby> {
        Arc::new(Lobby {
            bound,
            waiting: Mutex::default(),
        })
    }

    /// Lets a connection in, and returns whether it displaced another one.
    pub fn enter(self: &Arc<Lobby>, peer: Peer) -> (Ticket, bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let full = waiting.all >= self.bound;
        if full {
            waiting.displace();
        }
        let (displace, displaced) = oneshot::channel();
        let id = waiting.next;
        waiting.next += 1;
        waiting.all += 1;
        waiting.by_peer.entry(peer).or_default().push_back((id, displace));
        let ticket = Ticket {
            lobby: Arc::clone(self),
            peer,
            id,
            displaced,
        };
        (ticket, full)
    }
}

impl Waiting {
    /// Removes the oldest connection of the peer that has most; among equals, the oldest of all.
    fn displace(&mut self) {
        let oldest = |queue: &VecDeque<(u64, _)>| queue.front().map_or(u64::MAX, |(id, _)| *id);
        let most = self
            .by_peer
            .iter()
            .max_by_key(|(_, queue)| (queue.len(), u64::MAX - oldest(queue)));
        let Some(peer) = most.map(|(peer, _)| *peer) else {
            return;
        };
        let displaced = self.by_peer.get_mut(&peer).and_then(VecDeque::pop_front);
        if let Some((_, displace)) = displaced {
            self.all -= 1;
            // A connection that has ended in the meantime does not listen.
            let _ = displace.send(());
        }
        self.forget_if_empty(peer);
    }

    fn remove(&mut self, peer: Peer, id: u64) {
        if let Some(queue) = self.by_peer.get_mut(&peer)
            && let Some(index) = queue.iter().position(|(of, _)| *of == id)
        {
            queue.remove(index);
            self.all -= 1;
        }
        self.forget_if_empty(peer);
    }

    fn forget_if_empty(&mut self, peer: Peer) {
        if self.by_peer.get(&peer).is_some_and(VecDeque::is_empty) {
            self.by_peer.remove(&peer);
        }
    }
}

/// A connection's presence in the lobby; it leaves when this is dropped.
#[derive(Debug)]
pub struct Ticket {
    lobby: Arc<Lobby>,
    peer: Peer,
    id: u64,
    displaced: oneshot::Receiver<()>,
}

impl Ticket {
    /// Completes when another connection has taken this one's presence.
    pub async fn displaced(&mut self) {
        // The sender is dropped only by the ticket's own end.
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut waiting = self.lobby.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.remove(self.peer, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_displaced(ticket: &mut Ticket) -> bool {
        ticket.displaced.try_recv().is_ok()
    }

    #[test]
    fn the_peer_with_most_loses_its_oldest() {
        let lobby = Lobby::new(3);
        let (many, one) = (Peer::of([10, 0, 0, 1].into()), Peer::of([10, 0, 0, 2].into()));
        let mut only = lobby.enter(one).0;
        let mut first = lobby.enter(many).0;
        let mut second = lobby.enter(many).0;
        let mut third = lobby.enter(many).0;
        assert!(is_displaced(&mut first) && !is_displaced(&mut second) && !is_displaced(&mut only));
        drop(first);
        let fourth = lobby.enter(one).0;
        assert!(is_displaced(&mut second) && !is_displaced(&mut third) && !is_displaced(&mut only));
        drop((only, second, third, fourth));
        let waiting = lobby.waiting.lock().unwrap();
        assert_eq!((waiting.all, waiting.by_peer.len()), (0, 0));
    }

    #[test]
    fn among_equals_the_oldest_goes() {
        let lobby = Lobby::new(2);
        let mut tickets: Vec<Ticket> = (1..=3).map(|n| lobby.enter(Peer::of([10, 0, 0, n].into())).0).collect();
        let displaced: Vec<bool> = tickets.iter_mut().map(is_displaced).collect();
        assert_eq!(displaced, [true, false, false]);
    }
}
