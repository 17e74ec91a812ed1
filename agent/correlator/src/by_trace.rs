//! A table by open trace: where a room keeps its own state beside a trace.
//!
//! A key says where its entry lies, so that a look-up is no search. Does not: remove entries by itself; a room removes its
//! entry when the trace closes. An entry of a trace that had the same slot before is never found.

use crate::keys::TraceKey;

/// The table.
#[derive(Debug)]
pub(crate) struct ByTrace<T>(Vec<Option<(TraceKey, T)>>);

impl<T> Default for ByTrace<T> {
    fn default() -> ByTrace<T> {
        ByTrace(Vec::new())
    }
}

impl<T> ByTrace<T> {
    pub(crate) fn get(&self, key: TraceKey) -> Option<&T> {
        let (of, value) = self.0.get(key.slot())?.as_ref()?;
        (*of == key).then_some(value)
    }

    pub(crate) fn get_mut(&mut self, key: TraceKey) -> Option<&mut T> {
        let (of, value) = self.0.get_mut(key.slot())?.as_mut()?;
        (*of == key).then_some(value)
    }

    pub(crate) fn insert(&mut self, key: TraceKey, value: T) {
        let slot = key.slot();
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot] = Some((key, value));
    }

    pub(crate) fn remove(&mut self, key: TraceKey) -> Option<T> {
        self.get(key)?;
        let (_, value) = self.0.get_mut(key.slot())?.take()?;
        Some(value)
    }
}
