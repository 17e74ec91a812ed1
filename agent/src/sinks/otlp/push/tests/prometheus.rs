//! The push into a real Prometheus: its OTLP receiver makes the scrape's names of it, native histograms and exemplars; and that of
//! `deploy/examples/prometheus.yaml`, with its remote write.
//!
//! Runs where `SANDGLASS_PROMETHEUS` names a Prometheus 3 binary, or `scripts/peer.sh prometheus` has built one; skipped, by name,
//! elsewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::super::tests::back_ends::{configuration, documents, set};
use super::*;

const FEATURES: &str = "--enable-feature=exemplar-storage,native-histograms";

fn peer(test: &str) -> Option<PathBuf> {
    let binary = sandglass_lab::built::peer("SANDGLASS_PROMETHEUS", "prometheus");
    if binary.is_none() {
        eprintln!("SKIPPED {test}: no Prometheus 3; scripts/peer.sh prometheus builds one");
    }
    binary
}

struct Prometheus {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Of the test's own, with an OTLP receiver.
    fn receiving(binary: &Path) -> Prometheus {
        let text =
            "storage: {exemplars: {max_exemplars: 1000}}\notlp: {promote_resource_attributes: [k8s.node.name]}\n";
        let arguments = ["--web.enable-otlp-receiver", FEATURES];
        Prometheus::start(binary, text, arguments.map(str::to_owned))
    }

