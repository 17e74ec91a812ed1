//! The sink with a spool: outages, restarts, kills, faults of the directory; what was made arrives or is counted.

use std::collections::BTreeSet;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::sinks::journal::{Journal, JournalOptions, Keeper};
use crate::test_processes;
use config::SpoolOptions;

fn spooled(mut config: Resolved, directory: &Path) -> Resolved {
    config.spool = Some(SpoolOptions {
        directory: directory.join("spool"),
        bytes: 16 << 20,
        age: Duration::from_secs(3_600),
        clock: sandglass_model::ClockAnchor::default,
    });
    config
}

/// A configuration whose collector is away, and its address.
async fn nobody(directory: &Path) -> (Resolved, String) {
    let gone = Collector::http(Vec::new()).await;
    let config = spooled(one_by_one(http(&gone)), directory);
    (config, gone.go_away().await.to_string())
}

fn numbers(collector: &Collector) -> Vec<u64> {
    let first = |span: &Span| u64::from_be_bytes(span.span_id.clone().try_into().unwrap());
    let number = |id: u64| (id - fixture::span_id(0, 0).0) >> 16;
    collector.spans().iter().map(|span| number(first(span))).collect()
}

fn sums_up(status: &OtlpStatus, made: u64) {
    let dropped = status.rejected + status.evicted + status.expired + status.corrupt + status.shed;
    assert_eq!(status.delivered + status.waiting + dropped, made, "{status:?}");
}

#[tokio::test]
async fn an_outage_over_a_restart_loses_nothing_and_nothing_stays_on_disk() {
    let directory = TempDir::new().unwrap();
    let (config, address) = nobody(directory.path()).await;
    let sink = start(config.clone());
    for number in 0..50 {
        sink.offer(&small(number));
    }
    until("all is in the spool", || {
        sink.delivery.spool().unwrap().depth.spans >= 49
    })
    .await;
    assert_eq!(sink.delivery.waiting().spans, 0, "nothing is in memory");
    assert_eq!(sink.stop(SHORT).await, 50);
    sums_up(&sink.status(), 50);
    // The request under way, if its attempt was cut off, holds the directory until then.
    drop(sink);

    let collector = Collector::start(&address, Vec::new(), false, None).await;
    let sink = start(config);
    sink.offer(&small(50));
    until("delivery", || sink.status().delivered == 51).await;
    assert_eq!(sink.stop(LONG).await, 0);
    sums_up(&sink.status(), 51);
    let mut all = numbers(&collector);
    all.sort_unstable();
    assert_eq!(all, (0..=50).collect::<Vec<_>>());
    assert_eq!(sink.metrics.spool_recovered.get(), 50);
    let left = std::fs::read_dir(directory.path().join("spool")).unwrap();
    let bytes: u64 = left.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(bytes, 0);
}

#[tokio::test]
async fn answers_and_faults_mean_the_same_with_a_spool() {
    let retry_after = vec![("retry-after", "0".to_owned())];
    let partial = {
        use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
        prost::Message::encode_to_vec(&ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: 1,
                error_message: "no".to_owned(),
            }),
        })
    };
    for (act, delivered, requests) in [
        (Act::Answer(429, retry_after, Vec::new()), 1, 2),
        (Act::status(503), 1, 2),
        (Act::Truncate(200), 1, 2),
        (Act::Reset, 1, 2),
        (Act::Hang(Duration::from_secs(60)), 1, 2),
        (Act::Answer(200, Vec::new(), partial), 0, 1),
        (Act::status(400), 0, 1),
    ] {
        let directory = TempDir::new().unwrap();
        let collector = Collector::http(vec![act.clone()]).await;
        let mut config = spooled(http(&collector), directory.path());
        config.connection.timeout = SHORT;
        let (end, seen) = exchange(collector, config).await;
        assert_eq!(
            (end.delivered, end.rejected, seen.len()),
            (delivered, 1 - delivered, requests),
            "{act:?}"
        );
        assert!(
            seen.iter().all(|one| one.raw == seen[0].raw),
            "{act:?}: the same bytes, so the same ids"
        );
        assert_eq!((end.spool_spans, end.spool_bytes), (Some(0), Some(0)), "{act:?}");
        sums_up(&end, 1);
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_means_memory_and_is_reported() {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("spool"), "a file").unwrap();
    let collector = Collector::http(Vec::new()).await;
    let config = spooled(http(&collector), directory.path());
    let (end, seen) = exchange(collector, config.clone()).await;
    assert_eq!((end.delivered, seen.len()), (1, 1));
    assert!(end.spool_problem.unwrap().contains("cannot open"));
    let sink = start(config);
    sink.offer(&small(1));
    until("the fallback", || sink.metrics.spool_fallback.get() == 1).await;
    assert_eq!(sink.metrics.spool_failing.get(), 1);
    sink.stop(SHORT).await;
}

