//! A cache of names and paths of executables and cgroups: each is kept once and shared.
//!
//! Used by the room of plugins for every span of a process, which names three or four of them. A node runs the same few
//! programs all day, so sharing costs no allocation per span and no copy in the sinks. Bounded to 1,024 texts of 96
//! bytes; what does not fit any more is a copy of its own.
//! Does not: evict. The texts that come first are those that a node runs all the time.

use std::sync::Arc;

use crate::collections::HashMap;

/// The texts that are shared.
#[derive(Debug)]
pub(crate) struct NameCache {
    known: HashMap<Arc<str>, Arc<str>>,
    /// How many more may be entered.
    room: usize,
}

/// Above the number of plugins and commands of any node. A pod cannot add to them; only a plugin that executes ever new
/// programs can.
const MAX_NAMES: usize = 1_024;
/// Longer texts are unusual names and would let few entries take much memory.
const MAX_BYTES: usize = 96;

impl Default for NameCache {
    fn default() -> NameCache {
        NameCache {
            known: HashMap::default(),
            room: MAX_NAMES,
        }
    }
}

impl NameCache {
    /// The shared text. `name` is the text of one event; the result lives as long as anybody holds it.
    pub(crate) fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = name.into();
        if self.room > 0 && name.len() <= MAX_BYTES {
            self.room -= 1;
            self.known.insert(Arc::clone(&new), Arc::clone(&new));
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_up_to_a_bound() {
        let mut names = NameCache::default();
        assert!(Arc::ptr_eq(&names.get("bridge"), &names.get("bridge")));
        let long = "x".repeat(MAX_BYTES + 1);
        assert!(!Arc::ptr_eq(&names.get(&long), &names.get(&long)));
        for number in 0..MAX_NAMES {
            names.get(&number.to_string());
        }
        assert!(!Arc::ptr_eq(&names.get("portmap"), &names.get("portmap")));
        assert_eq!(&*names.get("portmap"), "portmap");
    }
}
