//! Reload of the configuration by a real agent: a ConfigMap's exchange, SIGHUP, a file that is refused, and no event lost.
//!
//! Needs root with BPF, or prints `SKIPPED`. What needs no agent is tested beside `commands/reload.rs`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

#[path = "lab/running.rs"]
mod running;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use running::Running;
use rustix::process::{Pid, Signal, kill_process};

/// A volume of a ConfigMap, as the kubelet writes it (pkg/volume/util/atomic_writer.go).
struct ConfigMap {
    volume: PathBuf,
    version: u32,
}

impl ConfigMap {
    fn new(folder: &Path, text: &str) -> ConfigMap {
        let mut map = ConfigMap {
            volume: folder.join("volume"),
            version: 0,
        };
        fs::create_dir(&map.volume).unwrap();
        symlink("..data/config.yaml", map.path()).unwrap();
        map.put(text);
        map
    }

    fn path(&self) -> PathBuf {
        self.volume.join("config.yaml")
    }

    fn put(&mut self, text: &str) {
        let before = format!("..version_{}", self.version);
        self.version += 1;
        let name = format!("..version_{}", self.version);
        fs::create_dir(self.volume.join(&name)).unwrap();
        fs::write(self.volume.join(&name).join("config.yaml"), text).unwrap();
        symlink(name, self.volume.join("..data_tmp")).unwrap();
        fs::rename(self.volume.join("..data_tmp"), self.volume.join("..data")).unwrap();
        // There is none before the first.
        let _ = fs::remove_dir_all(self.volume.join(before));
    }
}

fn start(test: &str, folder: &Path, map: &ConfigMap) -> Option<Running> {
    // Nothing listens on the port of discard, so traces wait.
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
    Running::start(test, folder, &["--config", map.path().to_str().unwrap()], &variables)
}

fn hang_up(agent: &Running) {
    kill_process(Pid::from_child(&agent.process), Signal::HUP).unwrap();
}

#[test]
fn a_configmap_that_changes_is_loaded_and_a_bad_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut map = ConfigMap::new(folder.path(), "correlation:\n  stuck_after: 20s\n");
    let test = "a_configmap_that_changes_is_loaded_and_a_bad_one_is_refused";
    let Some(agent) = start(test, folder.path(), &map) else {
        return;
    };
    let configuration = |agent: &Running| agent.health()["configuration"].clone();
    agent.until("the start is reported", |agent| !configuration(agent).is_null());
    let first = configuration(&agent);
    assert!(
        first["refused"].is_null() && first["needs_restart"] == serde_json::json!([]),
        "{first}"
    );
    assert_eq!(agent.health()["stuck_after_ns"], 20_000_000_000_u64);
    assert_eq!(agent.health()["otlp"]["sampling"], "all");

    // All that is live, and a key that is not.
    map.put(
        "correlation:\n  stuck_after: 7s\nstore:\n  max_traces: 11\notlp:\n  sampling: bad\n  good_per_thousand: 3\n  slow_ms: 400\n\
         http:\n  hosts: [elsewhere]\n",
    );
    agent.until("the new one is loaded", |agent| {
        configuration(agent)["hash"] != first["hash"]
    });
    let health = agent.health();
    assert_eq!(health["stuck_after_ns"], 7_000_000_000_u64);
    assert_eq!(health["store"]["max_traces"], 11);
    assert_eq!(health["otlp"]["sampling"], "bad, 3 of 1000 good, slow from 400 ms");
    assert_eq!(
        health["configuration"]["needs_restart"],
        serde_json::json!(["http.hosts"])
    );
    assert_eq!(
        agent.metric("sandglass_config_needs_restart{key=\"http.hosts\"}"),
        Some(1.0)
    );
    assert!(agent.log().contains("needs_restart=\"http.hosts\""), "{}", agent.log());
    let loaded_at = agent.metric("sandglass_config_last_reload_success_timestamp_seconds");
    assert!(loaded_at.is_some_and(|seconds| seconds > 1e9), "{loaded_at:?}");

    // The old one stays, and the agent runs.
    map.put("correlation:\n  stuck_aftr: 1s\nstore:\n  max_traces: 5\n");
    agent.until("the bad one is refused", |agent| {
        configuration(agent)["refused"].is_string()
    });
    let refused = configuration(&agent)["refused"].as_str().unwrap().to_owned();
    assert!(
        refused.contains("correlation.stuck_aftr") && refused.contains("did you mean \"correlation.stuck_after\"?"),
        "{refused}"
    );
    assert_eq!(agent.metric("sandglass_config_last_reload_successful"), Some(0.0));
    assert_eq!(
        agent.metric("sandglass_config_last_reload_success_timestamp_seconds"),
        loaded_at
    );
    assert_eq!(agent.health()["store"]["max_traces"], 11);
    assert!(agent.log().contains("did you mean"), "{}", agent.log());

    // A file that is loaded on request alone would be loaded anyway within seconds: the same file, refused a second time.
    let refusals = |agent: &Running| agent.log().matches("the configuration is refused").count();
    assert_eq!(refusals(&agent), 1);
    hang_up(&agent);
    agent.until("SIGHUP judges the file again", |agent| refusals(agent) == 2);

    map.put("correlation:\n  stuck_after: 20s\n");
    agent.until("the first one is back", |agent| {
        configuration(agent)["hash"] == first["hash"]
    });
    assert_eq!(agent.metric("sandglass_config_last_reload_successful"), Some(1.0));
    assert_eq!(agent.metric("sandglass_config_needs_restart{key=\"http.hosts\"}"), None);
    assert_eq!(agent.health()["otlp"]["sampling"], "all");
}

