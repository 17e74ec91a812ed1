//! The rules of Grafana's dashboard linter (github.com/grafana/dashboard-linter, lint/rule_*.go), restated.
//!
//! The linter itself is not to be had as a package. Its rules about Loki do not apply; what `dashboards/.lint` excludes
//! is excluded here too. Beyond it: uids, ids, layout, exemplars, links to traces.

use std::collections::BTreeSet;

use serde_json::Value;

use super::documents::{self, Dashboard};
use super::promql;

const DATASOURCE: &str = "${prometheus_datasource}";
/// The units in use, all among the linter's list of valid ones.
const UNITS: [&str; 8] = ["s", "percentunit", "none", "short", "ops", "pps", "bytes", "string"];

fn excluded(rule: &str) -> bool {
    let lint: Value = serde_saphyr::from_str(&documents::read(".lint")).unwrap();
    let exclusion = &lint["exclusions"][rule];
    assert!(exclusion.is_null() || exclusion["reason"].as_str().is_some_and(|reason| reason.len() > 20));
    !exclusion.is_null()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// Everything that the linter would say of a dashboard.
fn lint(dashboard: &Dashboard) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |rule: &str, holds: bool, what: String| {
        if !holds && !excluded(rule) {
            wrong.push(format!("{} {rule}: {what}", dashboard.file));
        }
    };
    check(
        "uneditable-dashboard",
        dashboard.json["editable"] == false,
        "is editable".into(),
    );
    template_rules(dashboard, &mut check);
    for panel in dashboard.panels() {
        let title = text(panel, "title");
        let described = !title.is_empty() && !text(panel, "description").is_empty();
        check("panel-title-description-rule", described, title.to_owned());
        check(
            "panel-datasource-rule",
            panel["datasource"]["uid"] == DATASOURCE,
            title.to_owned(),
        );
        let unit = text(&panel["fieldConfig"]["defaults"], "unit");
        check("panel-units-rule", UNITS.contains(&unit), format!("{title}: {unit:?}"));
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        check("panel-no-targets-rule", !targets.is_empty(), title.to_owned());
        for target in &targets {
            target_rules(title, text(target, "expr"), &mut check);
        }
    }
    wrong
}

fn template_rules(dashboard: &Dashboard, check: &mut impl FnMut(&str, bool, String)) {
    let variables = dashboard.variables();
    let sources: Vec<&Value> = variables
        .iter()
        .filter(|variable| variable["type"] == "datasource")
        .collect();
    check(
        "template-datasource-rule",
        !sources.is_empty(),
        "no data source variable".into(),
    );
    for source in sources {
        let kind = text(source, "query");
        let title = kind[..1].to_uppercase() + &kind[1..];
        let named = text(source, "name") == format!("{kind}_datasource")
            && text(source, "label") == format!("{title} data source");
        check(
            "template-datasource-rule",
            named,
            format!("{} is misnamed", text(source, "name")),
        );
    }
    for name in ["job", "instance"] {
        let rule = format!("template-{name}-rule");
        let variable = variables.iter().find(|variable| text(variable, "name") == name);
        let good = variable.is_some_and(|variable| {
            variable["type"] == "query"
                && variable["datasource"]["uid"] == DATASOURCE
                && variable["multi"] == true
                && variable["allValue"] == ".+"
                && text(variable, "label").eq_ignore_ascii_case(name)
        });
        check(&rule, good, format!("variable {name}"));
    }
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let (name, query) = (text(variable, "name"), text(variable, "query"));
        check(
            "template-on-time-change-reload-rule",
            variable["refresh"] == 2,
            name.to_owned(),
        );
        let labelled = query.starts_with("label_values(sandglass_build_info") && query.ends_with(&format!(", {name})"));
        check("template-label-promql-rule", labelled, query.to_owned());
    }
}

