//! The judge of the dashboards in Grafana (`scripts/grafana.py`), against a stand-in that answers as Grafana's API does.
//!
//! Does not: evaluate a query (`dashboards/queries.rs` does, in a real Prometheus).

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{root, stand_in, text};

/// What the stand-in does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It does not have the dashboard of a node.
    Missing,
    /// It refuses a query.
    Refuses,
    /// It has no data.
    Empty,
}

fn answer(fault: Fault, path: &str, body: &Value) -> Option<Value> {
    if let Some(uid) = path.strip_prefix("/api/dashboards/uid/sandglass-") {
        if fault == Fault::Missing && uid == "node" {
            return None;
        }
        let file = root(&format!("dashboards/grafana/{uid}.json"));
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        return Some(json!({"dashboard": dashboard}));
    }
    Some(match path {
        "/api/health" => json!({"database": "ok"}),
        "/api/datasources" => json!([{"type": "jaeger", "uid": "j"}, {"type": "prometheus", "uid": "p"}]),
        "/api/ds/query" => {
            let query = &body["queries"][0];
            let expression = query["expr"].as_str().unwrap();
            assert!(
                !expression.contains("$node") && query["datasource"]["uid"] == "p",
                "{query}"
            );
            let result = match fault {
                Fault::Refuses if expression.contains("in_flight") => json!({"error": "parse error", "status": 400}),
                Fault::Empty => json!({"frames": []}),
                _ => json!({"frames": [{"data": {"values": [[1, 2], [0.5, 1.0]]}}]}),
            };
            json!({"results": {query["refId"].as_str().unwrap(): result}})
        }
        _ => return None,
    })
}

fn judged(fault: Fault) -> (Output, String) {
    let address = stand_in::serve(move |path, body| answer(fault, path, body).map(|answer| answer.to_string()));
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("python3")
        .arg(root("scripts/grafana.py"))
        .arg(address)
        .arg(folder.path().join("shown"))
        .env_remove("SANDGLASS_BROWSER")
        .output()
        .unwrap();
    let printed = text(&output.stdout) + &text(&output.stderr);
    (output, printed)
}

#[test]
fn the_judge_of_dashboards_accepts_a_good_grafana_and_rejects_others() {
    let (accepted, printed) = judged(Fault::None);
    assert!(accepted.status.success(), "{printed}");
    for dashboard in ["agent", "dns", "fleet", "node", "windows"] {
        assert!(printed.contains(&format!("sandglass-{dashboard}: ")), "{printed}");
    }
    for (fault, wanted) in [
        (Fault::Missing, "sandglass-node: Grafana does not have it"),
        (Fault::Refuses, ": parse error"),
        (Fault::Empty, "sandglass-fleet: no panel has data"),
    ] {
        let (rejected, printed) = judged(fault);
        assert!(
            rejected.status.code() == Some(1) && printed.contains(wanted),
            "{printed}"
        );
    }
    let (_, printed) = judged(Fault::Empty);
    assert!(!printed.contains("sandglass-windows: no panel"), "{printed}");
}
