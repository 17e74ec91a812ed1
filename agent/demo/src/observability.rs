//! `sandglass-demo --observability`: a real Prometheus and a real Jaeger beside the demo, wired to its agent.
//!
//! The command line finds the programs before anything is changed, starts Jaeger before the agent (which exports to it)
//! and Prometheus after (which scrapes it, with the project's rules and alerts). Both listen on loopback, keep what they
//! have in the rig's directory and run in its cgroup, so they go with the rig, even when the demo is killed.
//! Does not: install or build them (`scripts/setup.sh`, `scripts/peer.sh`); bring up Grafana.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use sandglass_lab::jaeger::Ports;
use sandglass_lab::ports::{free, local};
use tokio::net::TcpStream;

use super::rig::Rig;
use sandglass::failure::{Advice, ExitReason};

/// What keeps Prometheus or Jaeger from coming up.
#[derive(Debug, thiserror::Error)]
pub enum ObservabilityError {
    /// A program is not there.
    #[error("{program} is not installed")]
    Missing {
        /// Which.
        program: &'static str,
        /// What to do about it.
        hint: &'static str,
    },
    /// Its files could not be written, or it could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Which.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended, or did not answer in time.
    #[error("{program} did not come up: {last_words}")]
    NotUp {
        /// Which.
        program: &'static str,
        /// End of its log.
        last_words: String,
    },
}

impl Advice for ObservabilityError {
    fn hint(&self) -> Cow<'_, str> {
        let hint: &str = match self {
            ObservabilityError::Missing { hint, .. } => hint,
            ObservabilityError::Start { .. } | ObservabilityError::NotUp { .. } => {
                "the demo without --observability needs neither"
            }
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        match self {
            ObservabilityError::Missing { .. } => ExitReason::Unavailable,
            ObservabilityError::Start { .. } | ObservabilityError::NotUp { .. } => ExitReason::Runtime,
        }
    }
}

/// The programs, found.
#[derive(Clone, Debug)]
pub struct Programs {
    prometheus: PathBuf,
    jaeger: PathBuf,
}

impl Programs {
    /// Looks in `PATH`; for Jaeger first at `SANDGLASS_JAEGER`.
    pub fn find() -> Result<Programs, ObservabilityError> {
        let jaeger = std::env::var_os("SANDGLASS_JAEGER").map(PathBuf::from);
        Ok(Programs {
            prometheus: in_path("prometheus").ok_or(ObservabilityError::Missing {
                program: "prometheus",
                hint: "`make demo ARGS=--observability` installs it; on Debian and Ubuntu it is the package prometheus",
            })?,
            jaeger: jaeger
                .filter(|path| path.is_file())
                .or_else(|| in_path("jaeger"))
                .ok_or(ObservabilityError::Missing {
                    program: "jaeger",
                    hint: "`make demo ARGS=--observability` builds it with Go; or set SANDGLASS_JAEGER to a Jaeger 2 binary",
                })?,
        })
    }
}

/// What runs beside the demo. Dropping it ends it.
#[derive(Debug)]
pub struct Observability {
    programs: Programs,
    children: Vec<Child>,
    /// Where Jaeger takes traces: an OTLP endpoint.
    pub otlp: String,
    /// One line for each address a person may open.
    pub addresses: Vec<String>,
}

impl Observability {
    /// Starts Jaeger.
    pub async fn start(programs: Programs, rig: &Rig) -> Result<Observability, ObservabilityError> {
        const PROGRAM: &str = "jaeger";
        let failed = |source| ObservabilityError::Start {
            program: PROGRAM,
            source,
        };
        let ports = Ports::free(JAEGER_PORT).map_err(failed)?;
        let path = rig.dir().join("jaeger.yaml");
        fs::write(&path, ports.config()).map_err(failed)?;
        let arguments = ["--config".to_owned(), path.display().to_string()];
        let mut observability = Observability {
            children: Vec::new(),
            otlp: format!("http://{}", local(ports.http)),
            addresses: vec![format!("Jaeger is at http://{}/", local(ports.query))],
            programs,
        };
        let binary = observability.programs.jaeger.clone();
        observability.spawn(PROGRAM, &binary, &arguments, rig).map_err(failed)?;
        observability
            .wait_until_up(PROGRAM, &[ports.query, ports.http], rig)
            .await?;
        Ok(observability)
    }

