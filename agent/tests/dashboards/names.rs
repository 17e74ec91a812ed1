//! Every metric, label and label value that dashboards and rules name exists in what the agent really serves.

use std::collections::{BTreeMap, BTreeSet};

use super::documents::{self, Query};
use super::promql::{self, Selector};
use super::{documents::RULE_FILES, node};

// ---- PENDING: delete each line when its code is merged; the test below names it. ---------------------------------
// Families that dashboards and alerts already use and whose code is yet to come: kind, name, labels. None at present.
pub const PENDING: &[(&str, &str, &[&str])] = &[];
// ---- end of PENDING ------------------------------------------------------------------------------------------------

/// Labels that Prometheus and its scrape configuration add.
const TARGET_LABELS: [&str; 4] = ["cluster", "job", "node", "instance"];
/// Series that Prometheus itself makes.
const OF_PROMETHEUS: [&str; 1] = ["up"];

/// What is known of a series: its labels, and of each the values seen; `None` when the code is not merged.
type Known = BTreeMap<String, Option<BTreeMap<String, BTreeSet<String>>>>;

/// The family of a series: without what the kind of family adds.
pub fn is_pending(metric: &str) -> bool {
    PENDING
        .iter()
        .any(|(kind, family, _)| series_of(kind, family).contains(&metric.to_owned()))
}

fn series_of(kind: &str, family: &str) -> Vec<String> {
    match kind {
        "counter" => vec![format!("{family}_total")],
        "histogram" => ["_bucket", "_count", "_sum"]
            .map(|suffix| format!("{family}{suffix}"))
            .into(),
        _ => vec![family.to_owned()],
    }
}

fn pending_labels(metric: &str) -> BTreeSet<String> {
    let families = PENDING
        .iter()
        .filter(|(kind, family, _)| series_of(kind, family).contains(&metric.to_owned()));
    let mut labels: BTreeSet<String> = families
        .flat_map(|(_, _, labels)| *labels)
        .map(|label| (*label).to_owned())
        .collect();
    if metric.ends_with("_bucket") {
        labels.insert("le".to_owned());
    }
    labels
}

/// Everything the agent serves.
fn served() -> Known {
    let mut known: Known = node::rendering()
        .series()
        .into_iter()
        .map(|(name, labels)| (name, Some(labels)))
        .collect();
    for (kind, family, _) in PENDING {
        for series in series_of(kind, family) {
            known.entry(series).or_insert(None);
        }
    }
    known
}

/// What is wrong with a selector; `recorded` are the names that recording rules make.
fn complaints(selector: &Selector, known: &Known, recorded: &BTreeSet<String>) -> Vec<String> {
    let metric = &selector.metric;
    if recorded.contains(metric) || OF_PROMETHEUS.contains(&metric.as_str()) {
        return Vec::new();
    }
    let Some(found) = known.get(metric) else {
        return vec![format!("the agent has no {metric}")];
    };
    let mut complaints = Vec::new();
    for matcher in &selector.matchers {
        let label = &matcher.label;
        if TARGET_LABELS.contains(&label.as_str()) {
            continue;
        }
        match found {
            None if !pending_labels(metric).contains(label) => {
                complaints.push(format!("{metric} has no label {label}"))
            }
            None => {}
            Some(labels) => match labels.get(label) {
                None => complaints.push(format!("no sample of {metric} has a label {label}")),
                Some(values) if matches!(matcher.operator.as_str(), "=" | "!=") && !values.contains(&matcher.value) => {
                    complaints.push(format!("no {label} of {metric} is {}: {values:?}", matcher.value));
                }
                Some(_) => {}
            },
        }
    }
    complaints
}

/// Labels that an expression may group by: those of its metrics, those of the target, those its rule adds.
fn grouping_complaints(query: &Query, known: &Known, recorded: &BTreeSet<String>) -> Vec<String> {
    let named = promql::names(&query.text);
    let mut allowed: BTreeSet<String> = TARGET_LABELS.iter().map(|label| (*label).to_owned()).collect();
    for selector in &named.selectors {
        if recorded.contains(&selector.metric) {
            // `level:metric:operation`: the level is the labels that are left.
            allowed.extend(selector.metric.split(':').next().unwrap().split('_').map(str::to_owned));
            allowed.insert("le".to_owned());
        }
        match known.get(&selector.metric) {
            Some(Some(labels)) => allowed.extend(labels.keys().cloned()),
            Some(None) => allowed.extend(pending_labels(&selector.metric)),
            None => {}
        }
    }
    let unknown = named.labels.iter().filter(|label| !allowed.contains(*label));
    unknown
        .map(|label| format!("nothing selected has the label {label}"))
        .collect()
}

