//! Names and paths of executables and cgroups, each kept once.
//!
//! A node runs the same few programs all day, and every span of a process names three or four: shared, they cost no
//! allocation per span and no copy for who counts spans. Bounded; what does not fit any more is not shared.

use std::sync::Arc;

use crate::collections::by_text::ByText;

/// The names.
#[derive(Debug)]
pub(crate) struct NameCache {
    known: ByText<Arc<str>>,
    room: usize,
}

/// More than the plugins and commands of any node; a pod cannot add to them, only a plugin that runs ever new programs.
const MAX_NAMES: usize = 1_024;
/// Longer ones are no usual names and would let few entries take much room.
const MAX_BYTES: usize = 96;

impl Default for NameCache {
    fn default() -> NameCache {
        NameCache {
            known: ByText::new(MAX_NAMES),
            room: MAX_NAMES,
        }
    }
}

impl NameCache {
    /// The name, shared with everyone who has asked for it before.
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
