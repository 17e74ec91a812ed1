//! Names and units of pushed metrics, by OpenTelemetry's mapping of Prometheus' names
//! (<https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>).
//!
//! `sandglass_cni_operation_duration_seconds` of the scrape is `sandglass.cni_operation_duration` in `s` here, and a receiver
//! that maps back by that text, as Prometheus and the Collector do, has the name of the scrape again. Does not: rename further.

use crate::sinks::prometheus::{FamilyKind, MetricFamily};

/// Name and unit of a metric. Without `_seconds` or `_bytes` the unit is empty: `1` would become the suffix `_ratio`.
pub(super) fn name_and_unit(family: &MetricFamily) -> (String, &'static str) {
    let name = match family.name.strip_prefix("sandglass_") {
        Some(rest) => format!("sandglass.{rest}"),
        None => family.name.clone(),
    };
    if family.kind == FamilyKind::Info {
        return (format!("{name}_info"), "");
    }
    for (suffix, unit) in [("_seconds", "s"), ("_bytes", "By")] {
        if let Some(bare) = name.strip_suffix(suffix) {
            return (bare.to_owned(), unit);
        }
    }
    (name, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_unit_and_suffix() {
        for (name, kind, mapped, unit) in [
            ("sandglass_wait_seconds", FamilyKind::Histogram, "sandglass.wait", "s"),
            ("sandglass_spool_bytes", FamilyKind::Gauge, "sandglass.spool", "By"),
            ("sandglass_orphans", FamilyKind::Counter, "sandglass.orphans", ""),
            ("sandglass_build", FamilyKind::Info, "sandglass.build_info", ""),
            (
                "sandglass_seconds_left",
                FamilyKind::Gauge,
                "sandglass.seconds_left",
                "",
            ),
        ] {
            let family = MetricFamily {
                name: name.to_owned(),
                help: String::new(),
                kind,
                series: Vec::new(),
            };
            assert_eq!(name_and_unit(&family), (mapped.to_owned(), unit));
        }
    }
}
