//! Jaeger 2 with its storage in memory: configuration, start and end.
//!
//! Used by the demo, which starts it in the rig's cgroup, and by the tests of the OTLP sink. Jaeger's configuration is
//! that of an OpenTelemetry collector. Does not: build it (`scripts/peer.sh jaeger`).

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use crate::output::Output;
use crate::ports::{free, local};

/// The ports that one Jaeger listens on, of the loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Page and query API.
    pub query: u16,
    /// Query API over gRPC.
    pub query_grpc: u16,
    /// OTLP over HTTP.
    pub http: u16,
    /// OTLP over gRPC.
    pub grpc: u16,
}

impl Ports {
    /// Free ports; that of the page is `query` where it is free.
    ///
    /// # Errors
    /// When the machine has no port left.
    pub fn free(query: u16) -> io::Result<Ports> {
        let [query, query_grpc, http, grpc] = free([query, 0, 0, 0])?;
        Ok(Ports {
            query,
            query_grpc,
            http,
            grpc,
        })
    }

    /// Jaeger's configuration, in YAML.
    #[must_use]
    pub fn config(&self) -> String {
        let [query, query_grpc, http, grpc] = [self.query, self.query_grpc, self.http, self.grpc].map(local);
        format!(
            "service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry:
    metrics: {{level: none}}
extensions:
  jaeger_storage:
    backends: {{mem: {{memory: {{max_traces: 10000}}}}}}
  jaeger_query:
    storage: {{traces: mem}}
    http: {{endpoint: '{query}'}}
    grpc: {{endpoint: '{query_grpc}'}}
receivers:
  otlp:
    protocols:
      http: {{endpoint: '{http}'}}
      grpc: {{endpoint: '{grpc}'}}
exporters:
  jaeger_storage_exporter: {{trace_storage: mem}}
"
        )
    }
}

/// A Jaeger process of a test's own, killed when dropped.
#[derive(Debug)]
pub struct Jaeger {
    /// Where it listens, once it is up.
    pub ports: Ports,
    process: Child,
    _output: Output,
}

impl Jaeger {
    /// Starts `binary`, with its configuration and its log in `folder`. Does not wait until it is up.
    ///
    /// # Errors
    /// When the file cannot be written or the program cannot be started.
    pub fn start(binary: &Path, folder: &Path) -> io::Result<Jaeger> {
        let ports = Ports::free(0)?;
        Jaeger::with_config(binary, folder, ports, &ports.config())
    }

    /// Starts `binary` with a configuration that listens on `ports`, which is written to `folder`.
    ///
    /// # Errors
    /// When the file cannot be written or the program cannot be started.
    pub fn with_config(binary: &Path, folder: &Path, ports: Ports, config: &str) -> io::Result<Jaeger> {
        let path = folder.join("jaeger.yaml");
        std::fs::write(&path, config)?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(&path).stdin(Stdio::null());
        let output = Output::of(&mut command, folder, "jaeger")?;
        Ok(Jaeger {
            ports,
            process: command.spawn()?,
            _output: output,
        })
    }

    /// Id of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM and waits for the end, for at most `patience`; whether it ended by itself.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    #[cfg(target_os = "linux")]
    pub fn terminate(mut self, patience: Duration) -> io::Result<bool> {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        let begin = Instant::now();
        while begin.elapsed() < patience {
            if self.process.try_wait()?.is_some() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
