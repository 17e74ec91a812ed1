//! Every query is well formed, and a real Prometheus that scrapes the agent returns data for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use super::documents::{self, Query, RULE_FILES, folder};
use super::node::{self, Again, Replayed};
use super::questions::{answered, every_rule_is_evaluated, questions, shortened};
use super::{names, promql};
use sandglass_lab::peers::{self, Peer, Target};

/// Queries that give nothing here although all their metrics exist, and why.
const NOTHING_HERE: &[(&str, &str)] = &[];

#[test]
fn promtool_takes_the_rules_and_their_tests_pass() {
    let test = "promtool_takes_the_rules_and_their_tests_pass";
    if !sandglass_lab::skip::has(test, "promtool") {
        return;
    }
    let rules = folder().join("rules");
    let arguments: Vec<&str> = ["check", "rules"].into_iter().chain(RULE_FILES).collect();
    let (good, output) = peers::run("promtool", &arguments, &rules);
    assert!(
        good && output.matches("SUCCESS").count() == RULE_FILES.len(),
        "{output}"
    );
    let (good, output) = peers::run(
        "promtool",
        &["test", "rules", "tests/alerts.yaml", "tests/recording.yaml"],
        &rules,
    );
    assert!(good, "{output}");
}

/// promtool's output for the alerts' tests when the alerts are `changed`.
fn tests_of(changed: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tests")).unwrap();
    for file in ["recording.yaml", "tests/alerts.yaml"] {
        fs::write(folder.path().join(file), documents::read(&format!("rules/{file}"))).unwrap();
    }
    fs::write(folder.path().join("alerts.yaml"), changed).unwrap();
    let (good, output) = peers::run("promtool", &["test", "rules", "tests/alerts.yaml"], folder.path());
    assert!(!good, "the tests pass");
    output
}

#[test]
fn an_alert_that_is_spoiled_fails_its_tests() {
    let test = "an_alert_that_is_spoiled_fails_its_tests";
    if !sandglass_lab::skip::has(test, "promtool") {
        return;
    }
    let text = documents::read("rules/alerts.yaml");
    let alerts = documents::alerts();

    // None fires any more.
    let mut dead = text.clone();
    for (at, _) in text.rmatch_indices("        expr:") {
        let end = at + text[at..].find("        for:").unwrap();
        dead.replace_range(at..end, "        expr: vector(0) > 1\n");
    }
    let output = tests_of(&dead);
    for alert in &alerts {
        assert!(
            output.contains(&format!("{}: fires", alert.name)),
            "{}: {output}",
            alert.name
        );
    }

    // All fire a little early: thresholds a quarter lower, less patience.
    let mut eager = String::new();
    for line in text.lines() {
        let line = line.replace("for: 5m", "for: 1m").replace("for: 10m", "for: 1m");
        match line
            .rsplit_once("> ")
            .map(|(head, number)| (head, number.parse::<f64>()))
        {
            Some((head, Ok(number))) => eager.push_str(&format!("{head}> {}\n", number * 0.75)),
            _ => eager.push_str(&format!("{line}\n")),
        }
    }
    let eager = eager.replace("{probe=\"exec\"}) == 0", "{probe!=\"exec\"}) == 0");
    let output = tests_of(&eager);
    for alert in &alerts {
        assert!(
            output.contains(&format!("{}: not just below", alert.name)),
            "{}: {output}",
            alert.name
        );
    }
}

#[test]
fn every_query_of_every_panel_is_promql() {
    let test = "every_query_of_every_panel_is_promql";
    if !sandglass_lab::skip::has(test, "promtool") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut rules = "groups:\n  - name: panels\n    rules:\n".to_owned();
    let queries = documents::queries();
    for (number, query) in queries.iter().enumerate() {
        let text = serde_json::to_string(&query.text).unwrap();
        rules.push_str(&format!("      - record: query{number}\n        expr: {text}\n"));
    }
    fs::write(folder.path().join("panels.yaml"), rules).unwrap();
    let (good, output) = peers::run("promtool", &["check", "rules", "panels.yaml"], folder.path());
    assert!(good, "{output}");
    assert!(output.contains(&format!("{} rules found", queries.len())), "{output}");
}