#[tokio::test]
async fn bad_traces_outlive_good_ones_when_room_is_short() {
    let directory = TempDir::new().unwrap();
    let (mut config, address) = nobody(directory.path()).await;
    config.connection.gzip = false;
    config.spool.as_mut().unwrap().bytes = 1 << 20;
    let sink = start(config);
    let mut made = 0;
    let mut bad = BTreeSet::new();
    // A good one has 1 span, a bad one 6 in a request each: much more than 1 MiB together, the bad ones less.
    for number in 0..3_000_u64 {
        let trace = if number.is_multiple_of(30) {
            full_trace(number)
        } else {
            small(number)
        };
        if number.is_multiple_of(30) {
            bad.insert(number);
        }
        made += trace.spans.len() as u64;
        sink.offer(&trace);
        if number.is_multiple_of(100) {
            until("room", || {
                sink.delivery.spool().unwrap().depth.spans + sink.status().evicted + 300 >= made
            })
            .await;
        }
    }
    until("all is sealed", || {
        let spool = sink.delivery.spool().unwrap();
        spool.depth.spans + sink.status().evicted + sink.status().shed + 6 >= made
    })
    .await;
    assert!(sink.status().evicted > 0);
    sums_up(&sink.status(), made);
    let collector = Collector::start(&address, Vec::new(), false, None).await;
    until_sent("delivery", &sink).await;
    sink.stop(LONG).await;
    sums_up(&sink.status(), made);
    let arrived: BTreeSet<u64> = numbers(&collector).into_iter().collect();
    assert_eq!(sink.status().shed, 0);
    assert!(bad.is_subset(&arrived), "every bad one arrives");
}

/// The bound is 2 MB/s at 50 sandboxes per second; idle, nothing is written.
#[tokio::test]
async fn a_minute_at_50_sandboxes_a_second_writes_little() {
    const TRACES: u64 = 3_000;
    let directory = TempDir::new().unwrap();
    let (mut config, _) = nobody(directory.path()).await;
    // The spans of a second, with the delay of a second.
    config.tuning.batch_spans = 300;
    config.tuning.batch_delay = defaults::BATCH_DELAY;
    config.tuning.queue_traces = TRACES as usize;
    let sink = start(config);
    for number in 0..TRACES {
        sink.offer(&bounds::incompressible(number));
    }
    until("all is in the spool", || {
        sink.delivery.spool().unwrap().depth.spans + 300 >= TRACES * 6
    })
    .await;
    let depth = sink.delivery.spool().unwrap().depth;
    eprintln!("{} bytes in a minute, {} segments", depth.bytes, depth.segments);
    assert!(depth.bytes < 60 * 200_000, "a tenth of the bound: {depth:?}");
    sink.stop(SHORT).await;
}

const DIRECTORY: &str = "SANDGLASS_TEST_SPOOLED";
const ENDPOINT: &str = "SANDGLASS_TEST_ENDPOINT";
const FIRST: &str = "SANDGLASS_TEST_SPOOLED_FIRST";

