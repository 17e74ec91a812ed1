//! A real agent is killed (SIGKILL) while operations are open: the next one reports them as interrupted, with their ids.
//!
//! Needs root with BPF, or prints `SKIPPED`. What needs no agent is tested beside `sinks/otlp/journal.rs`.
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
    fn start(folder: &Path, container: &str) -> Plugin {
        let binary = folder.join("bin").join("endless");
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
        let plugin = Plugin::start(folder.path(), &container);
        agent.until("it is open", |agent| rows(agent, &container).len() == 1);
        agent.until("it is in the journal", |agent| {
            agent
                .metric("sandglass_journal_traces")
                .is_some_and(|traces| traces >= 1.0)
        });
        let before = rows(&agent, &container).remove(0);
        // SIGKILL.
        drop(agent);
        drop(plugin);

        let agent = start(test, folder.path()).unwrap();
        agent.until("it is reported", |agent| {
            rows(agent, &container).iter().any(|row| row["result"] == "failed")
        });
        let after = rows(&agent, &container);
        assert_eq!(after.len(), 1, "{after:?}");
        for key in ["trace_id", "root_span_id"] {
            assert_eq!(after[0][key], before[key], "{key}");
        }
        assert!(after[0].to_string().contains("interrupted"), "{}", after[0]);
        assert!(interrupted.insert(after[0]["trace_id"].to_string()), "once");
        let counted = agent.metric("sandglass_journal_interrupted_traces_total");
        assert!(counted.is_some_and(|traces| traces >= 1.0), "{counted:?}");
        // No operation failed as far as anybody knows.
        let ours = "plugin=\"endless\"";
        let failed = agent.metrics();
        let failed = failed
            .lines()
            .filter(|line| line.starts_with("sandglass_cni_operation_errors_total"));
        assert_eq!(failed.filter(|line| line.contains(ours)).count(), 0);
        // Its request is in the spool from now on: a third agent does not report it again.
        agent.until("it is in a request", |agent| {
            agent.metric("sandglass_journal_traces") == Some(0.0)
        });
        drop(agent);
        let agent = start(test, folder.path()).unwrap();
        assert!(rows(&agent, &container).is_empty());
        let health = agent.health();
        assert!(
            health["otlp"]["spool_spans"].as_u64().is_some_and(|spans| spans >= 2),
            "{health}"
        );
    }
}
