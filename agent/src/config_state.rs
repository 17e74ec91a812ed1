//! Which configuration the agent runs with: its hash, when it was loaded, why a newer one was refused, and which of its keys
//! need a restart.
//!
//! `commands/reload.rs` reports here; `/metrics` and `/api/v1/health` read. Part of `Health`. Nothing is shown before the first
//! report, so a replay has none of it. Does not: read the configuration, or hold one of its values.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

/// The state, shared by those who report and those who show it; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConfigState(Arc<Mutex<Option<Inner>>>);

#[derive(Clone, Debug)]
struct Inner {
    hash: u64,
    loaded_unix_ns: u64,
    refused: Option<String>,
    needs_restart: Vec<String>,
}

/// The state as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigReport {
    /// Hash of the keys and values of the configuration that was loaded last, secrets left out; 12 hexadecimal digits.
    pub hash: String,
    /// When it was loaded, nanoseconds since 1970 as text.
    pub loaded_unix_ns: String,
    /// Why the file as it is now was refused, with the hint; `null` if it was not.
    pub refused: Option<String>,
    /// Keys that have another value than at the start and take effect at the next one.
    pub needs_restart: Vec<String>,
}

impl ConfigState {
    /// A configuration was loaded. Only the low 48 bits of `hash` are shown: a number in `/metrics` is exact up to 2^53.
    pub fn loaded(&self, hash: u64, unix_ns: u64, needs_restart: Vec<String>) {
        *self.lock() = Some(Inner {
            hash: hash & HASH_BITS,
            loaded_unix_ns: unix_ns,
            refused: None,
            needs_restart,
        });
    }

    /// The file was refused; the configuration that was loaded before stays.
    pub fn refused(&self, reason: String) {
        if let Some(inner) = &mut *self.lock() {
            inner.refused = Some(reason);
        }
    }

    /// For `/api/v1/health`; `None` before the first report.
    #[must_use]
    pub fn report(&self) -> Option<ConfigReport> {
        self.lock().clone().map(|inner| ConfigReport {
            hash: format!("{:012x}", inner.hash),
            loaded_unix_ns: inner.loaded_unix_ns.to_string(),
            refused: inner.refused,
            needs_restart: inner.needs_restart,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Inner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for ConfigState {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(inner) = self.lock().clone() else {
            return Ok(());
        };
        let family = encoder.encode_descriptor(
            "config_last_reload_successful",
            "1 if the agent runs with the configuration file as it is now, 0 while the file is refused and an older one stays",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::from(inner.refused.is_none())).encode(family)?;
        let family = encoder.encode_descriptor(
            "config_last_reload_success_timestamp_seconds",
            "When the configuration was loaded last",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(inner.loaded_unix_ns as f64 / 1e9).encode(family)?;
        let family = encoder.encode_descriptor(
            "config_hash",
            "Hash of the keys and values of the configuration that was loaded last, secrets left out",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::try_from(inner.hash).unwrap_or_default()).encode(family)?;
        if inner.needs_restart.is_empty() {
            return Ok(());
        }
        let mut family = encoder.encode_descriptor(
            "config_needs_restart",
            "1 for each configuration key with a new value that takes effect at the next start",
            None,
            MetricType::Gauge,
        )?;
        for key in &inner.needs_restart {
            ConstGauge::new(1_i64).encode(family.encode_family(&[("key", key.as_str())])?)?;
        }
        Ok(())
    }
}

/// The bits of a hash that are shown.
const HASH_BITS: u64 = (1 << 48) - 1;

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn metrics(state: &ConfigState) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(state.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_refused_file_leaves_what_was_loaded() {
        let state = ConfigState::default();
        state.refused("nothing was loaded before".to_owned());
        assert_eq!(state.report(), None);
        assert!(!metrics(&state).contains("config"), "{}", metrics(&state));
        state.loaded(u64::MAX, 1_500_000_000, vec!["http.address".to_owned()]);
        state.refused("unknown key".to_owned());
        let report = state.report().unwrap();
        assert_eq!(
            (report.hash.as_str(), report.refused.as_deref()),
            ("ffffffffffff", Some("unknown key"))
        );
        let text = metrics(&state);
        for line in [
            "config_last_reload_successful 0",
            "config_last_reload_success_timestamp_seconds 1.5",
            "config_hash 281474976710655",
            "config_needs_restart{key=\"http.address\"} 1",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}: {text}");
        }
        state.loaded(7, 2_000_000_000, Vec::new());
        let text = metrics(&state);
        assert!(
            text.contains("config_last_reload_successful 1") && text.contains("config_hash 7"),
            "{text}"
        );
        assert!(!text.contains("config_needs_restart"), "{text}");
    }
}
