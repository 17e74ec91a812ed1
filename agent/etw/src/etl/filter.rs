//! Which records of a file are wanted: the others cost no decoding and no ordering.
//!
//! Used by the reader. Does not: leave out schema records, which the decoder needs.

use std::collections::HashSet;

use super::kernel_class::PROCESS_GROUP;
use crate::decoder::SCHEMA_RECORDS;
use crate::guid::Guid;

/// Which records are wanted. Schema records always are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Providers of manifest, TraceLogging and classic events; `None` for all.
    providers: Option<HashSet<Guid>>,
    /// Groups of the kernel logger, which has numbers in place of GUIDs; `None` for all.
    kernel_groups: Option<HashSet<u8>>,
}

impl Default for Filter {
    /// All providers; of the kernel logger the Process class, the only one that can be decoded without more tables.
    fn default() -> Self {
        Self {
            providers: None,
            kernel_groups: Some(HashSet::from([PROCESS_GROUP])),
        }
    }
}

impl Filter {
    /// Every record there is.
    pub const fn everything() -> Self {
        Self {
            providers: None,
            kernel_groups: None,
        }
    }

    /// Schema records, nothing else.
    pub fn schemas() -> Self {
        Self {
            providers: Some(HashSet::from([SCHEMA_RECORDS])),
            kernel_groups: Some(HashSet::new()),
        }
    }

    /// Only these providers, classic ones included; does not affect the kernel logger.
    #[must_use]
    pub fn only(self, providers: impl IntoIterator<Item = Guid>) -> Self {
        let mut wanted: HashSet<Guid> = providers.into_iter().collect();
        wanted.insert(SCHEMA_RECORDS);
        Self {
            providers: Some(wanted),
            ..self
        }
    }

    /// Whether records of a provider are wanted.
    pub(super) fn provider(&self, guid: Guid) -> bool {
        self.providers.as_ref().is_none_or(|wanted| wanted.contains(&guid))
    }

    /// Whether records of a group of the kernel logger are wanted.
    pub(super) fn kernel_group(&self, group: u8) -> bool {
        self.kernel_groups.as_ref().is_none_or(|wanted| wanted.contains(&group))
    }
}