/// Plugins run while the configuration changes all the time: each of them is counted.
#[test]
fn a_reload_under_traffic_loses_no_event() {
    let folder = tempfile::tempdir().unwrap();
    let mut map = ConfigMap::new(folder.path(), "store:\n  max_traces: 100\n");
    let Some(agent) = start("a_reload_under_traffic_loses_no_event", folder.path(), &map) else {
        return;
    };
    let plugins = folder.path().join("bin");
    fs::create_dir(&plugins).unwrap();
    let name = format!("reloaded-{}", std::process::id());
    fs::copy("/bin/true", plugins.join(&name)).unwrap();
    let ended = AtomicBool::new(false);
    let reloads = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut count = 0;
            while !ended.load(Ordering::Relaxed) || count < 3 {
                count += 1;
                map.put(match count % 3 {
                    0 => "store:\n  max_traces: 3\notlp:\n  sampling: bad\n  good_per_thousand: 0\n",
                    1 => "no: configuration\n",
                    _ => "store:\n  max_traces: 200\n",
                });
                let judged = |agent: &Running| {
                    let log = agent.log();
                    log.matches("the configuration was loaded again").count()
                        + log.matches("the configuration is refused").count()
                };
                let before = judged(&agent);
                hang_up(&agent);
                agent.until("it is judged", |agent| judged(agent) > before);
            }
            count
        });
        for number in 0..PLUGINS {
            let status = Command::new(plugins.join(&name))
                .env_clear()
                .envs([
                    ("CNI_COMMAND", "ADD"),
                    ("CNI_CONTAINERID", &*format!("{name}-{number}")),
                    ("CNI_NETNS", "/proc/self/ns/net"),
                    ("CNI_IFNAME", "eth0"),
                    ("CNI_PATH", plugins.to_str().unwrap()),
                ])
                .status();
            assert!(status.unwrap().success());
        }
        ended.store(true, Ordering::Relaxed);
        changes.join().unwrap()
    });
    let counted = |agent: &Running| -> f64 {
        let metrics = agent.metrics();
        let ours = metrics.lines().filter(|line| {
            line.starts_with("sandglass_cni_plugin_duration_seconds_count")
                && line.contains(&format!("plugin=\"{name}\""))
        });
        ours.filter_map(|line| line.split("} ").nth(1)?.split(' ').next()?.parse::<f64>().ok())
            .sum()
    };
    agent.until("each plugin is counted", |agent| counted(agent) >= f64::from(PLUGINS));
    assert!(reloads >= 3, "{reloads}");
    assert_eq!(
        (counted(&agent), agent.health()["shed"]["total"].as_u64()),
        (f64::from(PLUGINS), Some(0))
    );
}

const PLUGINS: u32 = 300;