fn target_rules(title: &str, expression: &str, check: &mut impl FnMut(&str, bool, String)) {
    let what = || format!("{title}: {expression}");
    let named = promql::names(expression);
    check("target-promql-rule", !named.selectors.is_empty(), what());
    for selector in &named.selectors {
        for label in ["job", "instance"] {
            let by_variable = |matcher: &promql::Matcher| {
                matcher.label == label && matcher.operator == "=~" && matcher.value == format!("${label}")
            };
            check(
                &format!("target-{label}-rule"),
                selector.matchers.iter().any(by_variable),
                what(),
            );
        }
    }
    for (function, range) in promql::ranges(expression) {
        let rate = matches!(function.as_str(), "rate" | "irate");
        check(
            "target-rate-interval-rule",
            !rate || range == "$__rate_interval",
            what(),
        );
        check("target-rate-interval-rule", !function.is_empty(), what());
    }
    // A counter stands directly in rate, irate or increase.
    for (at, _) in expression.match_indices("_total{") {
        let start = expression[..at].rfind(|char: char| !char.is_ascii_alphanumeric() && char != '_');
        let before = start.map_or("", |start| &expression[..=start]);
        let counted = ["rate(", "irate(", "increase("]
            .iter()
            .any(|call| before.ends_with(call));
        check("target-counter-agg-rule", counted, what());
    }
}

#[test]
fn dashboards_follow_the_rules_of_grafanas_linter() {
    let wrong: Vec<String> = documents::dashboards().iter().flat_map(lint).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn each_rule_finds_what_it_is_about() {
    let original = documents::dashboards().remove(0);
    let spoiled = |change: &dyn Fn(&mut Value)| {
        let mut json = original.json.clone();
        change(&mut json);
        let file = original.file.clone();
        lint(&Dashboard { file, json }).join("\n")
    };
    let panel = original.json["panels"]
        .as_array()
        .unwrap()
        .iter()
        .position(|panel| panel["type"] != "row");
    let panel = panel.unwrap();
    let expression =
        |text: &'static str| move |json: &mut Value| json["panels"][panel]["targets"][0]["expr"] = text.into();
    type Change<'c> = &'c dyn Fn(&mut Value);
    let cases: [(&str, Change); 13] = [
        ("uneditable-dashboard", &|json| json["editable"] = true.into()),
        ("panel-title-description-rule", &|json| {
            json["panels"][panel]["description"] = "".into()
        }),
        ("panel-datasource-rule", &|json| {
            json["panels"][panel]["datasource"]["uid"] = "abc".into()
        }),
        ("panel-units-rule", &|json| {
            json["panels"][panel]["fieldConfig"]["defaults"]["unit"] = "seconds".into()
        }),
        ("panel-no-targets-rule", &|json| {
            json["panels"][panel]["targets"] = Value::Array(Vec::new())
        }),
        ("template-datasource-rule", &|json| {
            json["templating"]["list"][0]["name"] = "datasource".into()
        }),
        ("template-job-rule", &|json| {
            json["templating"]["list"][4]["multi"] = false.into()
        }),
        ("template-on-time-change-reload-rule", &|json| {
            json["templating"]["list"][5]["refresh"] = 1.into()
        }),
        ("template-label-promql-rule", &|json| {
            json["templating"]["list"][5]["query"] = "sandglass_build_info".into()
        }),
        ("target-promql-rule", &expression("1 + 1")),
        ("target-job-rule", &expression("sandglass_open_traces")),
        (
            "target-rate-interval-rule",
            &expression("rate(sandglass_x_total{job=~\"$job\"}[5m])"),
        ),
        (
            "target-counter-agg-rule",
            &expression("sum(sandglass_x_total{job=~\"$job\"})"),
        ),
    ];
    assert_eq!(spoiled(&|_| {}), "");
    for (rule, change) in cases {
        let found = spoiled(change);
        assert!(found.contains(rule), "{rule} was not found, but: {found}");
    }
}

#[test]
fn dashboards_can_be_provisioned_side_by_side() {
    let mut uids = BTreeSet::new();
    for dashboard in documents::dashboards() {
        let json = &dashboard.json;
        assert!(json["id"].is_null(), "{}: an id belongs to one Grafana", dashboard.file);
        let uid = text(json, "uid").to_owned();
        assert!(uid.starts_with("sandglass-") && uid.len() <= 40, "{uid}");
        assert!(uids.insert(uid), "{}: its uid is taken", dashboard.file);
        let mut ids = BTreeSet::new();
        let mut places = BTreeSet::new();
        for panel in json["panels"].as_array().unwrap() {
            assert!(
                ids.insert(panel["id"].as_u64().unwrap()),
                "{}: an id comes twice",
                dashboard.file
            );
            let place = &panel["gridPos"];
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| place[key].as_u64().unwrap());
            assert!(x + w <= 24, "{}: {}", dashboard.file, panel["title"]);
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(places.insert(cell), "{}: {} overlaps", dashboard.file, panel["title"]);
            }
        }
        // No data source, folder or address of one installation.
        let all = json.to_string();
        for uid in all
            .split("\"uid\":\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
        {
            assert!(
                uid == DATASOURCE || uid == text(json, "uid"),
                "{}: {uid}",
                dashboard.file
            );
        }
        assert!(!all.contains("http://"), "{}: an address", dashboard.file);
    }
}