/// By itself not a test, but the agent that `a_killed_agent_loses_nothing_that_it_had_sealed` kills. Writes a line for each sealed trace.
#[tokio::test]
async fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let endpoint = std::env::var(ENDPOINT).unwrap();
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let mut config = config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    // A timeout on a busy machine would be a further reason to send a request twice.
    config.connection.timeout = LONG * 3;
    let config = spooled(one_by_one(config), Path::new(&directory));
    let (_, found) = Spool::new(config.spool.as_ref().unwrap(), &node().boot_id).take();
    let sink = start(config);
    // Before the first offer: what was found must not be taken for what is offered.
    until("the spool is read", || {
        sink.metrics.spool_recovered.get() == found.recovered
    })
    .await;
    let sealed = || {
        let spool = sink.delivery.spool().unwrap();
        assert_eq!(spool.problem, None);
        // What was found is sealed as well, and not counted here.
        (sink.status().delivered + spool.depth.spans).saturating_sub(sink.metrics.spool_recovered.get())
    };
    for offered in 1.. {
        sink.offer(&small(first + offered));
        // One may be under way, or not sealed yet.
        until("the last but one is sealed", || sealed() + 1 >= offered).await;
        println!("sealed {}", first + offered - 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_agent_loses_nothing_that_it_had_sealed() {
    const RUNS: u64 = 12;
    let directory = TempDir::new().unwrap();
    let faults = [
        Act::status(503),
        Act::status(200),
        Act::Reset,
        Act::status(200),
        Act::status(429),
    ];
    let collector = Collector::http(faults.iter().cycle().take(5_000).cloned().collect()).await;
    let mut sealed = BTreeSet::new();
    for run in 0..RUNS {
        let first = run * 10_000;
        let (mut child, lines) = test_processes::start(
            "sinks::otlp::tests::spooled::child",
            (DIRECTORY, directory.path()),
            &[(ENDPOINT, collector.url()), (FIRST, first.to_string())],
        );
        let mut left = 3 + run * 7 % 40;
        for line in lines.map_while(Result::ok) {
            let number = line
                .strip_prefix("sealed ")
                .and_then(|number| number.parse::<u64>().ok());
            // The first line of a run stands for none.
            sealed.extend(number.filter(|number| *number > first));
            left = left.saturating_sub(1);
            if left == 0 {
                // What it writes until it ends is still read.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
    }
    let config = spooled(one_by_one(http(&collector)), directory.path());
    let (_, found) = Spool::new(config.spool.as_ref().unwrap(), &node().boot_id).take();
    let sink = start(config);
    until("the spool is read", || {
        sink.metrics.spool_recovered.get() == found.recovered
    })
    .await;
    // How many are left depends on how far the children came, and two of five answers are followed by a pause: the deadline is for each.
    while sink.status().waiting > 0 {
        let waiting = sink.status().waiting;
        until("a delivery", || sink.status().waiting < waiting).await;
    }
    assert_eq!(sink.stop(LONG).await, 0);
    sums_up(&sink.status(), found.recovered);
    assert_eq!(sink.status().corrupt, 0);
    let arrived = numbers(&collector);
    let distinct: BTreeSet<u64> = arrived.iter().copied().collect();
    let lost: Vec<_> = sealed.difference(&distinct).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(sealed.len() as u64 > RUNS, "{}", sealed.len());
    assert!(
        arrived.len() - distinct.len() <= RUNS as usize,
        "one request for each kill at most comes twice"
    );
}

/// Ends a sink as a kill does: nothing is sealed any more, and what its journal had written is there.
fn killed(sink: OtlpSink) {
    sink.journal.get().unwrap().stop();
    for task in sink.tasks.lock().unwrap().take().unwrap() {
        task.abort();
    }
}

/// A sink with a journal; what an earlier one left is offered to it, as the composition root does.
fn start_with_journal(config: Resolved) -> Arc<OtlpSink> {
    let sink = Arc::new(start(config.clone()));
    let weak = Arc::downgrade(&sink);
    let journal = Journal::new(Keeper::Export);
    sink.keep_in(journal.clone());
    let spool = config.spool.unwrap();
    let options = JournalOptions {
        directory: spool.directory,
        clock: spool.clock,
    };
    let deliver = move |trace| {
        if let Some(sink) = weak.upgrade() {
            sink.offer(&trace);
        }
    };
    journal.start(&options, Duration::ZERO, Box::new(deliver));
    sink
}

fn interrupted(sink: &OtlpSink) -> u64 {
    sink.journal.get().unwrap().status().interrupted
}

#[tokio::test]
async fn what_waited_for_its_batch_and_what_was_open_survive_a_kill() {
    let directory = TempDir::new().unwrap();
    let (mut config, address) = nobody(directory.path()).await;
    config.tuning.batch_spans = 1_000;
    config.tuning.batch_delay = Duration::from_secs(3_600);
    let sink = start_with_journal(config.clone());
    let open = |number| {
        let mut trace = small_trace(number);
        trace.closed = false;
        trace.spans[0].end = None;
        Arc::new(trace)
    };
    for number in 0..20 {
        sink.journal.get().unwrap().put(&open(number));
        if number < 10 {
            sink.offer(&small(number));
        }
    }
    assert_eq!(sink.status().waiting, 10);
    killed(Arc::into_inner(sink).unwrap());

    let collector = Collector::start(&address, Vec::new(), false, None).await;
    config.tuning.batch_delay = Duration::from_millis(1);
    let sink = start_with_journal(config.clone());
    until("delivery", || sink.status().delivered == 20).await;
    let journal = sink.journal.get().unwrap().status();
    assert_eq!((journal.interrupted, journal.problem), (10, None));
    assert_eq!(sink.stop(LONG).await, 0);
    sums_up(&sink.status(), 20);
    let mut all = numbers(&collector);
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>(), "each once, with its ids");
    let failed = collector
        .spans()
        .iter()
        .filter(|span| {
            let attributes = attributes(&span.attributes);
            attributes.get("error.type").is_some_and(|class| class == "interrupted")
        })
        .count();
    assert_eq!(failed, 10);

    // Nothing is left for a third one.
    let sink = start_with_journal(config);
    assert_eq!(sink.stop(LONG).await, 0);
    assert_eq!((interrupted(&sink), sink.status().delivered), (0, 0));
}

#[tokio::test]
async fn what_is_not_sent_leaves_the_journal() {
    let directory = TempDir::new().unwrap();
    let collector = Collector::http(Vec::new()).await;
    let mut config = spooled(http(&collector), directory.path());
    config.sampling = crate::sinks::sampling::Policy::Bad {
        good_per_thousand: 0,
        slow_ns: u64::MAX,
    };
    let sink = start_with_journal(config.clone());
    let mut good = small_trace(1);
    good.spans[0].status = sandglass_model::Status::Unset;
    let mut open = good.clone();
    open.closed = false;
    sink.journal.get().unwrap().put(&Arc::new(open));
    sink.offer(&Arc::new(good));
    assert_eq!(sink.status().sampled_out, 1);
    killed(Arc::into_inner(sink).unwrap());
    let sink = start_with_journal(config);
    assert_eq!(sink.stop(LONG).await, 0);
    assert_eq!((interrupted(&sink), sink.status().waiting), (0, 0));
}
