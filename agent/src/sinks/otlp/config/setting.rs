//! A setting before it is parsed: its text, and which origin it is from.
//!
//! Made by `layers.rs`, parsed by `parse.rs`. Does not: know what a value means.

use super::SettingError;

/// The text of a setting, and its origin.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) value: String,
    /// Name of the origin for errors: `OTEL_...`, `the flag for otlp.endpoint` or `otlp.endpoint`.
    pub(super) origin: String,
    pub(super) kind: SettingOrigin,
}

/// Kind of origin; only endpoints differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettingOrigin {
    /// A flag or the file.
    Own,
    /// `OTEL_EXPORTER_OTLP_*`.
    General,
    /// `OTEL_EXPORTER_OTLP_TRACES_*` or `OTEL_EXPORTER_OTLP_METRICS_*`.
    OfSignal,
}

impl Setting {
    /// The error for a value that cannot be used.
    pub(super) fn refuse(&self, problem: impl Into<String>, hint: &'static str) -> SettingError {
        SettingError::Value {
            origin: self.origin.clone(),
            problem: problem.into(),
            hint,
        }
    }
}
