//! The maps that the state machine looks into on every event, with a fixed hash.
//!
//! The hash is the same in every run, so that a recording replays alike. Does not: iterate over a [`HashMap`]
//! (`clippy.toml` bans that, since its order means nothing), or stand up to collisions made on purpose.

use foldhash::fast::FixedState;

pub(crate) mod bounded;
pub(crate) mod mix;
pub(crate) mod recent;
pub(crate) mod shares;

/// A map without order.
pub(crate) type HashMap<K, V> = hashbrown::HashMap<K, V, FixedState>;
