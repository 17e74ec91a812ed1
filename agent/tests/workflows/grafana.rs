//! The judge of the dashboards in Grafana (`scripts/grafana.py`), against a stand-in that answers as Grafana's API does.
//!
//! Does not: evaluate a query (`dashboards/queries.rs` does, in a real Prometheus).

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::{fs, thread};

use serde_json::{Value, json};

use super::{root, text};

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

/// Reads a request: its path, and its body as JSON.
fn request(stream: &mut TcpStream) -> Option<(String, Value)> {
    let mut read = Vec::new();
    let mut chunk = [0; 4_096];
    loop {
        let count = stream.read(&mut chunk).ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&chunk[..count]);
        let all = text(&read);
        let Some((head, body)) = all.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.to_lowercase();
        let length = length.split_once("content-length: ").map_or(0, |(_, rest)| {
            rest.lines().next().unwrap_or_default().trim().parse().unwrap()
        });
        if body.len() >= length {
            let path = head.split(' ').nth(1)?.to_owned();
            return Some((path, serde_json::from_str(body).unwrap_or_default()));
        }
    }
}

fn answer(fault: Fault, path: &str, body: &Value) -> Value {
    if let Some(uid) = path.strip_prefix("/api/dashboards/uid/sandglass-") {
        if fault == Fault::Missing && uid == "node" {
            return json!({"message": "Dashboard not found"});
        }
        let file = root(&format!("dashboards/grafana/{uid}.json"));
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        return json!({"dashboard": dashboard});
    }
    match path {
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
        _ => json!({"message": "not found"}),
    }
}

fn judged(fault: Fault) -> (Output, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Some((path, body)) = request(&mut stream) else {
                continue;
            };
            let answer = answer(fault, &path, &body).to_string();
            let status = if answer.contains("not found") {
                "404 Not Found"
            } else {
                "200 OK"
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                answer.len()
            );
            let _ = stream.write_all((head + &answer).as_bytes());
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("python3")
        .arg(root("scripts/grafana.py"))
        .arg(format!("http://{address}"))
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