#[test]
fn numbers_lead_to_traces() {
    for dashboard in documents::dashboards() {
        let links = dashboard.json["links"].to_string();
        for source in ["${jaeger_datasource}", "${tempo_datasource}"] {
            assert!(links.contains(source), "{}: no link to {source}", dashboard.file);
        }
        for panel in dashboard.panels() {
            let targets = panel["targets"].as_array().unwrap();
            let ours = |target: &Value| {
                let expression = text(target, "expr");
                // The durations of requests to the collector have no trace.
                expression.contains("_bucket{") && !expression.contains("sandglass_export_")
            };
            let drawn = panel["type"] == "timeseries" || panel["type"] == "heatmap";
            if drawn && targets.iter().any(ours) {
                let wanted = targets.iter().any(|target| target["exemplar"] == true);
                assert!(wanted, "{}: {} requests no exemplars", dashboard.file, panel["title"]);
            }
            // Lines of nodes lead to the traces of the node.
            let by_node = targets
                .iter()
                .any(|target| text(target, "legendFormat").starts_with("{{node}}"));
            if panel["type"] == "timeseries" && by_node && panel["title"] != "Connection table" {
                let links = panel["fieldConfig"]["defaults"]["links"].to_string();
                assert!(
                    links.contains("k8s.node.name"),
                    "{}: {}",
                    dashboard.file,
                    panel["title"]
                );
            }
        }
    }
}

#[test]
fn the_provisioned_data_sources_are_those_of_the_dashboards() {
    let file: Value = serde_saphyr::from_str(&documents::read("datasources.yaml")).unwrap();
    let sources = file["datasources"].as_array().unwrap();
    let kinds: BTreeSet<&str> = sources.iter().map(|source| text(source, "type")).collect();
    for dashboard in documents::dashboards() {
        let variables = dashboard
            .variables()
            .iter()
            .filter(|variable| variable["type"] == "datasource");
        let wanted: BTreeSet<&str> = variables.map(|variable| text(variable, "query")).collect();
        assert_eq!(wanted, kinds, "{}", dashboard.file);
    }
    // The label that leads from an exemplar to its trace is the one that the agent writes.
    let destination = &sources[0]["jsonData"]["exemplarTraceIdDestinations"][0];
    let rendering = super::node::rendering();
    let samples = rendering.families.values().flat_map(|family| &family.samples);
    let exemplars: Vec<&String> = samples.filter_map(|sample| sample.exemplar.as_ref()).collect();
    assert!(exemplars.len() > 20, "{}", exemplars.len());
    let label = format!("{{{}=", text(destination, "name"));
    assert!(
        exemplars.iter().all(|exemplar| exemplar.starts_with(&label)),
        "{exemplars:?}"
    );
    assert!(
        sources
            .iter()
            .any(|source| source["uid"] == destination["datasourceUid"])
    );
}

#[test]
fn the_committed_dashboards_are_what_their_sources_say() {
    let test = "the_committed_dashboards_are_what_their_sources_say";
    if !sandglass_lab::skip::has(test, "jsonnet") {
        return;
    }
    let into = tempfile::tempdir().unwrap();
    let arguments = ["-m", into.path().to_str().unwrap(), "dashboards.jsonnet"];
    let (good, output) = sandglass_lab::peers::run("jsonnet", &arguments, &documents::folder().join("src"));
    assert!(good, "{output}");
    let made: Vec<_> = std::fs::read_dir(into.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(made.len(), documents::dashboards().len());
    for path in made {
        let name = path.file_name().unwrap().to_str().unwrap();
        let fresh = std::fs::read_to_string(&path).unwrap();
        let committed = documents::read(&format!("grafana/{name}"));
        assert!(
            fresh == committed,
            "{name}: run jsonnet -m ../grafana dashboards.jsonnet in dashboards/src"
        );
    }
}
