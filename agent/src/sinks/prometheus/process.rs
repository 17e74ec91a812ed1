//! The agent's own processor time, memory and open files, under the names that Prometheus client libraries use
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>).
//!
//! Read from `/proc/self` at scrape time; where that does not exist the metrics are absent. Does not: cache.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Collects `sandglass_process_*`.
#[derive(Debug)]
pub struct ProcessCollector;

/// Clock ticks per second: `USER_HZ`, 100 on x86_64 and arm64 (sysconf(3), `_SC_CLK_TCK`).
const TICKS: f64 = 100.0;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        if let Some(seconds) = cpu_seconds() {
            ConstCounter::new(seconds).encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                "User and system processor time of the agent",
                None,
                MetricType::Counter,
            )?)?;
        }
        if let Some(bytes) = resident_bytes() {
            ConstGauge::new(bytes).encode(encoder.encode_descriptor(
                "process_resident_memory_bytes",
                "Resident memory of the agent",
                None,
                MetricType::Gauge,
            )?)?;
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            let open = i64::try_from(files.count()).unwrap_or(i64::MAX);
            ConstGauge::new(open).encode(encoder.encode_descriptor(
                "process_open_fds",
                "Open file descriptors of the agent",
                None,
                MetricType::Gauge,
            )?)?;
        }
        Ok(())
    }
}

/// Fields 14 and 15 of `/proc/self/stat` (proc_pid_stat(5)); the name in field 2 may hold spaces and parentheses.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
