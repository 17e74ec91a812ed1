//! Each fault on the way to the collector, with a spool: what the maker made arrives with its ids, waits, or is dropped by a named counter.
//!
//! The list of faults and where each is tested: docs/faults.md. Time is scaled or moved by hand where a fault takes minutes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use sandglass_model::ClockAnchor;
use tempfile::TempDir;

use super::*;
use crate::sinks::sampling::Policy;
use config::SpoolOptions;

/// A span by its own and its trace's id.
type Ids = (Vec<u8>, Vec<u8>);

/// Makes traces, and keeps a list of them: one of three is bad.
#[derive(Default)]
pub(super) struct Maker {
    spans: u64,
    bad: BTreeSet<Ids>,
    all: BTreeSet<Ids>,
}

impl Maker {
    /// Offers the traces of these numbers.
    pub(super) fn offer(&mut self, sink: &OtlpSink, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let is_bad = number.is_multiple_of(3);
            let trace = if is_bad { full_trace(number) } else { small(number) };
            let ids = trace
                .spans
                .iter()
                .map(|span| (trace.id.0.to_be_bytes().to_vec(), span.id.0.to_be_bytes().to_vec()));
            let ids: Vec<Ids> = ids.collect();
            self.spans += ids.len() as u64;
            if is_bad {
                self.bad.extend(ids.iter().cloned());
            }
            self.all.extend(ids);
            sink.offer(&trace);
        }
    }

    /// Every bad trace arrived whole, nothing arrived that was not made, and the numbers of the sink add up to what was made. Spans that
    /// arrived more often than once had the same ids.
    pub(super) fn judge(&self, what: &str, arrived: &[Span], status: &OtlpStatus) {
        self.adds_up(what, status);
        let arrived: BTreeSet<Ids> = arrived
            .iter()
            .map(|span| (span.trace_id.clone(), span.span_id.clone()))
            .collect();
        let lost = self.bad.difference(&arrived).count();
        assert_eq!(lost, 0, "{what}: of {} spans of bad traces", self.bad.len());
        assert!(arrived.is_subset(&self.all), "{what}: what nobody made arrived");
    }

    pub(super) fn adds_up(&self, what: &str, status: &OtlpStatus) {
        let dropped = status.rejected + status.evicted + status.expired + status.corrupt + status.shed;
        let accounted = status.delivered + status.waiting + dropped + status.sampled_out;
        assert_eq!(accounted, self.spans, "{what}: {status:?}");
    }
}

pub(super) fn spooled(mut config: Resolved, directory: &Path) -> Resolved {
    config.spool = Some(SpoolOptions {
        directory: directory.join("spool"),
        bytes: 128 << 20,
        age: Duration::from_secs(24 * 3_600),
        clock: ClockAnchor::default,
    });
    config.sampling = Policy::Bad {
        good_per_thousand: 0,
        slow_ns: u64::MAX,
    };
    config.tuning.queue_traces = 50_000;
    config
}

/// A spooled configuration of a collector that is away, and its address.
async fn nobody(directory: &Path) -> (Resolved, String) {
    let gone = Collector::http(Vec::new()).await;
    let config = spooled(http(&gone), directory);
    (config, gone.go_away().await.to_string())
}

