//! A real agent is killed (SIGKILL) while operations are open: the next one reports them as interrupted, with their ids.
//!
//! Needs root with BPF, or prints `SKIPPED`. What needs no agent is tested beside `sinks/journal.rs`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

#[path = "lab/running.rs"]
mod running;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use running::Running;
use serde_json::Value;

/// A plugin that ends when it is dropped.
struct Plugin(Child);

impl Plugin {
    fn start(folder: &Path, name: &str, container: &str) -> Plugin {
        let binary = folder.join("bin").join(name);
        let plugin = Command::new(binary)
            .arg("3600")
            .env_clear()
            .envs([
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", container),
                ("CNI_NETNS", "/proc/self/ns/net"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", folder.join("bin").to_str().unwrap()),
            ])
            .spawn();
        Plugin(plugin.unwrap())
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(test: &str, folder: &Path) -> Option<Running> {
    let spool = format!("otlp.spool_directory={}", spool(folder).display());
    // Nothing listens on the port of discard, so traces wait.
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
    Running::start(test, folder, &["--set", &spool], &variables)
}

fn spool(folder: &Path) -> PathBuf {
    folder.join("spool")
}

/// Rows of this container's sandbox.
fn rows(agent: &Running, container: &str) -> Vec<Value> {
    let answer = agent.page(&format!("/api/v1/sandboxes?kind=all&q={container}"));
    answer["rows"].as_array().unwrap().clone()
}

/// Kills the agent (SIGKILL) and the plugin once the journal has it, and returns the row of its sandbox.
fn killed(agent: Running, plugin: Plugin, container: &str) -> Value {
    agent.until("it is open", |agent| rows(agent, container).len() == 1);
    agent.until("it is in the journal", |agent| {
        agent
            .metric("sandglass_journal_traces")
            .is_some_and(|traces| traces >= 1.0)
    });
    let before = rows(&agent, container).remove(0);
    drop(agent);
    drop(plugin);
    before
}

/// The one row of the sandbox, with the ids that it had before, once the next agent has reported it.
fn reported(agent: &Running, container: &str, before: &Value) -> Vec<Value> {
    agent.until("it is reported", |agent| {
        rows(agent, container).iter().any(|row| row["result"] == "failed")
    });
    let after = rows(agent, container);
    assert_eq!(after.len(), 1, "{after:?}");
    for key in ["trace_id", "root_span_id"] {
        assert_eq!(after[0][key], before[key], "{key}");
    }
    after
}

#[test]
fn what_was_open_at_a_kill_is_reported_by_the_next_agent() {
    let test = "what_was_open_at_a_kill_is_reported_by_the_next_agent";
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::copy("/bin/sleep", folder.path().join("bin/endless")).unwrap();
    let mut interrupted = BTreeSet::new();
    for round in 0..3 {
        let Some(agent) = start(test, folder.path()) else {
            return;
        };
        let container = format!("killed-{}-{round}", std::process::id());
        let plugin = Plugin::start(folder.path(), "endless", &container);
        let before = killed(agent, plugin, &container);

        let agent = start(test, folder.path()).unwrap();
        let after = reported(&agent, &container, &before);
        assert!(after[0].to_string().contains("interrupted"), "{}", after[0]);
        assert!(interrupted.insert(after[0]["trace_id"].to_string()), "once");
        let counted = agent.metric("sandglass_journal_interrupted_traces_total");
        assert!(counted.is_some_and(|traces| traces >= 1.0), "{counted:?}");
        // No operation failed as far as anybody knows. The agent sees the plugins of the other tests, whose names are others.
        let ours = "plugin=\"endless\"";
        let failed = agent.metrics();
        let failed = failed
            .lines()
            .filter(|line| line.starts_with("sandglass_cni_operation_errors_total"));
        let failed: Vec<&str> = failed.filter(|line| line.contains(ours)).collect();
        assert_eq!(failed, Vec::<&str>::new());
        // Its request is in the spool from now on: a third agent does not report it again.
        agent.until("it is in a request", |agent| {
            agent.metric("sandglass_journal_traces") == Some(0.0)
        });
        // The page's files get it within a second of that, and a kill before loses it there (LIMITATIONS.md).
        agent.until("it is in the store's files", |agent| {
            let health = agent.health();
            let count = |part: &str, key: &str| health[part][key].as_u64().unwrap();
            count("store_disk", "traces") == count("store", "traces") - count("store", "running")
        });
        drop(agent);
        let agent = start(test, folder.path()).unwrap();
        let counted = agent.metric("sandglass_journal_interrupted_traces_total");
        assert_eq!(counted, Some(0.0));
        // Its page shows it as before, from the store's files.
        agent.until("it is shown", |agent| rows(agent, &container) == after);
        let health = agent.health();
        assert!(
            health["otlp"]["spool_spans"].as_u64().is_some_and(|spans| spans >= 2),
            "{health}"
        );
    }
}

/// Without a collector the page is where it is reported, and its files are what keeps it.
#[test]
fn without_a_collector_the_page_reports_what_was_open_at_a_kill() {
    let test = "without_a_collector_the_page_reports_what_was_open_at_a_kill";
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::copy("/bin/sleep", folder.path().join("bin/unending")).unwrap();
    let directory = format!("otlp.spool_directory={}", spool(folder.path()).display());
    let start = || Running::start(test, folder.path(), &["--set", &directory], &[]);
    let Some(agent) = start() else {
        return;
    };
    assert!(agent.health()["otlp"].is_null(), "there is no collector");
    let container = format!("local-{}", std::process::id());
    let plugin = Plugin::start(folder.path(), "unending", &container);
    let before = killed(agent, plugin, &container);

    let agent = start().unwrap();
    let after = reported(&agent, &container, &before);
    assert!(after[0].to_string().contains("interrupted"), "{}", after[0]);
    let counted = agent.metric("sandglass_journal_interrupted_traces_total");
    assert!(counted.is_some_and(|traces| traces >= 1.0), "{counted:?}");
    let health = agent.health();
    let journal = &health["journal"];
    assert!(
        journal["interrupted"].as_u64().is_some_and(|traces| traces >= 1),
        "{health}"
    );
    assert!(journal["problem"].is_null(), "{health}");
    // It is in the store's files from now on: a third agent shows it and does not report it again.
    agent.until("it is in the store's files", |agent| {
        agent.metric("sandglass_journal_traces") == Some(0.0)
    });
    drop(agent);
    let agent = start().unwrap();
    agent.until("it is shown", |agent| rows(agent, &container) == after);
    let counted = agent.metric("sandglass_journal_interrupted_traces_total");
    assert_eq!(counted, Some(0.0));
}

#[test]
fn a_plugin_that_outlives_the_agent_is_not_reported_as_interrupted() {
    let test = "a_plugin_that_outlives_the_agent_is_not_reported_as_interrupted";
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::copy("/bin/sleep", folder.path().join("bin/enduring")).unwrap();
    let Some(agent) = start(test, folder.path()) else {
        return;
    };
    let container = format!("outlives-{}", std::process::id());
    let plugin = Plugin::start(folder.path(), "enduring", &container);
    agent.until("it is open", |agent| rows(agent, &container).len() == 1);
    agent.until("it is in the journal", |agent| {
        agent
            .metric("sandglass_journal_traces")
            .is_some_and(|traces| traces >= 1.0)
    });
    let before = rows(&agent, &container).remove(0);
    // SIGKILL.
    drop(agent);

    let agent = start(test, folder.path()).unwrap();
    agent.until("both are there", |agent| rows(agent, &container).len() == 2);
    let of_before = |rows: &[Value]| {
        rows.iter()
            .position(|row| row["trace_id"] == before["trace_id"])
            .unwrap()
    };
    let mut after = rows(&agent, &container);
    let earlier = after.remove(of_before(&after));
    assert!(!earlier.to_string().contains("interrupted"), "{earlier}");
    assert_ne!(earlier["result"], "failed", "{earlier}");
    assert_eq!(after[0]["running"], true, "{}", after[0]);
    // Its end is reported once.
    drop(plugin);
    agent.until("it has failed", |agent| {
        rows(agent, &container)
            .iter()
            .filter(|row| row["result"] == "failed")
            .count()
            == 1
    });
}