/// Why no data can be expected of a query, if so.
fn excuse(query: &Query) -> Option<String> {
    let listed = NOTHING_HERE.iter().find(|(text, _)| query.text.contains(text));
    if let Some((_, reason)) = listed {
        return Some((*reason).to_owned());
    }
    let selectors = promql::names(&query.text).selectors;
    let pending = selectors
        .into_iter()
        .find(|selector| names::is_pending(&selector.metric));
    pending.map(|selector| format!("{} is not merged yet", selector.metric))
}

/// Recorded series that are made of pending metrics only.
fn of_pending_rules() -> BTreeMap<String, String> {
    let mut made = BTreeMap::new();
    for rule in RULE_FILES
        .into_iter()
        .flat_map(documents::rules)
        .filter(|rule| !rule.is_alert)
    {
        let selectors = promql::names(&rule.text).selectors;
        if let Some(pending) = selectors.iter().find(|selector| names::is_pending(&selector.metric)) {
            let labels = rule.json["labels"].as_object().into_iter().flatten();
            let labels: Vec<String> = labels.map(|(label, value)| format!("{label}={value}")).collect();
            let why = format!("{} is not merged yet", pending.metric);
            made.insert(format!("{}{{{}}}", rule.name, labels.join(",")), why);
        }
    }
    made
}

