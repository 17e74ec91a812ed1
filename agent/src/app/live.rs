//! The settings that change while the agent runs, and the check that a new configuration passes before any of them does.
//!
//! Used by the reload of the configuration (`commands/reload.rs`). None of them is part of what the correlator does with an event:
//! a change loses nothing, and a recording replays as the live run did.
//! Does not: read the file, or decide when.

use crate::app::settings;
use crate::config::Config;
use crate::failure::Failure;
use crate::http::StuckAfter;
use crate::sinks::otlp::config::{self as otlp_config, Settings};
use crate::sinks::sampling::{Policy, Sampling};
use crate::sources::native;
use crate::view::Store;

/// Keys that take effect without a restart. The chart leaves them out of the checksum that restarts pods (`_agent.tpl`).
pub const LIVE_KEYS: [&str; 5] = [
    "correlation.stuck_after",
    "otlp.good_per_thousand",
    "otlp.sampling",
    "otlp.slow_ms",
    "store.max_traces",
];

/// The parts of a running agent that have these settings; cheap to clone.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    sampling: Option<Sampling>,
    store: Store,
    stuck_after: Option<StuckAfter>,
}

/// A configuration with which the agent would start.
#[derive(Debug)]
pub struct Checked<'a> {
    config: &'a Config,
    policy: Policy,
}

impl Checked<'_> {
    /// Judges what a start would: the values of all keys, those of export with the flags and the environment over them, and the
    /// files that they name on Windows. Addresses are not listened on, and certificates are not read.
    ///
    /// # Errors
    /// The agent would not start.
    pub fn new<'a>(config: &'a Config, otlp_flags: &Settings) -> Result<Checked<'a>, Failure> {
        settings::runtime_choice(config)?;
        native::Options::from_settings(settings::source_settings(config))?;
        let env = |name: &str| std::env::var(name).ok();
        otlp_config::resolve(otlp_flags, &env, &config.otlp)?;
        otlp_config::resolve_push(otlp_flags, &env, &config.otlp)?;
        Ok(Checked {
            config,
            policy: otlp_config::sampling(otlp_flags, &config.otlp)?,
        })
    }
}

impl LiveSettings {
    /// Those of an agent with these parts; one without export or without a server has no use for their keys.
    #[must_use]
    pub fn of(sampling: Option<Sampling>, store: Store, stuck_after: Option<StuckAfter>) -> LiveSettings {
        LiveSettings {
            sampling,
            store,
            stuck_after,
        }
    }

    /// Puts the values of [`LIVE_KEYS`] into force.
    pub fn apply(&self, new: &Checked<'_>) {
        if let Some(sampling) = &self.sampling {
            sampling.set_policy(new.policy);
        }
        self.store.set_max_traces(new.config.store.max_traces);
        if let Some(stuck_after) = &self.stuck_after {
            stuck_after.set(new.config.correlation.stuck_after.into());
        }
    }
}
