//! What lies in `dashboards/`, read once for all tests: dashboards, their queries, rules, alerts.
//!
//! Does not: judge.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

/// The folder.
pub fn folder() -> PathBuf {
    sandglass_lab::file("dashboards")
}

/// A file of the folder.
pub fn read(path: &str) -> String {
    let path = folder().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A dashboard: its file's name and what stands in it.
pub struct Dashboard {
    pub file: String,
    pub json: Value,
}

/// All dashboards, by file name.
pub fn dashboards() -> Vec<Dashboard> {
    let mut files: Vec<String> = fs::read_dir(folder().join("grafana"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    files.sort();
    let dashboards: Vec<Dashboard> = files
        .into_iter()
        .map(|file| {
            let json = serde_json::from_str(&read(&format!("grafana/{file}"))).unwrap();
            Dashboard { file, json }
        })
        .collect();
    assert!(dashboards.len() >= 5, "only {} dashboards", dashboards.len());
    dashboards
}

impl Dashboard {
    /// Panels that show something: rows only divide.
    pub fn panels(&self) -> impl Iterator<Item = &Value> {
        let panels = self.json["panels"].as_array().unwrap();
        panels.iter().filter(|panel| panel["type"] != "row")
    }

    /// Variables at the top of the dashboard.
    pub fn variables(&self) -> &Vec<Value> {
        self.json["templating"]["list"].as_array().unwrap()
    }
}

/// A query, and where it stands.
#[derive(Clone, Debug)]
pub struct Query {
    pub place: String,
    pub text: String,
}

/// Every query of every panel, annotation and variable, as Grafana would send it.
pub fn queries() -> Vec<Query> {
    let mut queries = Vec::new();
    for dashboard in dashboards() {
        for panel in dashboard.panels() {
            for target in panel["targets"].as_array().unwrap() {
                let place = format!("{}: {}", dashboard.file, panel["title"].as_str().unwrap());
                let text = expand(target["expr"].as_str().unwrap());
                queries.push(Query { place, text });
            }
        }
    }
    queries
}

/// Puts values in the place of Grafana's variables: everything is selected, windows are short.
pub fn expand(text: &str) -> String {
    let mut text = text
        .replace("$__rate_interval", WINDOW)
        .replace("$__range", WINDOW)
        .replace("$cluster", ".*");
    for variable in ["$job", "$node"] {
        text = text.replace(variable, ".+");
    }
    assert!(!text.contains('$'), "an unknown variable: {text}");
    text
}

/// Windows of queries in tests.
pub const WINDOW: &str = "8s";

/// A rule of a rule file.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name of the alert, or of the series that is recorded.
    pub name: String,
    pub is_alert: bool,
    pub text: String,
    pub json: Value,
}

/// The rules of a file below `rules/`.
pub fn rules(file: &str) -> Vec<Rule> {
    let document: Value = serde_saphyr::from_str(&read(&format!("rules/{file}"))).unwrap();
    let groups = document["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules
        .map(|rule| {
            let is_alert = !rule["alert"].is_null();
            let name = rule[if is_alert { "alert" } else { "record" }].as_str().unwrap();
            Rule {
                name: name.to_owned(),
                is_alert,
                text: rule["expr"].as_str().unwrap().to_owned(),
                json: rule.clone(),
            }
        })
        .collect()
}

/// The files below `rules/`.
pub const RULE_FILES: [&str; 3] = ["recording.yaml", "optional/compatibility.yaml", "alerts.yaml"];

/// All alerts.
pub fn alerts() -> Vec<Rule> {
    let alerts = rules("alerts.yaml");
    assert!(alerts.iter().all(|rule| rule.is_alert));
    alerts
}