#[test]
fn a_real_prometheus_gives_data_for_every_query() {
    let test = "a_real_prometheus_gives_data_for_every_query";
    if !sandglass_lab::skip::has(test, "prometheus") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let nodes: Vec<(String, Again)> = node::renderings()
        .iter()
        .map(|(name, exposition)| (name.clone(), Again::serve(exposition.clone())))
        .collect();
    let targets = nodes.iter().map(|(name, again)| Target {
        job: "sandglass",
        node: name.clone(),
        cluster: None,
        address: again.address,
    });
    let prometheus = peers::prometheus(&targets.collect::<Vec<_>>(), &shortened(folder.path()), None);
    let by_rule = of_pending_rules();
    let (mut without, mut wrong) = (BTreeMap::<String, BTreeSet<String>>::new(), Vec::new());
    let (excused, mut open): (Vec<Query>, Vec<Query>) = questions().into_iter().partition(|query| {
        let excuse = excuse(query).or_else(|| by_rule.get(&query.text).cloned());
        let excused = excuse.is_some();
        if let Some(excuse) = excuse {
            without.entry(excuse).or_default().insert(query.place.clone());
        }
        excused
    });
    let total = open.len();
    // The recorded series need a window of their own, on top of the one that their queries look back over.
    let begin = Instant::now();
    while !open.is_empty() && begin.elapsed() < Duration::from_secs(90) {
        std::thread::sleep(Duration::from_secs(3));
        open.retain(|query| !answered(&prometheus, query));
    }
    for query in &open {
        let data = prometheus.query(&query.text);
        wrong.push(format!("{}: no data for {} ({data:?})", query.place, query.text));
    }
    for query in excused.iter().filter(|query| answered(&prometheus, query)) {
        wrong.push(format!("{} has data, though it is excused", query.place));
    }
    let with_data = total - open.len();
    println!("{with_data} queries return data");
    for (reason, places) in &without {
        println!("no data, because {reason}: {places:?}");
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(with_data > 100);
    every_rule_is_evaluated(&prometheus);
    every_variable_has_its_values(&prometheus);
    what_is_wrong_fires(&prometheus);
}

/// Between them these nodes have a slow and a failing plugin, a stuck ADD, a DEL that fails, lookups that stall, a network
/// that is never ready and lost records, all in the agent's own words: the alerts about it fire.
fn what_is_wrong_fires(prometheus: &Peer) {
    let expected = [
        "SandglassAgentLosesEvents",
        "SandglassCniAddSlow",
        "SandglassCniConfigUnusable",
        "SandglassCniDeletionLoop",
        "SandglassCniErrors",
        "SandglassCniOperationStuck",
        "SandglassConntrackInsertFailed",
        "SandglassDnsTimeouts",
        "SandglassIpPoolNearlyExhausted",
        "SandglassNetworkNotReady",
    ];
    let firing = peers::until("alerts about what is wrong", 60, || {
        let answer = prometheus
            .query("count by (alertname) (ALERTS{alertstate=\"firing\"})")
            .ok()?;
        let names = answer
            .iter()
            .map(|(labels, _)| labels["alertname"].as_str().unwrap().to_owned());
        let names: BTreeSet<String> = names.collect();
        let missing: Vec<&&str> = expected.iter().filter(|name| !names.contains(**name)).collect();
        if !missing.is_empty() {
            println!("not firing yet: {missing:?}");
            std::thread::sleep(Duration::from_secs(2));
            return None;
        }
        Some(names)
    });
    println!("firing: {firing:?}");
    // Nothing is wrong with what these watch.
    for name in [
        "SandglassAgentDown",
        "SandglassAgentBlind",
        "SandglassConntrackTableNearlyFull",
    ] {
        assert!(!firing.contains(name), "{name}");
    }
}

/// Grafana's query for each variable, which is `label_values(SELECTOR, LABEL)`.
fn every_variable_has_its_values(prometheus: &Peer) {
    for dashboard in documents::dashboards() {
        for variable in dashboard
            .variables()
            .iter()
            .filter(|variable| variable["type"] == "query")
        {
            let query = variable["query"].as_str().unwrap();
            let inside = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
            let (selector, label) = inside.rsplit_once(", ").unwrap();
            let path = format!(
                "label/{label}/values?match[]={}",
                peers::encode(&documents::expand(selector))
            );
            let values = prometheus.api(&path).unwrap();
            let expected = match label {
                // There is none here, as on most installations, and everything is found all the same.
                "cluster" => 0,
                "job" => 1,
                _ => node::recordings().len(),
            };
            assert_eq!(values.as_array().unwrap().len(), expected, "{query}: {values}");
        }
    }
}

#[test]
fn an_exemplar_in_prometheus_is_a_trace_of_the_agent() {
    let test = "an_exemplar_in_prometheus_is_a_trace_of_the_agent";
    if !sandglass_lab::skip::has(test, "prometheus") {
        return;
    }
    let replayed: Vec<Replayed> = node::recordings()
        .iter()
        .map(|(name, file)| Replayed::start(name, file))
        .collect();
    let targets = replayed.iter().map(|agent| Target {
        job: "sandglass",
        node: agent.name.clone(),
        cluster: None,
        address: agent.address,
    });
    let prometheus = peers::prometheus(&targets.collect::<Vec<_>>(), &[], None);
    let all_up = || {
        let up = prometheus.query("sum(up)").ok()?;
        (up.first()?.1 == replayed.len() as f64).then_some(())
    };
    peers::until("every agent is scraped", 30, all_up);
    let path = format!(
        "query_exemplars?query={}&start=0&end=9999999999",
        peers::encode("sandglass_cni_operation_duration_seconds_bucket")
    );
    let exemplars = peers::until("exemplars", 30, || {
        let found = prometheus.api(&path)?;
        (!found.as_array()?.is_empty()).then_some(found)
    });
    let mut seen = 0;
    for series in exemplars.as_array().unwrap() {
        let agent = replayed
            .iter()
            .find(|agent| series["seriesLabels"]["node"] == *agent.name)
            .unwrap();
        for exemplar in series["exemplars"].as_array().unwrap() {
            let id = exemplar["labels"]["trace_id"].as_str().unwrap();
            let trace = peers::get(agent.address, &format!("/api/v1/traces/{id}"));
            assert!(
                trace.is_some_and(|trace| trace.contains(id)),
                "{}: no trace {id}",
                agent.name
            );
            seen += 1;
        }
    }
    assert!(seen >= 6, "only {seen} exemplars");
    println!("{seen} exemplars lead to traces");
}
