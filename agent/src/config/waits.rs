//! `waits`: whether, and from when on, the agent records what a plugin and its commands wait for.
//!
//! Used by [`super::Config`].

use serde::{Deserialize, Serialize};

use super::Period;

/// `waits`: why a plugin took its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WaitsConfig {
    /// Record waits.
    pub enabled: bool,
    /// How long a plugin runs before its waits are recorded; 0 records always.
    pub after: Period,
}
