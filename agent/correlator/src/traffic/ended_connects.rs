//! Connects that ended while records of them may still come: at a DEL, because their socket began again, or evicted.
//!
//! Used by `tcp.rs`, which ignores steps of them that are reported again, and by `lifecycle.rs`. Bounded by `max_connects`: the
//! owner with the most entries loses its oldest.
//! Does not: keep a connect that waited for its late records; until it has, it is found among the open ones.

use std::net::SocketAddr;

use sandglass_model::Timestamp;
use sandglass_model::network::ConnectStep;

use crate::collections::bounded::Bounded;
use crate::owner::ShareKey;
use crate::traffic::connect::{Connect, LINGER_NS};
use crate::traffic::table_key::TableKey;

/// The table, by socket.
#[derive(Debug)]
pub(crate) struct EndedConnects(Bounded<TableKey, EndedConnect>);

/// Identifies the steps of an ended connect.
#[derive(Clone, Copy, Debug)]
struct EndedConnect {
    netns: u64,
    remote: SocketAddr,
    end: Timestamp,
    share: ShareKey,
}

impl EndedConnects {
    pub(crate) fn new(max: usize) -> EndedConnects {
        EndedConnects(Bounded::shared(max, |_, connect| connect.share.key()))
    }

    /// Remembers a connect that is taken out of the open ones at `now`, if it has ended and records of it may still come.
    pub(crate) fn remember(&mut self, connect: &Connect, now: Timestamp) {
        let Some((end, _)) = connect.outcome.filter(|(end, _)| now < end.plus(LINGER_NS)) else {
            return;
        };
        self.0.expire(now.minus(LINGER_NS));
        let key = TableKey::connecting_socket(connect.socket, connect.local);
        let ended = EndedConnect {
            netns: connect.owner.netns,
            remote: connect.remote,
            end,
            share: connect.owner.share(),
        };
        self.0.insert(key, ended, now);
    }

    /// The step of `at` belongs to one of them: its record came twice. A later one of the same socket is a new connect's.
    pub(crate) fn has_step(&self, step: &ConnectStep, at: Timestamp) -> bool {
        let ended = self.0.get(&TableKey::connecting_socket(step.socket, step.local));
        ended.is_some_and(|ended| ended.netns == step.netns && ended.remote == step.remote && at <= ended.end)
    }
}
