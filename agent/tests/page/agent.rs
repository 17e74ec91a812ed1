//! The agent's side: its page and its store, without a pipeline.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use sandglass::health::{Health, ProbeStatus};
use sandglass::http::{HttpOptions, Running, Services, serve};
use sandglass::node::NodeInfo;
use sandglass::sinks::store::StoreOptions;
use sandglass::view::Store;
use sandglass_model::{SandboxId, Timestamp};
use serde_json::json;
use tokio::sync::watch;

use crate::samples;

/// What serves the page, and what the test puts into it.
pub struct Agent {
    pub store: Store,
    server: Running,
    pub stop: watch::Sender<bool>,
}

impl Agent {
    pub async fn start() -> Result<Agent> {
        let node = NodeInfo {
            name: "worker-3".into(),
            service: "sandglass".into(),
            version: "0.1.0".into(),
            boot_id: "6f1c2d3e-aaaa-4bbb-8ccc-0123456789ab".into(),
            os: "Linux".into(),
            kernel: "6.12.43".into(),
            machine: "x86_64".into(),
        };
        let store = Store::new(StoreOptions::live(1_000), node);
        store.known(
            SandboxId("5e1f".repeat(16)),
            samples::usual("kube-system", "coredns-abc", 9, 1).identity,
            Timestamp(7),
        );
        let health = Health::default();
        for (probe, hook, consequence, hint) in [
            ("exec", "tp_btf", "", ""),
            ("stdio", "fentry", "", ""),
            (
                "lock",
                "none",
                "no lock waits",
                "needs kernel 5.19 or newer for contention_begin",
            ),
        ] {
            health.set_probe(ProbeStatus {
                probe: probe.into(),
                hook: hook.into(),
                attached: hook != "none",
                consequence: consequence.into(),
                hint: hint.into(),
            });
        }
        health.events.inc_by(48_211);
        health.orphan.inc_by(3);
        let services = Services {
            store: store.clone(),
            health,
            metrics: Arc::new(|| Ok("# EOF\n".to_owned())),
            alive: Arc::new(|| Ok(())),
            ready: Arc::new(|| Ok(())),
            journal: None,
            otlp: Arc::new(
                || json!({ "endpoint": "127.0.0.1:4318", "delivered_spans": 18_233, "rejected_spans": 0, "queued": 0 }),
            ),
        };
        let options = HttpOptions {
            health_interval: Duration::from_millis(500),
            ..HttpOptions::new(([127, 0, 0, 1], 0).into(), Duration::from_secs(30))
        };
        let (stop, stopped) = watch::channel(false);
        let server = serve(options, services, stopped).await?;
        Ok(Agent { store, server, stop })
    }

    pub fn url(&self, rest: &str) -> String {
        format!("http://{}/{rest}", self.server.address)
    }
}