/// Waits longer than [`until`], for thousands of traces on a busy machine.
async fn patiently(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LONG * 9, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn whatever_the_collector_answers_every_bad_trace_arrives() {
    let again = |seconds: &str| Act::Answer(429, vec![("retry-after", seconds.to_owned())], Vec::new());
    for (what, script) in [
        ("429 with Retry-After", vec![again("1"), again("0"), again("0")]),
        ("503", vec![Act::status(503); 6]),
        ("half a response", vec![Act::Truncate(200); 6]),
        ("a head without a body", vec![Act::HeadOnly(200); 3]),
        ("no response", vec![Act::Reset, Act::Close, Act::Reset]),
        (
            "a response that never comes",
            vec![Act::Hang(Duration::from_secs(60)); 3],
        ),
    ] {
        let directory = TempDir::new().unwrap();
        let faults = script.len();
        let collector = Collector::http(script).await;
        let mut config = spooled(http(&collector), directory.path());
        config.connection.timeout = SHORT;
        config.tuning.batch_spans = 24;
        let sink = start(config);
        let mut maker = Maker::default();
        maker.offer(&sink, 0..60);
        maker.adds_up(what, &sink.status());
        until_sent(what, &sink).await;
        assert_eq!(sink.stop(LONG).await, 0, "{what}");
        maker.judge(what, &collector.spans(), &sink.status());
        let seen = collector.seen();
        assert!(seen.len() >= faults + 4, "{what}: {} requests", seen.len());
        assert_eq!(sink.status().delivered, 20 * 6, "{what}");
    }
}

#[tokio::test]
async fn what_a_collector_refuses_in_part_is_counted_and_the_rest_arrives() {
    let directory = TempDir::new().unwrap();
    // ExportTraceServiceResponse { partial_success { rejected_spans: 2 } }
    let partial = Act::Answer(200, Vec::new(), b"\x0a\x02\x08\x02".to_vec());
    let collector = Collector::http(vec![partial; 3]).await;
    let mut config = spooled(http(&collector), directory.path());
    config.tuning.batch_spans = 24;
    let sink = start(config);
    let mut maker = Maker::default();
    maker.offer(&sink, 0..60);
    until_sent("the end", &sink).await;
    assert_eq!(sink.stop(LONG).await, 0);
    let status = sink.status();
    maker.judge("partial success", &collector.spans(), &status);
    assert_eq!((status.delivered, status.rejected), (20 * 6 - 3 * 2, 3 * 2));
    let seen = collector.seen();
    let distinct: BTreeSet<_> = seen.iter().map(|seen| &seen.raw).collect();
    assert_eq!(distinct.len(), seen.len(), "none is sent again");
}

/// 50 sandboxes a second for ten minutes, as fast as they can be made; the clock of the spool goes on by ten minutes.
#[tokio::test]
async fn ten_minutes_without_a_collector_lose_nothing() {
    static SECONDS: AtomicU64 = AtomicU64::new(1_000);
    fn clock() -> ClockAnchor {
        let now = SECONDS.load(Ordering::Relaxed) * 1_000_000_000;
        ClockAnchor {
            boot_ns: now,
            unix_ns: fixture::UNIX_NS + now,
        }
    }
    let directory = TempDir::new().unwrap();
    let (mut config, address) = nobody(directory.path()).await;
    config.spool.as_mut().unwrap().clock = clock;
    config.sampling = Policy::All;
    config.tuning.batch_spans = defaults::BATCH_SPANS;
    let sink = start(config);
    let mut maker = Maker::default();
    for second in 0..600 {
        maker.offer(&sink, second * 50..(second + 1) * 50);
        SECONDS.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
    // The batch that waits for others, and the request under way, are not in it.
    let batch = defaults::BATCH_SPANS as u64;
    patiently("all is in the spool", || {
        sink.delivery.spool().unwrap().depth.spans + 2 * batch >= maker.spans
    })
    .await;
    let away = sink.status();
    maker.adds_up("away", &away);
    assert_eq!((away.delivered, away.failing), (0, true));
    assert_eq!(sink.delivery.waiting().spans, 0, "nothing is in memory");
    let collector = Collector::start(&address, Vec::new(), false, None).await;
    until_sent("all is delivered", &sink).await;
    assert_eq!(sink.stop(LONG).await, 0);
    let arrived = collector.spans();
    maker.judge("ten minutes", &arrived, &sink.status());
    assert_eq!(
        arrived.len() as u64,
        maker.spans,
        "each once: nothing was ever under way"
    );
}

/// The wall clock steps by an hour, forth and back, while traces wait, and over a restart of the agent.
#[tokio::test]
async fn a_wall_clock_that_steps_by_an_hour_drops_nothing() {
    const HOUR: u64 = 3_600_000_000_000;
    static UNIX: AtomicU64 = AtomicU64::new(fixture::UNIX_NS);
    static BOOT: AtomicU64 = AtomicU64::new(10 * HOUR);
    fn clock() -> ClockAnchor {
        ClockAnchor {
            boot_ns: BOOT.fetch_add(1_000_000, Ordering::Relaxed),
            unix_ns: UNIX.load(Ordering::Relaxed),
        }
    }
    let directory = TempDir::new().unwrap();
    let (mut config, address) = nobody(directory.path()).await;
    let spool = config.spool.as_mut().unwrap();
    spool.clock = clock;
    spool.age = Duration::from_secs(1_800);
    let mut maker = Maker::default();
    let all_is_spooled = |sink: &OtlpSink, made: u64| sink.delivery.spool().unwrap().depth.spans + 6 >= made;
    let sink = start(config.clone());
    for (first, step) in [(0, HOUR), (30, 0), (60, u64::MAX - HOUR + 1), (90, u64::MAX - HOUR + 1)] {
        maker.offer(&sink, first..first + 30);
        until("it is in the spool", || all_is_spooled(&sink, 60 * (first / 30 + 1))).await;
        // By an hour forth, and twice back by wrapping around.
        UNIX.fetch_add(step, Ordering::Relaxed);
    }
    let left = sink.stop(SHORT).await;
    maker.adds_up("away", &sink.status());
    drop(sink);
    UNIX.fetch_add(2 * HOUR, Ordering::Relaxed);
    let collector = Collector::start(&address, Vec::new(), false, None).await;
    let sink = start(config);
    until("all is delivered", || sink.status().delivered == left).await;
    assert_eq!(sink.stop(LONG).await, 0);
    let status = sink.status();
    assert_eq!((status.expired, status.corrupt, left), (0, 0, 40 * 6));
    let arrived: BTreeSet<Ids> = collector
        .spans()
        .into_iter()
        .map(|span| (span.trace_id, span.span_id))
        .collect();
    assert_eq!(arrived, maker.bad);
}

/// A suspended node: the boot clock goes on meanwhile, the clock of timers does not (clock_gettime(2), CLOCK_BOOTTIME). Simulated: the spool's clock
/// jumps, timers do not notice.
#[tokio::test]
async fn what_outlived_a_suspend_is_sent_and_what_became_too_old_is_counted() {
    const HOUR: u64 = 3_600_000_000_000;
    static SLEPT: AtomicU64 = AtomicU64::new(0);
    fn clock() -> ClockAnchor {
        let now = HOUR + SLEPT.load(Ordering::Relaxed);
        ClockAnchor {
            boot_ns: now,
            unix_ns: fixture::UNIX_NS + now,
        }
    }
    for (hours, expected) in [(2, 20 * 6), (4, 0)] {
        SLEPT.store(0, Ordering::Relaxed);
        let directory = TempDir::new().unwrap();
        let (mut config, address) = nobody(directory.path()).await;
        let spool = config.spool.as_mut().unwrap();
        (spool.clock, spool.age) = (clock, Duration::from_secs(3 * 3_600));
        let sink = start(config);
        let mut maker = Maker::default();
        maker.offer(&sink, 0..60);
        until("it is in the spool", || {
            sink.delivery.spool().unwrap().depth.spans == 20 * 6
        })
        .await;
        SLEPT.store(hours * HOUR, Ordering::Relaxed);
        // An attempt that began before has failed by then.
        tokio::time::sleep(SHORT).await;
        let collector = Collector::start(&address, Vec::new(), false, None).await;
        maker.offer(&sink, 60..120);
        until_sent("the end", &sink).await;
        assert_eq!(sink.stop(LONG).await, 0);
        let status = sink.status();
        maker.adds_up("suspend", &status);
        assert_eq!(status.delivered, 20 * 6 + expected, "{hours} h: {status:?}");
        assert_eq!(status.expired, 20 * 6 - expected, "{hours} h");
        assert_eq!(collector.spans().len() as u64, status.delivered);
    }
}

/// Connections are neither accepted nor refused: the listener's queue is full, and the kernel drops every further SYN (listen(2)).
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_black_hole_is_left_at_the_timeout_and_nothing_is_lost() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

    let directory = TempDir::new().unwrap();
    // No program that another test starts inherits it.
    let hole = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&hole, true).unwrap();
    bind(&hole, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let at = std::net::SocketAddr::try_from(rustix::net::getsockname(&hole).unwrap()).unwrap();
    let address = at.to_string();
    let endpoint = format!("http://{address}");
    let mut config = spooled(config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]), directory.path());
    listen(&hole, 0).unwrap();
    let mut held = Vec::new();
    loop {
        match tokio::time::timeout(SHORT, tokio::net::TcpStream::connect(at)).await {
            Ok(stream) => held.push(stream.unwrap()),
            Err(_) => break,
        }
        assert!(held.len() < 16, "the queue is never full");
    }
    config.connection.timeout = SHORT;
    let sink = start(config);
    let mut maker = Maker::default();
    maker.offer(&sink, 0..60);
    until("two attempts", || sink.delivery.failure().streak >= 2).await;
    let status = sink.status();
    assert!(
        status.last_error.as_ref().unwrap().contains("within 300 ms"),
        "{status:?}"
    );
    maker.adds_up("black hole", &status);
    // Connections that were queued are reset, and a collector listens in place of the hole.
    drop((hole, held));
    let collector = Collector::start(&address, Vec::new(), false, None).await;
    until_sent("the end", &sink).await;
    assert_eq!(sink.stop(LONG).await, 0);
    maker.judge("black hole", &collector.spans(), &sink.status());
}

