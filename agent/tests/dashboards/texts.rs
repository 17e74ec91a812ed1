//! README, runbooks and alerts agree with each other, with the dashboards, and with the names that spans carry.

use std::collections::BTreeSet;
use std::fs;

use sandglass_model::registry;
use serde_json::Value;

use super::documents::{self, Rule, folder};
use super::names;
use super::node;

/// Title and question of each row of the table below the heading that names `file`.
fn documented(readme: &str, file: &str) -> Vec<(String, String)> {
    let section = readme.split(&format!("(grafana/{file})")).nth(1);
    let section = section.unwrap_or_else(|| panic!("README.md has no section for {file}"));
    let rows = section
        .split("\n## ")
        .next()
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("| "));
    rows.skip(1)
        .map(|row| {
            let (title, question) = row.trim_end_matches(" |").split_once(" | ").unwrap();
            (title.to_owned(), question.to_owned())
        })
        .collect()
}

#[test]
fn every_panel_answers_the_question_that_the_readme_says() {
    let readme = documents::read("README.md");
    let mut all = BTreeSet::new();
    for dashboard in documents::dashboards() {
        let shown: Vec<(String, String)> = dashboard
            .panels()
            .map(|panel| {
                let text = |key: &str| panel[key].as_str().unwrap().to_owned();
                (text("title"), text("description"))
            })
            .collect();
        for (title, question) in &shown {
            assert!(question.ends_with('?'), "{title}: {question}");
            assert!(all.insert(question.clone()), "two panels answer: {question}");
        }
        assert_eq!(documented(&readme, &dashboard.file), shown, "{}", dashboard.file);
    }
}

#[test]
fn every_alert_says_who_what_and_where_to_go_on() {
    let manifest = fs::read_to_string(folder().join("../Cargo.toml")).unwrap();
    let repository = manifest
        .split("repository = \"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    for Rule { name, json, .. } in documents::alerts() {
        assert!(name.starts_with("Sandglass"), "{name}");
        let severity = json["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}: {severity}"
        );
        assert!(json["for"].is_string(), "{name} has no slack");
        let annotations = json["annotations"].as_object().unwrap();
        let keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
        assert_eq!(
            BTreeSet::from_iter(keys),
            BTreeSet::from(["description", "runbook_url", "summary", "traces"]),
            "{name}"
        );
        let url = annotations["runbook_url"].as_str().unwrap();
        assert_eq!(url, format!("{repository}/blob/main/dashboards/runbooks/{name}.md"));
        assert!(
            annotations["summary"].as_str().unwrap().len() < 120,
            "{name}: a summary fits a phone"
        );
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let alerts: BTreeSet<String> = documents::alerts().into_iter().map(|alert| alert.name).collect();
    let files = fs::read_dir(folder().join("runbooks")).unwrap();
    // The folder `reasons` has those of waits, which fire no alert.
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| name != "reasons");
    let runbooks: BTreeSet<String> = names.map(|name| name.trim_end_matches(".md").to_owned()).collect();
    assert_eq!(alerts, runbooks);
    let readme = documents::read("README.md");
    for name in alerts {
        assert!(
            readme.contains(&format!("[{name}](runbooks/{name}.md)")),
            "README.md does not list {name}"
        );
        let text = documents::read(&format!("runbooks/{name}.md"));
        assert!(text.starts_with(&format!("# {name}\n")), "{name}");
        let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(
            headings,
            ["What it means", "First look", "Likely causes", "Remedy"],
            "{name}"
        );
    }
}

#[test]
fn every_runbook_of_a_reason_has_the_same_parts_and_is_listed() {
    let readme = documents::read("README.md");
    let files: Vec<String> = runbooks_of_reasons();
    assert!(!files.is_empty());
    for file in files {
        assert!(readme.contains(&format!("({file})")), "README.md does not list {file}");
        let text = documents::read(&file);
        let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(
            headings,
            ["What it means", "First look", "Likely causes", "Remedy"],
            "{file}"
        );
    }
}

