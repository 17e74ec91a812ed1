//! The status of a probe, as the health page and `sandglass doctor` show it.
//!
//! Used by every probe of the Linux source when it starts. Does not: publish it.

use super::loader::error::LoadError;
use crate::failure::causes_in_short;
use crate::health::ProbeStatus;

/// A probe that is attached and sees all that it should. A caller that knows of a restriction adds consequence and hint.
pub fn attached(probe: &str, hook: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: hook.to_owned(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    }
}

/// A probe that is not attached: `consequence` is what traces and metrics lack, `hint` what an operator can do.
pub fn missing(probe: &str, consequence: String, hint: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence,
        hint: hint.to_owned(),
    }
}

/// A probe that could not be attached.
pub fn unavailable(probe: &str, consequence: &str, hint: &str, error: &LoadError) -> ProbeStatus {
    missing(probe, format!("{consequence}: {}", causes_in_short(error)), hint)
}

/// A probe that the configuration switches off with `key`.
pub fn switched_off(probe: &str, consequence: &str, key: &str) -> ProbeStatus {
    missing(
        probe,
        format!("{consequence}: switched off"),
        &format!("set {key} to true"),
    )
}