    /// Starts Prometheus, which scrapes the agent at `agent`.
    pub async fn scrape(&mut self, agent: SocketAddr, node: &str, rig: &Rig) -> Result<(), ObservabilityError> {
        const PROGRAM: &str = "prometheus";
        let failed = |source| ObservabilityError::Start {
            program: PROGRAM,
            source,
        };
        let [port] = free([PROMETHEUS_PORT]).map_err(failed)?;
        let dir = rig.dir().join("prometheus");
        fs::create_dir(&dir).map_err(failed)?;
        for (name, text) in RULES {
            fs::write(dir.join(name), text).map_err(failed)?;
        }
        let config = dir.join("prometheus.yaml");
        fs::write(&config, prometheus_config(agent, node)).map_err(failed)?;
        let arguments = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address={}", local(port)),
            "--enable-feature=exemplar-storage".to_owned(),
        ];
        let binary = self.programs.prometheus.clone();
        self.spawn(PROGRAM, &binary, &arguments, rig).map_err(failed)?;
        self.wait_until_up(PROGRAM, &[port], rig).await?;
        let address = local(port);
        self.addresses.push(format!(
            "Prometheus is at http://{address}/ (alerts: http://{address}/alerts)"
        ));
        Ok(())
    }

    fn spawn(&mut self, program: &str, binary: &Path, arguments: &[String], rig: &Rig) -> io::Result<()> {
        let log = File::create(log_of(program, rig))?;
        self.children.push(rig.spawn_beside(binary, arguments, log)?);
        Ok(())
    }

    /// Waits until the program started last takes connections on all of `ports`.
    async fn wait_until_up(
        &mut self,
        program: &'static str,
        ports: &[u16],
        rig: &Rig,
    ) -> Result<(), ObservabilityError> {
        let deadline = Instant::now() + Duration::from_secs(60);
        for port in ports {
            while TcpStream::connect(local(*port)).await.is_err() {
                let child = self.children.last_mut();
                let ended = child.is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
                if ended || Instant::now() > deadline {
                    let log = fs::read_to_string(log_of(program, rig)).unwrap_or_default();
                    let last_words = log.lines().rev().find(|line| !line.is_empty());
                    return Err(ObservabilityError::NotUp {
                        program,
                        last_words: last_words.unwrap_or("its log is empty").to_owned(),
                    });
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }
}

impl Drop for Observability {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Their data is removed with the rig's directory: nothing has to be flushed first.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn log_of(program: &str, rig: &Rig) -> PathBuf {
    rig.dir().join(format!("{program}.log"))
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

fn prometheus_config(agent: SocketAddr, node: &str) -> String {
    let node = node.replace('\'', "''");
    let files: String = RULES.iter().map(|(name, _)| format!("  - {name}\n")).collect();
    format!(
        "global: {{scrape_interval: 2s, evaluation_interval: 5s}}
rule_files:
{files}scrape_configs:
  - job_name: sandglass
    static_configs: [{{targets: ['{agent}'], labels: {{node: '{node}'}}}}]
"
    )
}

/// Where people look for them first.
const JAEGER_PORT: u16 = 16_686;
const PROMETHEUS_PORT: u16 = 9090;
/// The project's rules, as a cluster would load them.
const RULES: [(&str, &str); 3] = [
    (
        "recording.yaml",
        include_str!("../../../dashboards/rules/recording.yaml"),
    ),
    (
        "compatibility.yaml",
        include_str!("../../../dashboards/rules/optional/compatibility.yaml"),
    ),
    ("alerts.yaml", include_str!("../../../dashboards/rules/alerts.yaml")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configurations_are_yaml_with_what_was_given() {
        let text = prometheus_config(local(9477), "it's one");
        let prometheus: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let scrape = &prometheus["scrape_configs"][0]["static_configs"][0];
        assert_eq!(scrape["targets"][0], "127.0.0.1:9477");
        assert_eq!(scrape["labels"]["node"], "it's one");
        assert_eq!(prometheus["rule_files"].as_array().unwrap().len(), RULES.len());
        let ports = Ports {
            query: 1,
            query_grpc: 2,
            http: 3,
            grpc: 4,
        };
        let jaeger: serde_json::Value = serde_saphyr::from_str(&ports.config()).unwrap();
        assert_eq!(jaeger["extensions"]["jaeger_query"]["http"]["endpoint"], "127.0.0.1:1");
        assert_eq!(
            jaeger["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"],
            "127.0.0.1:4"
        );
    }
}
