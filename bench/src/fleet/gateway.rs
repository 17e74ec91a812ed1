//! The gateway of `deploy/examples` and a Jaeger behind it: real processes, with their processor time across restarts.
//!
//! Both are Jaeger's build of the OpenTelemetry Collector, which has the gateway's processors and connectors
//! (`scripts/peer.sh jaeger`). Of the example only addresses are changed, the health extension is left out, which that build does not
//! have, and what is exported goes to the ledger too. Does not: play the fleet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sandglass_lab::jaeger::{Jaeger, Ports};
use serde_json::{Value, json};

use super::ledger::Ledger;
use crate::processor;

/// The gateway, and the back end behind it.
#[derive(Debug)]
pub struct Gateway {
    binary: PathBuf,
    folder: PathBuf,
    config: String,
    /// Where agents send to, across restarts.
    pub ports: Ports,
    process: Option<Jaeger>,
    /// Processor time of the runs that have ended.
    earlier: Duration,
    back_end: Jaeger,
}

/// Processor time and memory of both.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time of the gateway.
    pub gateway: Duration,
    /// Of the Jaeger behind it.
    pub back_end: Duration,
    /// Resident memory of the gateway, bytes.
    pub gateway_bytes: f64,
}

impl Gateway {
    /// Starts both, with their files in `folder`.
    pub fn start(binary: &Path, folder: &Path, ledger: &Ledger) -> Result<Gateway> {
        let (behind, before) = (folder.join("back-end"), folder.join("gateway"));
        std::fs::create_dir_all(&behind)?;
        std::fs::create_dir_all(&before)?;
        let back_end = Jaeger::start(binary, &behind)?;
        let ports = Ports::free(0)?;
        let config = configuration(ports, back_end.ports.grpc, ledger)?.to_string();
        let mut gateway = Gateway {
            binary: binary.to_owned(),
            folder: before,
            config,
            ports,
            process: None,
            earlier: Duration::ZERO,
            back_end,
        };
        gateway.resume()?;
        Ok(gateway)
    }

    /// Ends the gateway as Kubernetes does, by SIGTERM, and waits for it.
    pub fn interrupt(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            // Read before the end: it takes some processor time to end, which is lost.
            self.earlier += processor::time_of(process.id())?;
            ensure!(
                process.terminate(TERMINATION)?,
                "the gateway did not end within {TERMINATION:?} of SIGTERM"
            );
        }
        Ok(())
    }

    /// Starts the gateway where it is not running.
    pub fn resume(&mut self) -> Result<()> {
        if self.process.is_none() {
            let started = Jaeger::with_config(&self.binary, &self.folder, self.ports, &self.config);
            self.process = Some(started?);
        }
        Ok(())
    }

    /// Usage so far.
    pub fn usage(&self) -> Result<Usage> {
        let (now, gateway_bytes) = match &self.process {
            Some(process) => (
                processor::time_of(process.id())?,
                processor::resident_bytes(process.id())?,
            ),
            None => (Duration::ZERO, 0.0),
        };
        Ok(Usage {
            gateway: self.earlier + now,
            back_end: processor::time_of(self.back_end.id())?,
            gateway_bytes,
        })
    }

    /// Spans that the Jaeger behind the gateway has of a trace.
    pub fn spans_in_jaeger(&self, trace: &str) -> usize {
        let address = sandglass_lab::ports::local(self.back_end.ports.query);
        let Ok((200, text)) = crate::agent::get(address, &format!("/api/traces/{trace}")) else {
            return 0;
        };
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        answer["data"][0]["spans"].as_array().map_or(0, Vec::len)
    }
}

/// The example's configuration, with addresses of this machine.
fn configuration(ports: Ports, jaeger: u16, ledger: &Ledger) -> Result<Value> {
    let path = sandglass_lab::file("deploy/examples/collector-gateway.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let map = documents.iter().find(|document| document["kind"] == "ConfigMap");
    let inner = map.and_then(|map| map["data"]["collector.yaml"].as_str());
    let mut config: Value = serde_saphyr::from_str(inner.context("the example has no collector.yaml")?)?;
    let local = |port: u16| json!(format!("127.0.0.1:{port}"));
    let list = format!("http://{}", ledger.address);
    for (path, value) in [
        ("/receivers/otlp/protocols/grpc/endpoint", local(ports.grpc)),
        ("/receivers/otlp/protocols/http/endpoint", local(ports.http)),
        ("/exporters/otlp~1jaeger/endpoint", local(jaeger)),
        ("/exporters/otlphttp~1prometheus/endpoint", json!(list)),
        ("/extensions", json!({})),
        ("/service/extensions", json!([])),
    ] {
        let place = config.pointer_mut(path);
        *place.with_context(|| format!("the example has no {path}"))? = value;
    }
    config["service"]["telemetry"] = json!({"metrics": {"level": "none"}});
    config["exporters"]["otlphttp/prometheus"]["compression"] = json!("none");
    config["exporters"]["otlphttp/ledger"] = json!({"endpoint": list, "compression": "none"});
    let pipelines = config["service"]["pipelines"].as_object_mut();
    let mut listed = 0;
    for pipeline in pipelines.context("the example has no pipelines")?.values_mut() {
        if let Some(exporters) = pipeline["exporters"].as_array_mut()
            && exporters.contains(&json!("otlp/jaeger"))
        {
            exporters.push(json!("otlphttp/ledger"));
            listed += 1;
        }
    }
    ensure!(listed > 0, "no pipeline of the example exports to otlp/jaeger");
    Ok(config)
}

/// A pod's default `terminationGracePeriodSeconds`.
const TERMINATION: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_example_exports_is_on_the_list_too() {
        let ledger = Ledger::start().await.unwrap();
        let ports = Ports::free(0).unwrap();
        let config = configuration(ports, 4317, &ledger).unwrap();
        let pipelines = config["service"]["pipelines"].as_object().unwrap();
        for (name, pipeline) in pipelines {
            let exporters = pipeline["exporters"].as_array().unwrap();
            assert_eq!(
                exporters.contains(&json!("otlp/jaeger")),
                exporters.contains(&json!("otlphttp/ledger")),
                "{name}"
            );
        }
        // Nothing of the cluster's addresses is left.
        assert!(!config.to_string().contains("observability"), "{config}");
    }
}
