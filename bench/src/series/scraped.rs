//! A real Prometheus that scrapes as many targets as a server on loopback plays: the same exposition under different instances.
//!
//! Used by the part `series`. Every target answers with the same values at each scrape, as idle nodes do. Does not: evaluate rules, or
//! keep what Prometheus stored.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sandglass_lab::ports::{free, local};
use tokio::net::TcpListener;

use crate::agent::{Metrics, get};
use crate::processor;

/// What the scrapes took.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Scrapes of one target in the measured period.
    pub scrapes: u64,
    /// Processor time of Prometheus in it.
    pub processor: Duration,
    /// Series in its head at the end.
    pub head_series: f64,
    /// Its resident memory at the end.
    pub resident_bytes: f64,
    /// Its version.
    pub version: String,
}

/// The Prometheus that `SANDGLASS_PROMETHEUS` names, that `scripts/peer.sh` has built, or that is in PATH.
#[must_use]
pub fn prometheus() -> Option<PathBuf> {
    let in_path = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&path).map(|folder| folder.join("prometheus"));
        places.find(|place| place.is_file())
    };
    sandglass_lab::built::peer("SANDGLASS_PROMETHEUS", "prometheus").or_else(in_path)
}

/// Lets Prometheus scrape `targets` targets `rounds` times, after it has seen each once.
pub fn scrape(binary: &Path, text: String, targets: u64, rounds: u32, interval: Duration) -> Result<Load> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let served = Arc::new(AtomicU64::new(0));
    let address = runtime.block_on(serve(text, targets, Arc::clone(&served)))?;
    let folder = tempfile::tempdir()?;
    let process = Process::start(binary, folder.path(), &configuration(address, targets, interval))?;
    let begin = Instant::now();
    while served.load(Ordering::Relaxed) < 2 * targets {
        if begin.elapsed() > START {
            bail!(
                "Prometheus scraped {} times in {START:?}",
                served.load(Ordering::Relaxed)
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let (scrapes, used) = (served.load(Ordering::Relaxed), processor::time_of(process.child.id())?);
    std::thread::sleep(interval * rounds);
    let load = Load {
        scrapes: served.load(Ordering::Relaxed) - scrapes,
        processor: processor::time_of(process.child.id())?.saturating_sub(used),
        ..Load::default()
    };
    let (_, text) = get(process.address, "/metrics")?;
    let own = Metrics::parse(&text);
    // Beside `goversion`.
    let build = text
        .lines()
        .find_map(|line| line.strip_prefix("prometheus_build_info{"));
    let version = build.and_then(|labels| labels.split_once(",version=\"")?.1.split('"').next());
    Ok(Load {
        head_series: own.sum("prometheus_tsdb_head_series", &[]),
        resident_bytes: processor::resident_bytes(process.child.id())?,
        version: format!("Prometheus {}", version.unwrap_or("of an unknown version")),
        ..load
    })
}

async fn serve(text: String, targets: u64, served: Arc<AtomicU64>) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let body = Bytes::from(text);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (body, served) = (body.clone(), Arc::clone(&served));
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let response = answer(request.uri().path(), targets, &body, &served);
                async { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

/// `/metrics/<number>` of a target.
fn answer(path: &str, targets: u64, body: &Bytes, served: &AtomicU64) -> Response<Full<Bytes>> {
    let number = path
        .strip_prefix("/metrics/")
        .and_then(|number| number.parse::<u64>().ok());
    let is_target = number.is_some_and(|number| number < targets);
    let mut response = Response::new(Full::new(if is_target { body.clone() } else { Bytes::new() }));
    if is_target {
        served.fetch_add(1, Ordering::Relaxed);
        let kind = HeaderValue::from_static(sandglass::sinks::prometheus::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
    } else {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

fn configuration(address: SocketAddr, targets: u64, interval: Duration) -> String {
    let mut config = format!(
        "global: {{scrape_interval: {}ms}}\nscrape_configs:\n  - job_name: sandglass\n    static_configs:\n",
        interval.as_millis()
    );
    for number in 0..targets {
        // Writing to a String cannot fail.
        let _ = writeln!(
            config,
            "      - {{targets: ['{address}'], labels: {{__metrics_path__: /metrics/{number}, instance: node-{number:05}, node: node-{number:05}}}}}"
        );
    }
    config
}

/// A Prometheus of the benchmark's own, killed when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(binary: &Path, folder: &Path, config: &str) -> Result<Process> {
        let file = folder.join("prometheus.yaml");
        std::fs::write(&file, config)?;
        let address = local(free([0])?[0]);
        let child = Command::new(binary)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--enable-feature=exemplar-storage")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Process { child, address })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Longest time until every target was scraped twice.
const START: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_a_path_and_a_name_of_its_own() {
        let config = configuration(local(1), 3, Duration::from_secs(5));
        assert_eq!(config.matches("__metrics_path__: /metrics/").count(), 3);
        assert!(config.contains("instance: node-00002") && config.contains("scrape_interval: 5000ms"));
        let served = AtomicU64::new(0);
        let body = Bytes::from_static(b"x 1\n");
        for (path, status) in [
            ("/metrics/2", 200),
            ("/metrics/3", 404),
            ("/metrics", 404),
            ("/metrics/x", 404),
        ] {
            assert_eq!(answer(path, 3, &body, &served).status(), status, "{path}");
        }
        assert_eq!(served.load(Ordering::Relaxed), 1);
    }
}