/// A disk that is full from the beginning, and has room again later.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_means_memory_which_is_counted_and_nothing_is_lost() {
    use std::process::Command;

    let test = "a_full_disk_means_memory_which_is_counted_and_nothing_is_lost";
    let directory = TempDir::new().unwrap();
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(directory.path());
    if !mount.status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {test}: cannot mount a tmpfs");
        return;
    }
    let (mut config, address) = nobody(directory.path()).await;
    // A request for each trace: several of them fit, not all.
    config.tuning.batch_spans = 1;
    config.connection.gzip = false;
    let filler = directory.path().join("filler");
    std::fs::write(&filler, vec![1; 128 << 10]).unwrap();
    let sink = start(config);
    let mut maker = Maker::default();
    maker.offer(&sink, 0..300);
    until("some are in memory", || sink.metrics.spool_fallback.get() > 0).await;
    until("all is sealed", || {
        let waiting = sink.delivery.waiting().spans + sink.delivery.spool().unwrap().depth.spans;
        waiting + 6 >= 100 * 6
    })
    .await;
    let status = sink.status();
    maker.adds_up("full", &status);
    assert!(
        status.spool_problem.is_some() && status.spool_spans > Some(0),
        "{status:?}"
    );
    assert_eq!((status.evicted, status.shed), (0, 0));
    std::fs::remove_file(filler).unwrap();
    let collector = Collector::start(&address, Vec::new(), false, None).await;
    until_sent("the end", &sink).await;
    // There is room again: the next one is on disk.
    maker.offer(&sink, 300..303);
    until_sent("the end", &sink).await;
    assert_eq!(sink.status().spool_problem, None);
    assert_eq!(sink.stop(LONG).await, 0);
    maker.judge("full", &collector.spans(), &sink.status());
    drop(sink);
    let _ = Command::new("umount").arg("--lazy").arg(directory.path()).status();
}