    fn start(binary: &Path, text: &str, arguments: impl IntoIterator<Item = String>) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yaml");
        std::fs::write(&config, text).unwrap();
        let [port] = sandglass_lab::ports::free([0]).unwrap();
        let process = Command::new(binary)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Prometheus {
            process,
            port,
            _folder: folder,
        }
    }

    /// The data of an answer of the API; `Null` while there is none.
    async fn get(&self, path: &str) -> Value {
        let answer = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let request = format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<String, std::io::Error>(answer)
        };
        let answer = answer.await.unwrap_or_default();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str::<Value>(body).map_or(Value::Null, |value| value["data"].clone())
    }

    /// The first value of a query, as text; empty while there is none.
    async fn value(&self, query: &str) -> String {
        let data = self.get(&format!("query?query={query}")).await;
        data["result"][0]["value"][1].as_str().unwrap_or_default().to_owned()
    }

    async fn until(&self, query: &str, expected: &str) {
        let begin = Instant::now();
        loop {
            let value = self.value(query).await;
            if value == expected {
                return;
            }
            assert!(begin.elapsed() < LONG, "{query} is {value:?}, not {expected}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn prometheus_has_the_names_of_the_scrape() {
    let Some(binary) = peer("prometheus_has_the_names_of_the_scrape") else {
        return;
    };
    let prometheus = Prometheus::receiving(&binary);
    let subject = Subject::new();
    subject.registry.register_process();
    let product = crate::sinks::prometheus::ProductMetrics::with_buckets(10, Buckets::AndExponential);
    subject.registry.register(|registry| product.register(registry));
    subject.counter.inc_by(41);
    for milliseconds in 1..=1_000 {
        subject
            .seconds
            .observe(f64::from(milliseconds) / 1e3, Some(TraceId(0xabc)));
    }
    let endpoint = format!("http://127.0.0.1:{}/api/v1/otlp", prometheus.port);
    let push = MetricsPush::start(options(&endpoint, &[]), &node(), subject.registry.clone()).unwrap();
    // Prometheus is still starting: the first pushes fail.
    prometheus.until("sandglass_pods_total", "41").await;
    subject.counter.inc();
    push.stop(LONG).await;
    prometheus.until("sandglass_pods_total", "42").await;
    prometheus
        .until("histogram_count(sandglass_taken_seconds)", "1000")
        .await;
    prometheus
        .until("histogram_sum(sandglass_taken_seconds)", "500.5")
        .await;
    let median: f64 = prometheus
        .value("histogram_quantile(0.5,sandglass_taken_seconds)")
        .await
        .parse()
        .unwrap();
    // Values over ten powers of two in at most 160 buckets: a bucket is 9 % wide at most.
    assert!((0.455..0.55).contains(&median), "{median}");
    prometheus
        .until(
            &format!(
                "count(sandglass_pods_total{{instance=\"{}\",job=\"sandglass\"}})",
                node().name
            ),
            "1",
        )
        .await;
    let exemplars = prometheus
        .get("query_exemplars?query=sandglass_taken_seconds&start=0&end=9999999999")
        .await;
    let trace = &exemplars[0]["exemplars"][0]["labels"]["trace_id"];
    assert_eq!(trace, &format!("{:032x}", 0xabc), "{exemplars}");

    let names: BTreeSet<String> = serde_json::from_value(prometheus.get("label/__name__/values").await).unwrap();
    let own = |name: &&String| name.starts_with("sandglass_");
    let text = subject.registry.encode().unwrap();
    let scraped: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .filter(|(name, _)| text.lines().any(|line| line.starts_with(name)))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .filter(|name| {
            text.lines().any(|line| {
                line.split(['{', ' '])
                    .next()
                    .is_some_and(|found| found.starts_with(name.as_str()))
            })
        })
        .collect();
    let pushed: BTreeSet<String> = names.iter().filter(own).cloned().collect();
    assert_eq!(pushed, scraped);
}

/// The Prometheus of the example, with its configuration and its arguments but for addresses and paths, writes to a second one.
#[tokio::test]
async fn the_example_keeps_what_is_pushed_and_writes_it_to_a_long_term_store() {
    let Some(binary) = peer("the_example_keeps_what_is_pushed_and_writes_it_to_a_long_term_store") else {
        return;
    };
    let store = Prometheus::start(
        &binary,
        "storage: {exemplars: {max_exemplars: 1000}}\n",
        ["--web.enable-remote-write-receiver", FEATURES].map(str::to_owned),
    );
    let mut config = configuration("prometheus.yaml", "prometheus.yaml");
    let written = format!("http://127.0.0.1:{}/api/v1/write", store.port);
    set(&mut config, "/remote_write/0/url", json!(written));
    let deployment = documents("prometheus.yaml")
        .into_iter()
        .find(|document| document["kind"] == "Deployment");
    let arguments = deployment.unwrap()["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let arguments: Vec<String> = serde_json::from_value(arguments).unwrap();
    let own =
        |argument: &String| argument.starts_with("--config.file=") || argument.starts_with("--storage.tsdb.path=");
    assert_eq!(arguments.iter().filter(|argument| own(argument)).count(), 2);
    let arguments = arguments.into_iter().filter(|argument| !own(argument));
    let prometheus = Prometheus::start(&binary, &config.to_string(), arguments);

    let subject = Subject::new();
    subject.counter.inc_by(41);
    for milliseconds in 1..=1_000 {
        subject
            .seconds
            .observe(f64::from(milliseconds) / 1e3, Some(TraceId(0xabc)));
    }
    let endpoint = format!("http://127.0.0.1:{}/api/v1/otlp", prometheus.port);
    let push = MetricsPush::start(options(&endpoint, &[]), &node(), subject.registry.clone()).unwrap();
    // The label that the example promotes, native histograms and exemplars: in both.
    let series = format!("sandglass_pods_total{{k8s_node_name=\"{}\"}}", node().name);
    for stored in [&prometheus, &store] {
        stored.until(&series, "41").await;
        stored.until("histogram_count(sandglass_taken_seconds)", "1000").await;
    }
    for stored in [&prometheus, &store] {
        let begin = Instant::now();
        loop {
            // A new one each time: remote write passes on none that came before it knew the series.
            subject.seconds.observe(0.5, Some(TraceId(0xabc)));
            let exemplars = stored
                .get("query_exemplars?query=sandglass_taken_seconds&start=0&end=9999999999")
                .await;
            if exemplars[0]["exemplars"][0]["labels"]["trace_id"] == format!("{:032x}", 0xabc) {
                break;
            }
            assert!(begin.elapsed() < LONG, "{exemplars}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    push.stop(LONG).await;
}
