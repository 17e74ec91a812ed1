//! What the live process probe sends of a plugin that holds secrets in its arguments, environment, configuration and output.
//!
//! Needs root and a kernel that lets BPF in; where one is missing the test prints `SKIPPED` and the reason.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use prometheus_client::metrics::gauge::Gauge;
use sandglass::app::settings::default_source;
use sandglass::health::Health;
use sandglass::sources;
use sandglass_model::{Body, Event};

use crate::collected::{Collected, started};

/// The command prints nothing of its own: `true` takes any argument.
const SCRIPT: &str = r#"#!/bin/sh
cat >/dev/null
/bin/true --password plantedone --token=plantedtwo -H 'Authorization: Bearer plantedthree' 'https://u:plantedfour@h/?q=plantedfive'
echo '{"cniVersion":"1.0.0","code":101,"msg":"password: plantedsix","details":"{\"token\":\"plantedseven\"}"}'
exit 1
"#;

#[test]
fn the_probe_sends_no_planted_secret() {
    const TEST: &str = "the_probe_sends_no_planted_secret";
    let (sender, receiver) = sources::channel(64, Gauge::default());
    let health = Health::default();
    let Some(source) = started(TEST, sources::linux::start(default_source().unwrap(), sender, health)) else {
        return;
    };
    let events = Collected::from(receiver);
    events.wait("the first anchor", |events| {
        let anchor = |event: &&Event| matches!(event.body, Body::ClockAnchored { .. });
        events.iter().find(anchor).map(|_| ())
    });
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("leaky");
    std::fs::write(&plugin, SCRIPT).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = Command::new(&plugin)
        .args(["--secret", "plantedeight"])
        .env_clear()
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", "planted-sandbox")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_ARGS", "K8S_POD_NAME=p;TOKEN=plantednine")
        .env("CNI_DB_PASSWORD", "plantedten")
        .env("AWS_SECRET_ACCESS_KEY", "plantedeleven")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let stdin = r#"{"cniVersion":"1.0.0","name":"pods","type":"leaky","kubernetes":{"token":"plantedtwelve"}}"#;
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let mut answer = String::new();
    child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
    assert!(answer.contains("plantedsix"));
    child.wait().unwrap();
    events.wait("the exit of the plugin", |events| {
        let exits = |event: &&Event| matches!(&event.body, Body::ProcessExited(exit) if exit.process.pid == pid);
        events.iter().find(exits).map(|_| ())
    });
    source.stop();
    let text = format!("{:?}", events.all());
    assert!(
        text.contains("--token=***") && text.contains("planted-sandbox"),
        "{text}"
    );
    let numbers = [
        "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    ];
    for number in numbers {
        assert!(!text.contains(&format!("planted{number}")), "planted{number}: {text}");
    }
}
