//! The queries to a Prometheus: every query of every panel, rule and alert, and the rule files with windows of seconds.
//!
//! Used with recordings (`queries.rs`) and with the agent in a real cluster (`tests/cluster/observed.rs`).
//!
//! Does not: know what has data where.

use std::fs;
use std::path::{Path, PathBuf};

use super::documents::{self, Query, RULE_FILES, WINDOW};
use super::promql;
use sandglass_lab::peers::Peer;

/// The rule files with windows and waits of seconds, in `into`.
pub fn shortened(into: &Path) -> Vec<PathBuf> {
    let files = RULE_FILES.map(|file| {
        let mut text = documents::read(&format!("rules/{file}"));
        for window in ["[10m]", "[30m]", "[1h]"] {
            text = text.replace(window, &format!("[{WINDOW}]"));
        }
        for slack in ["for: 1m", "for: 5m", "for: 10m"] {
            text = text.replace(slack, "for: 2s");
        }
        // Seconds of the window, where a rate becomes a number of cases.
        text = text.replace("600 * ", "8 * ");
        let path = into.join(file.replace('/', "-"));
        fs::write(&path, text).unwrap();
        path
    });
    files.into()
}

/// All queries: those of panels; series that rules record; what alerts select.
pub fn questions() -> Vec<Query> {
    let mut questions = documents::queries();
    for file in RULE_FILES {
        for rule in documents::rules(file) {
            let place = format!("{file}: {}", rule.name);
            if !rule.is_alert {
                let labels = rule.json["labels"].as_object().into_iter().flatten();
                let labels: Vec<String> = labels.map(|(label, value)| format!("{label}={value}")).collect();
                let text = format!("{}{{{}}}", rule.name, labels.join(","));
                questions.push(Query { place, text });
                continue;
            }
            // A healthy fleet makes no alert true: here it counts that there is something to judge.
            for selector in promql::names(&rule.text).selectors {
                let matchers = selector.matchers.iter();
                let matchers: Vec<String> = matchers
                    .map(|matcher| format!("{}{}\"{}\"", matcher.label, matcher.operator, matcher.value))
                    .collect();
                questions.push(Query {
                    place: place.clone(),
                    text: format!("{}{{{}}}", selector.metric, matchers.join(",")),
                });
            }
        }
    }
    questions
}

/// Whether there is data. A quantile of nothing is no number, and no answer either.
pub fn answered(prometheus: &Peer, query: &Query) -> bool {
    let data = prometheus.query(&query.text);
    data.is_ok_and(|samples| samples.iter().any(|(_, value)| !value.is_nan()))
}

pub fn every_rule_is_evaluated(prometheus: &Peer) {
    let rules = prometheus.api("rules").unwrap();
    let groups = rules["groups"].as_array().unwrap();
    let all: Vec<_> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    let expected: usize = RULE_FILES.into_iter().map(|file| documents::rules(file).len()).sum();
    assert_eq!(all.len(), expected);
    for rule in all {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}
