//! `windows`: settings of Windows nodes, without effect elsewhere.
//!
//! Used by [`super::Config`]. Defaults: [`super::defaults`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, Period};

/// `windows`: settings of Windows nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowsConfig {
    /// How long after its start the agent records flows of the virtual switch (VFP), which are many; `0s`: never.
    pub vfp: Period,
    /// A table of names of HNS's and HCS's activities, added to the agent's own; see docs/windows.md.
    pub activities: Option<PathBuf>,
}

impl WindowsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.vfp > LONGEST_VFP {
            return Err(ConfigError::value(
                "windows.vfp",
                "must be 10m at most: a busy node logs a megabyte of flows a second",
            ));
        }
        Ok(())
    }
}

/// The repository microsoft/SDN and others report traces of 46 to 149 MB in 30 to 60 seconds.
const LONGEST_VFP: Period = Period::from_secs(600);
