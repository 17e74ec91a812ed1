//! Settings of the push of metrics: whether, how often, and with which temporality.
//!
//! Off unless it is asked for: a collector that takes traces may have no use for metrics, and the node is scraped. Variables
//! besides those of the connection: `OTEL_METRICS_EXPORTER`, `OTEL_METRIC_EXPORT_INTERVAL`,
//! `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`
//! (<https://opentelemetry.io/docs/specs/otel/metrics/sdk_exporters/otlp/>). Does not: resolve the connection.

use std::time::Duration;

use super::layers::SettingLayers;
use super::{Connection, NO_ENDPOINT, Resolution, ResourceAttributes, SettingError, Settings, Signal, defaults};

/// Complete settings of the push.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// The way to the collector.
    pub connection: Connection,
    /// `service.name` from the environment; `None` for the node's.
    pub service: Option<String>,
    /// Attributes added to the resource.
    pub resource: ResourceAttributes,
    /// Time between two pushes.
    pub interval: Duration,
    /// What a value counts.
    pub temporality: Temporality,
}

/// What the values of counters and histograms count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temporality {
    /// Everything since the agent started.
    Cumulative,
    /// What came since the push before.
    Delta,
    /// As `Delta`, except for counters whose value is read only when they are exported: those are cumulative, as it takes
    /// memory to subtract them.
    LowMemory,
}

/// Resolves the three origins; `env` looks up one environment variable.
///
/// # Errors
/// A value is not allowed.
pub fn resolve_push(
    flags: &Settings,
    env: &dyn Fn(&str) -> Option<String>,
    file: &Settings,
) -> Result<Resolution<PushOptions>, SettingError> {
    let signal = Signal::Metrics;
    let layers = SettingLayers {
        flags,
        env,
        file,
        signal,
    };
    // Before the rest: a wrong value is an error also where nothing is pushed yet.
    let (interval, temporality) = (layers.interval()?, layers.temporality()?);
    if let Err(reason) = layers.is_pushed() {
        return Ok(Resolution::Off(reason));
    }
    let Some(connection) = layers.connection()? else {
        return Ok(Resolution::Off(NO_ENDPOINT.to_owned()));
    };
    let (service, resource) = layers.resource()?;
    Ok(Resolution::On(Box::new(PushOptions {
        connection,
        service,
        resource,
        interval,
        temporality,
    })))
}

impl SettingLayers<'_> {
    /// The error says why not.
    fn is_pushed(&self) -> Result<(), String> {
        if let Some(reason) = self.sdk_disabled() {
            return Err(reason);
        }
        let own = |wanted: bool, origin: &str| wanted.then_some(()).ok_or(format!("{origin} is false"));
        match (
            self.flags.metrics,
            self.exporter("OTEL_METRICS_EXPORTER"),
            self.file.metrics,
        ) {
            (Some(wanted), ..) => own(wanted, "the flag for otlp.metrics"),
            (None, Some(by_variable), _) => by_variable,
            (None, None, Some(wanted)) => own(wanted, "otlp.metrics"),
            (None, None, None) if self.variable_of_signal("ENDPOINT").is_some() => Ok(()),
            (None, None, None) => Err("otlp.metrics is not set".to_owned()),
        }
    }

    fn interval(&self) -> Result<Duration, SettingError> {
        let (least, most) = (100, 3_600_000);
        if self.flags.metrics_interval_ms.is_none()
            && let Some(found) = self.variable("OTEL_METRIC_EXPORT_INTERVAL")
        {
            return match found.value.parse() {
                Ok(millis) if (least..=most).contains(&millis) => Ok(Duration::from_millis(millis)),
                _ => Err(found.refuse(
                    format!(
                        "{:?} is not a number of milliseconds from {least} to {most}",
                        found.value
                    ),
                    "write milliseconds, e.g. 60000",
                )),
            };
        }
        let millis = self.number(
            "metrics_interval_ms",
            |settings| settings.metrics_interval_ms,
            least,
            most,
            defaults::METRICS_INTERVAL.as_millis() as u64,
        )?;
        Ok(Duration::from_millis(millis))
    }

    fn temporality(&self) -> Result<Temporality, SettingError> {
        let found = self.text("metrics_temporality", "TEMPORALITY_PREFERENCE", |settings| {
            settings.metrics_temporality.clone()
        });
        let Some(found) = found else {
            return Ok(Temporality::Cumulative);
        };
        match found.value.to_ascii_lowercase().as_str() {
            "cumulative" => Ok(Temporality::Cumulative),
            "delta" => Ok(Temporality::Delta),
            "lowmemory" => Ok(Temporality::LowMemory),
            other => Err(found.refuse(
                format!("{other:?} is no temporality"),
                "use cumulative, delta or lowmemory",
            )),
        }
    }
}