/// Their paths in the folder of the dashboards.
fn runbooks_of_reasons() -> Vec<String> {
    let files = fs::read_dir(folder().join("runbooks/reasons")).unwrap();
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| format!("runbooks/reasons/{name}")).collect()
}

#[test]
fn the_page_knows_every_runbook_of_a_reason() {
    let page = fs::read_to_string(folder().join("../agent/ui/runbooks.js")).unwrap();
    for file in runbooks_of_reasons() {
        let name = file.trim_start_matches("runbooks/reasons/").trim_end_matches(".md");
        assert!(page.contains(&format!("[\"{name}\", ")), "{name}");
    }
}

/// Code words of the Markdown files.
fn code_words(path: &str) -> Vec<String> {
    let text = documents::read(path);
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn what_readme_and_runbooks_name_exists() {
    let served = node::rendering().series();
    let attributes: BTreeSet<&str> = registry::ATTRIBUTES.iter().map(|attribute| attribute.key).collect();
    let mut files: Vec<String> = documents::alerts()
        .iter()
        .map(|alert| format!("runbooks/{}.md", alert.name))
        .chain(runbooks_of_reasons())
        .collect();
    files.push("README.md".to_owned());
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in files {
        for word in code_words(&file) {
            let name = word.split(['{', '=', ' ', '[']).next().unwrap();
            let known = if name.starts_with("sandglass_") && !name.contains('*') {
                let series = |suffix: &&str| {
                    served.contains_key(&format!("{name}{suffix}")) || names::is_pending(&format!("{name}{suffix}"))
                };
                ["", "_count"].iter().any(series)
            } else if ["cni.", "sandglass.", "k8s.", "process.", "error.", "sandbox.id"]
                .iter()
                .any(|start| name.starts_with(start))
            {
                attributes.contains(name)
            } else {
                continue;
            };
            seen += 1;
            if !known {
                wrong.push(format!("{file}: {word}"));
            }
        }
    }
    assert!(seen > 30, "only {seen} names were found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_runbook_for_lookups_knows_every_cause_and_no_other() {
    let runbook = documents::read("runbooks/SandglassDnsTimeouts.md");
    let rows = runbook
        .lines()
        .filter(|line| line.starts_with("| ") && line.ends_with("` |"));
    let named: BTreeSet<&str> = rows.map(|row| row.rsplit('`').nth(1).unwrap()).collect();
    let of_lookups = |cause: &&str| !cause.starts_with("connect_") && *cause != "unreachable";
    assert_eq!(named, registry::CAUSES.iter().copied().filter(of_lookups).collect());
}

#[test]
fn every_alert_is_tested_from_four_sides() {
    let tests: Value = serde_saphyr::from_str(&documents::read("rules/tests/alerts.yaml")).unwrap();
    let groups = tests["tests"].as_array().unwrap();
    for alert in documents::alerts() {
        let of = |what: &str| {
            let name = format!("{}: {what}", alert.name);
            let group = groups.iter().find(|group| group["name"] == *name);
            group.unwrap_or_else(|| panic!("no test {name}"))
        };
        let firing = |group: &Value| -> Vec<bool> {
            let checks = group["alert_rule_test"].as_array().unwrap().iter();
            checks
                .inspect(|check| assert_eq!(check["alertname"], *alert.name))
                .map(|check| check["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()))
                .collect()
        };
        assert_eq!(
            firing(of("fires, and resolves")),
            [false, true, false],
            "{}",
            alert.name
        );
        let below = of("not just below");
        assert!(!below["input_series"].as_array().unwrap().is_empty() && !firing(below).contains(&true));
        let nothing = of("not without data");
        assert!(nothing["input_series"].as_array().unwrap().is_empty() && !firing(nothing).contains(&true));
    }
}
