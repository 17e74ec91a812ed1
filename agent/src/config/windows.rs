//! `windows`: what is particular to Windows nodes; nothing of it does anything elsewhere.
//!
//! Used by [`super::Config`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, Period};

/// `windows`: what is particular to Windows nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowsConfig {
    /// For so long after its start the agent takes the flows of the virtual switch (VFP), which are many: `0s`, never.
    pub vfp: Period,
    /// What is known of names of HNS's and HCS's activities besides what the agent brings: a table, see docs/windows.md.
    pub activities: Option<PathBuf>,
}

impl Default for WindowsConfig {
    fn default() -> WindowsConfig {
        WindowsConfig {
            vfp: Period::from_secs(0),
            activities: None,
        }
    }
}

impl WindowsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.vfp > LONGEST_VFP {
            return Err(ConfigError::Value {
                key: "windows.vfp".to_owned(),
                problem: "must be 10m at most: a busy node logs a megabyte of flows a second".to_owned(),
            });
        }
        Ok(())
    }
}

/// microsoft/SDN and others report 46 to 149 MB in 30 to 60 seconds.
const LONGEST_VFP: Period = Period::from_secs(600);