fn recorded() -> BTreeSet<String> {
    let rules = RULE_FILES.into_iter().flat_map(documents::rules);
    rules.filter(|rule| !rule.is_alert).map(|rule| rule.name).collect()
}

fn everything() -> Vec<Query> {
    let mut all = documents::queries();
    for file in RULE_FILES {
        all.extend(documents::rules(file).into_iter().map(|rule| Query {
            place: format!("{file}: {}", rule.name),
            text: rule.text,
        }));
    }
    all
}

#[test]
fn every_metric_label_and_value_in_dashboards_and_rules_exists() {
    let (known, recorded) = (served(), recorded());
    let mut wrong = Vec::new();
    let mut selectors = 0;
    for query in everything() {
        let found = promql::names(&query.text).selectors;
        selectors += found.len();
        let complaints = found
            .iter()
            .flat_map(|selector| complaints(selector, &known, &recorded));
        let all = complaints.chain(grouping_complaints(&query, &known, &recorded));
        wrong.extend(all.map(|complaint| format!("{}: {complaint}", query.place)));
    }
    assert!(selectors > 200, "only {selectors} selectors were found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn what_is_merged_is_not_called_pending() {
    let served = node::rendering().series();
    let merged: Vec<&str> = PENDING
        .iter()
        .filter(|(kind, family, _)| series_of(kind, family).iter().any(|series| served.contains_key(series)))
        .map(|(_, family, _)| *family)
        .collect();
    assert!(
        merged.is_empty(),
        "these exist now: delete them from PENDING in names.rs: {merged:?}"
    );
}

#[test]
fn a_wrong_name_label_or_value_is_found() {
    let (known, recorded) = (served(), recorded());
    let of = |text: &str| {
        let named = promql::names(text);
        let wrong: Vec<String> = named
            .selectors
            .iter()
            .flat_map(|one| complaints(one, &known, &recorded))
            .collect();
        let query = Query {
            place: String::new(),
            text: text.to_owned(),
        };
        wrong.len() + grouping_complaints(&query, &known, &recorded).len()
    };
    assert_eq!(of("sandglass_events_total{node=\"x\"}"), 0);
    assert_eq!(of("sandglass_events"), 1);
    assert_eq!(of("sandglass_cni_operation_errors_total{verb=\"ADD\"}"), 1);
    assert_eq!(
        of("sandglass_cni_operation_duration_seconds_count{operation=\"add\"}"),
        1
    );
    assert_eq!(of("sum by (pod) (sandglass_events_total)"), 1);
}

#[test]
fn the_agents_own_text_passes_promtool() {
    let test = "the_agents_own_text_passes_promtool";
    if !sandglass_lab::skip::has(test, "promtool") {
        return;
    }
    for (name, exposition) in node::renderings() {
        // promtool reads the older text format, which has neither exemplars nor an end, and in which the name of a
        // counter's family ends as its samples do.
        let mut text = String::new();
        for line in exposition.text().lines().filter(|line| *line != "# EOF") {
            let line = line.split(" # ").next().unwrap();
            text.push_str(line);
            text.push('\n');
        }
        for (family, content) in &exposition.families {
            let suffix = match content.kind.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => continue,
            };
            for word in ["HELP", "TYPE"] {
                text = text.replace(&format!("# {word} {family} "), &format!("# {word} {family}{suffix} "));
            }
        }
        let text = text.replace("_info info\n", "_info gauge\n");
        let (good, output) = sandglass_lab::peers::feed("promtool", &["check", "metrics"], &text);
        assert!(good && output.is_empty(), "{name}: {output}");
    }
}

#[test]
fn selectors_labels_and_calls_are_distinguished() {
    let text = "topk(3, sum by (node, le) (rate(a_total{x=\"1\", y=~\"b|}\"}[5m])) / on (node) group_left () up) \
                or 0 * count_values(\"v\", c:d:rate5m) > 1e9";
    let named = promql::names(text);
    let metrics: Vec<&str> = named
        .selectors
        .iter()
        .map(|selector| selector.metric.as_str())
        .collect();
    assert_eq!(metrics, ["a_total", "up", "c:d:rate5m"]);
    let matcher = |label: &str, operator: &str, value: &str| promql::Matcher {
        label: label.into(),
        operator: operator.into(),
        value: value.into(),
    };
    assert_eq!(
        named.selectors[0].matchers,
        [matcher("x", "=", "1"), matcher("y", "=~", "b|}")]
    );
    assert_eq!(named.labels, ["node", "le", "node"]);
    assert_eq!(named.calls, ["topk", "sum", "rate", "count_values"]);
    assert_eq!(promql::ranges(text), [("rate".to_owned(), "5m".to_owned())]);
    assert_eq!(
        promql::ranges("increase(x{a=\"(\"}[$__range])"),
        [("increase".to_owned(), "$__range".to_owned())]
    );
}
