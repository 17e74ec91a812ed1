//! Whether the node's CNI configuration can be used, since when, and how long a new node waited for it.
//!
//! The watch of the configuration (`app::networks`) and the fan-out report here; `/metrics` and `/api/v1/health` read.
//! Part of `Health`. Nothing is shown before the first report, so a replay has none of it.
//! Does not: read files or judge them (`cni_conf` does).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use sandglass_model::{ClockAnchor, Timestamp};
use serde::Serialize;

use crate::cni_conf::{Problem, ProblemKind};

/// An agent that starts later than this after boot is on no new node: the first ADD was earlier.
const NEW_NODE_NS: u64 = 600_000_000_000;

/// The state, shared by those who report and those who show it; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CniState(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Both clocks at the newest report.
    anchor: Option<ClockAnchor>,
    is_new_node: bool,
    problems: Vec<Problem>,
    usable_since: Option<Timestamp>,
    first_usable: Option<Timestamp>,
    first_add: Option<Timestamp>,
}

/// The state as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CniReport {
    /// What keeps sandboxes from getting a network.
    pub problems: Vec<Problem>,
    /// When the configuration became usable, nanoseconds since 1970 as text; `null` while it is not.
    pub usable_since_unix_ns: Option<String>,
}

impl CniState {
    /// The configuration was judged. `changed_unix_ns` is the newest time of its files, `now` both clocks. Problems that begin
    /// or end are logged.
    pub fn judged(&self, problems: &[Problem], changed_unix_ns: u64, now: ClockAnchor) {
        let mut inner = self.lock();
        for problem in problems.iter().filter(|problem| !inner.problems.contains(problem)) {
            tracing::warn!(problem = problem.kind.as_str(), "CNI configuration: {}", problem.text);
        }
        for problem in inner.problems.iter().filter(|problem| !problems.contains(problem)) {
            tracing::info!(
                problem = problem.kind.as_str(),
                "CNI configuration, mended: {}",
                problem.text
            );
        }
        let at = Timestamp(now.boot_ns);
        if inner.anchor.is_none() {
            inner.is_new_node = at.0 <= NEW_NODE_NS;
        }
        let is_usable = !problems
            .iter()
            .any(|problem| problem.kind.stops_sandboxes() && problem.handlers.is_empty());
        // Files older than the boot were there all the time; a copied file may have a time to come.
        let age = now.unix_ns.saturating_sub(changed_unix_ns);
        let began = Timestamp(now.boot_ns.saturating_sub(age));
        inner.usable_since = is_usable.then(|| inner.usable_since.unwrap_or(began));
        inner.first_usable = inner.first_usable.or(inner.usable_since);
        inner.anchor = Some(now);
        inner.problems = problems.to_vec();
    }

    /// An ADD succeeded at `at`.
    pub fn added(&self, at: Timestamp) {
        self.lock().first_add.get_or_insert(at);
    }

    /// For `/api/v1/health`; `None` before the first report.
    #[must_use]
    pub fn report(&self) -> Option<CniReport> {
        let inner = self.lock();
        let anchor = inner.anchor?;
        Some(CniReport {
            problems: inner.problems.clone(),
            usable_since_unix_ns: inner.usable_since.map(|since| anchor.unix_ns(since).to_string()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for CniState {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let inner = self.lock();
        let Some(anchor) = inner.anchor else {
            return Ok(());
        };
        let mut family = encoder.encode_descriptor(
            "cni_config_problems",
            "What keeps sandboxes from getting a network, in configuration and plugin directories",
            None,
            MetricType::Gauge,
        )?;
        for kind in ProblemKind::ALL {
            let count = inner.problems.iter().filter(|problem| problem.kind == kind).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(family.encode_family(&[("problem", kind.as_str())])?)?;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let since = inner.usable_since.map_or(0.0, |since| seconds(anchor.unix_ns(since)));
        let family = encoder.encode_descriptor(
            "cni_config_usable_timestamp_seconds",
            "When the CNI configuration became usable; 0 while it is not",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(since).encode(family)?;
        if !inner.is_new_node {
            return Ok(());
        }
        if let Some(first) = inner.first_usable {
            let family = encoder.encode_descriptor(
                "node_first_cni_config_seconds",
                "From boot to the first usable CNI configuration, on a node whose agent started with it",
                None,
                MetricType::Gauge,
            )?;
            ConstGauge::new(seconds(first.0)).encode(family)?;
        }
        if let Some(first) = inner.first_add {
            let family = encoder.encode_descriptor(
                "node_first_cni_add_seconds",
                "From boot to the first CNI ADD that succeeded, on a node whose agent started with it",
                None,
                MetricType::Gauge,
            )?;
            ConstGauge::new(seconds(first.0)).encode(family)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn at(minutes: u64) -> ClockAnchor {
        ClockAnchor {
            boot_ns: minutes * MINUTE,
            unix_ns: (1_000 + minutes) * MINUTE,
        }
    }

    fn missing() -> Vec<Problem> {
        vec![Problem {
            kind: ProblemKind::NoPlugin,
            text: "no plugin \"bridge\" in /opt/cni/bin".to_owned(),
            handlers: Vec::new(),
        }]
    }

    fn text(state: &CniState) -> String {
        let mut registry = Registry::with_prefix("sandglass");
        registry.register_collector(Box::new(state.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_new_node_waits_for_its_configuration_and_its_first_add() {
        let state = CniState::default();
        assert_eq!((state.report(), text(&state).contains("cni_config")), (None, false));
        state.judged(&missing(), 0, at(1));
        assert_eq!(state.report().unwrap().usable_since_unix_ns, None);
        let shown = text(&state);
        assert!(
            shown.contains("sandglass_cni_config_problems{problem=\"no_plugin\"} 1"),
            "{shown}"
        );
        assert!(
            shown.contains("sandglass_cni_config_problems{problem=\"bad_file\"} 0"),
            "{shown}"
        );
        assert!(
            shown.contains("sandglass_cni_config_usable_timestamp_seconds 0"),
            "{shown}"
        );
        assert!(!shown.contains("node_first"), "{shown}");
        state.judged(&[], at(2).unix_ns, at(3));
        state.added(Timestamp(4 * MINUTE));
        state.added(Timestamp(5 * MINUTE));
        let since = state.report().unwrap().usable_since_unix_ns.unwrap();
        assert_eq!(since, (1_002 * MINUTE).to_string());
        let shown = text(&state);
        assert!(shown.contains("sandglass_node_first_cni_config_seconds 120"), "{shown}");
        assert!(shown.contains("sandglass_node_first_cni_add_seconds 240"), "{shown}");
        // It breaks and is mended: since when changes, what was first does not.
        state.judged(&missing(), at(6).unix_ns, at(6));
        state.judged(&[], at(7).unix_ns, at(7));
        assert_eq!(
            state.report().unwrap().usable_since_unix_ns.unwrap(),
            (1_007 * MINUTE).to_string()
        );
        assert!(text(&state).contains("sandglass_node_first_cni_config_seconds 120"));
    }

    #[test]
    fn a_node_that_ran_before_its_agent_has_no_first_times() {
        let state = CniState::default();
        state.judged(&[], 5, at(900));
        state.added(Timestamp(901 * MINUTE));
        assert!(!text(&state).contains("node_first"));
        assert_eq!(
            state.report().unwrap().usable_since_unix_ns.unwrap(),
            (1_000 * MINUTE).to_string()
        );
    }
}
