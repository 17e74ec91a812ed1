//! The registry's state as values, for the push of metrics: the text of a scrape, parsed again.
//!
//! The text encoder is the only traversal of the registry that needs no further crates: the client library's protobuf encoding
//! brings a compiler of `.proto` files. Histograms are not parsed: their sample is a position in the list that
//! [`super::durations::collecting`] returns. Does not: know OTLP (`sinks::otlp::push` does), or parse the text of others.

use super::durations::PushedDurations;

/// One metric with its series.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// Name as in the scrape, without the suffix of counters and info metrics.
    pub name: String,
    /// The help text.
    pub help: String,
    /// What it is.
    pub kind: FamilyKind,
    /// Its series; not empty.
    pub series: Vec<MetricSeries>,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Always 1; its labels are what it says.
    Info,
    /// A histogram of durations.
    Histogram,
}

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSeries {
    /// Labels in the order of the text.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: SeriesValue,
}

/// Value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesValue {
    /// A whole number.
    Int(i64),
    /// Any other number.
    Double(f64),
    /// A histogram.
    Durations(Box<PushedDurations>),
}

/// Parses the text of a registry, whose histograms are `durations`. A line of another form, which the encoder does not write,
/// is left out.
pub(super) fn parse(text: &str, mut durations: Vec<PushedDurations>) -> Vec<MetricFamily> {
    let mut families: Vec<MetricFamily> = Vec::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            if let Some((name, kind)) = rest
                .split_once(' ')
                .and_then(|(name, kind)| Some((name, kind_of(kind)?)))
            {
                families.push(MetricFamily {
                    name: name.to_owned(),
                    help: help.to_owned(),
                    kind,
                    series: Vec::new(),
                });
            }
        } else if !line.starts_with('#')
            && let Some(family) = families.last_mut()
            && let Some(series) = sample(line, family, &mut durations)
        {
            family.series.push(series);
        }
    }
    families.retain(|family| !family.series.is_empty());
    families
}

fn kind_of(name: &str) -> Option<FamilyKind> {
    match name {
        "counter" => Some(FamilyKind::Counter),
        "gauge" => Some(FamilyKind::Gauge),
        "info" => Some(FamilyKind::Info),
        "histogram" => Some(FamilyKind::Histogram),
        _ => None,
    }
}

/// `name{labels} value`; an exemplar after the value is left out.
fn sample(line: &str, family: &MetricFamily, durations: &mut [PushedDurations]) -> Option<MetricSeries> {
    let suffix = match family.kind {
        FamilyKind::Counter => "_total",
        FamilyKind::Info => "_info",
        FamilyKind::Gauge | FamilyKind::Histogram => "",
    };
    let rest = line.strip_prefix(&family.name)?.strip_prefix(suffix)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let number = rest.strip_prefix(' ')?.split(' ').next()?;
    let value = match (family.kind, number.parse::<i64>()) {
        (FamilyKind::Histogram, position) => {
            let position = usize::try_from(position.ok()?).ok()?;
            SeriesValue::Durations(Box::new(std::mem::take(durations.get_mut(position)?)))
        }
        (_, Ok(number)) => SeriesValue::Int(number),
        (_, Err(_)) => SeriesValue::Double(number.parse().ok()?),
    };
    Some(MetricSeries { labels, value })
}

/// Label pairs with their values unescaped, and what comes after the closing brace.
fn labels(text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut escaped = false;
        let mut end = None;
        for (at, char) in after.char_indices() {
            match char {
                'n' if escaped => value.push('\n'),
                _ if escaped => value.push(char),
                '\\' => {}
                '"' => {
                    end = Some(at + 1);
                    break;
                }
                _ => value.push(char),
            }
            escaped = char == '\\' && !escaped;
        }
        labels.push((key.to_owned(), value));
        rest = after.get(end?..)?;
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::Registry;
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    use super::super::durations::{Buckets, collecting, durations, observe};
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct TextLabels {
        text: String,
        other: &'static str,
    }

    fn families(registry: &Registry) -> Vec<MetricFamily> {
        let mut text = String::new();
        let (result, collected) = collecting(|| prometheus_client::encoding::text::encode(&mut text, registry));
        result.unwrap();
        parse(&text, collected)
    }

    #[test]
    fn kinds_and_values() {
        let mut registry = Registry::with_prefix("sandglass");
        let labels = |text: &str| TextLabels {
            text: text.to_owned(),
            other: "x",
        };
        Registry::register(&mut registry, "build", "What it is", Info::new(labels("1")));
        let seconds = Counter::<f64, std::sync::atomic::AtomicU64>::default();
        seconds.inc_by(1.25);
        Registry::register(&mut registry, "used_seconds", "Used", seconds);
        let timed = durations(Buckets::AndExponential);
        observe(&timed, &labels("slow"), 2_500_000_000, None);
        observe(&timed, &labels("fast"), 1_000_000, None);
        Registry::register(&mut registry, "taken_seconds", "Taken", timed);
        Registry::register(
            &mut registry,
            "none",
            "Nothing",
            Family::<TextLabels, Counter>::default(),
        );
        let found = families(&registry);
        let kinds: Vec<_> = found.iter().map(|family| (family.name.as_str(), family.kind)).collect();
        assert_eq!(
            kinds,
            [
                ("sandglass_build", FamilyKind::Info),
                ("sandglass_used_seconds", FamilyKind::Counter),
                ("sandglass_taken_seconds", FamilyKind::Histogram),
            ]
        );
        assert_eq!(found[0].help, "What it is.");
        assert_eq!(found[0].series[0].value, SeriesValue::Int(1));
        assert_eq!(found[1].series[0].value, SeriesValue::Double(1.25));
        for series in &found[2].series {
            let SeriesValue::Durations(pushed) = &series.value else {
                panic!("{series:?}")
            };
            let expected = if series.labels[0].1 == "slow" { 2.5 } else { 0.001 };
            assert_eq!((pushed.histogram.count, pushed.histogram.sum), (1, expected));
        }
    }

    #[test]
    fn a_scrape_after_a_push_has_its_classic_buckets() {
        let mut registry = Registry::default();
        let timed = durations(Buckets::AndExponential);
        observe(
            &timed,
            &TextLabels {
                text: String::new(),
                other: "",
            },
            1_000,
            None,
        );
        Registry::register(&mut registry, "taken_seconds", "Taken", timed);
        let _ = families(&registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("taken_seconds_bucket{le=\"0.001\""), "{text}");
    }

    proptest! {
        /// Whatever a label holds: names of plugins come from a node's configuration.
        #[test]
        fn labels_come_back(texts in prop::collection::hash_set("(?s).{0,20}", 1..5)) {
            let counters = Family::<TextLabels, Counter>::default();
            for text in &texts {
                counters.get_or_create(&TextLabels { text: text.clone(), other: "}\"{" }).inc();
            }
            let mut registry = Registry::default();
            Registry::register(&mut registry, "count", "Count", counters);
            let found = families(&registry);
            let mut back: Vec<String> = found[0].series.iter().map(|series| series.labels[0].1.clone()).collect();
            let mut texts: Vec<String> = texts.into_iter().collect();
            back.sort();
            texts.sort();
            prop_assert_eq!(back, texts);
        }
    }
}
