//! A table by open trace: where a room keeps its own state beside a trace.
//!
//! Used by the rooms of plugins and of sandboxes, several times per event: a key says where its entry lies (`keys.rs`),
//! so that a look-up is an index and no search. As long as the table of open traces at its largest.
//! Ours because `hashbrown` by key took 3.2 times as long for 80 look-ups beside one insertion and removal, 110 traces open
//! (median of 15 alternated rounds, on a busy machine). `slotmap::SecondaryMap` took 0.8 to 1.0 of the time (41 rounds), but
//! its keys do not sort by age: with a serial number beside them, each key in a fact, a timer or a role has 16 bytes, not 8.
//! Does not: remove entries by itself; a room removes its entry when the trace closes. An entry of an earlier trace in
//! the same slot is never returned, since the whole key is compared.

use crate::keys::TraceKey;

/// Entries by the slot of the key, each with the key that it was inserted for.
#[derive(Debug)]
pub(crate) struct ByTrace<T>(Vec<Option<(TraceKey, T)>>);

impl<T> Default for ByTrace<T> {
    fn default() -> ByTrace<T> {
        ByTrace(Vec::new())
    }
}

impl<T> ByTrace<T> {
    /// The state beside this trace; `None` if it has none, or has closed.
    pub(crate) fn get(&self, key: TraceKey) -> Option<&T> {
        let (of, value) = self.0.get(key.slot())?.as_ref()?;
        (*of == key).then_some(value)
    }

    pub(crate) fn get_mut(&mut self, key: TraceKey) -> Option<&mut T> {
        let (of, value) = self.0.get_mut(key.slot())?.as_mut()?;
        (*of == key).then_some(value)
    }

    /// Replaces what an earlier trace has left in the slot.
    pub(crate) fn insert(&mut self, key: TraceKey, value: T) {
        let slot = key.slot();
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot] = Some((key, value));
    }

    /// Takes the state out, when the trace closes.
    pub(crate) fn remove(&mut self, key: TraceKey) -> Option<T> {
        self.get(key)?;
        let (_, value) = self.0.get_mut(key.slot())?.take()?;
        Some(value)
    }
}