const HOSTS: &str = "SANDGLASS_TEST_HOSTS";
const NAME: &str = "collector.sandglass.test";

/// By itself not a test, but what `a_name_that_does_not_resolve_for_a_while_loses_nothing` runs with a table of hosts of its own.
#[tokio::test]
async fn named_child() {
    let Ok(hosts) = std::env::var(HOSTS) else {
        return;
    };
    let collector = Collector::http(Vec::new()).await;
    let directory = TempDir::new().unwrap();
    let endpoint = format!("http://{NAME}:{}", collector.address.port());
    let config = spooled(config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]), directory.path());
    let sink = start(config);
    let mut maker = Maker::default();
    maker.offer(&sink, 0..60);
    until("two attempts", || sink.delivery.failure().streak >= 2).await;
    let status = sink.status();
    assert!(status.last_error.as_ref().unwrap().contains(NAME), "{status:?}");
    assert_eq!(collector.seen().len(), 0);
    maker.adds_up("no name", &status);
    std::fs::write(hosts, format!("127.0.0.1 localhost {NAME}\n")).unwrap();
    until_sent("the end", &sink).await;
    assert_eq!(sink.stop(LONG).await, 0);
    maker.judge("no name", &collector.spans(), &sink.status());
    println!("everything arrived");
}

/// In a mount namespace of its own: its `/etc/hosts` lacks the collector for a while, and nobody answers its resolver.
#[cfg(target_os = "linux")]
#[test]
fn a_name_that_does_not_resolve_for_a_while_loses_nothing() {
    use std::process::Command;

    let test = "a_name_that_does_not_resolve_for_a_while_loses_nothing";
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("hosts"), "127.0.0.1 localhost\n").unwrap();
    std::fs::write(
        path("resolv.conf"),
        "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
    )
    .unwrap();
    let (hosts, resolver) = (path("hosts"), path("resolv.conf"));
    let own = format!("mount --bind {hosts} /etc/hosts && mount --bind {resolver} /etc/resolv.conf");
    let unshared = |then: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("{own} && {then}"), "sh"]);
        command
    };
    if !unshared("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {test}: a mount namespace cannot be made here");
        return;
    }
    let output = unshared("exec \"$@\"")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "sinks::otlp::tests::outages::named_child", "--nocapture"])
        .env(HOSTS, &hosts)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("everything arrived"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
