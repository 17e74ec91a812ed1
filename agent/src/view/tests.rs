//! What lists, traces and figures show of a store.

use super::*;
use sandglass_correlator::finding::Finding;
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::trace::{ActivityDetail, Status};
use sandglass_model::windows::Service;
use sandglass_model::{CniCommand, Detail, Span, Timestamp, Trace};

use crate::node::NodeInfo;
use crate::samples;
use crate::sinks::store::StoreOptions;
use crate::sinks::store::index::TraceIndex;

fn store() -> Store {
    Store::new(StoreOptions::live(1_000), NodeInfo::default())
}

fn filled() -> Store {
    let store = store();
    for trace in samples::busy_node(wall_ns()) {
        store.update(trace);
    }
    store
}

fn pods(store: &Store, query: &Query) -> Vec<String> {
    list(store, query).rows.into_iter().map(|row| row.pod).collect()
}

fn view(store: &Store, row: &Row) -> TraceView {
    trace(store, row.root.trace, Some(row.root.span)).unwrap()
}

#[test]
fn operations_that_share_the_runtimes_trace_are_kept_each_by_itself() {
    let store = store();
    let now = wall_ns();
    let mut sandbox = samples::usual("shop", "web-0", 1, now - 60 * SECOND);
    let [failed, second] = samples::dels_of_one_trace(&sandbox, now - 30 * SECOND);
    let mut open = second.clone();
    open.closed = false;
    open.spans[0].end = None;
    for trace in [&sandbox, &open, &failed] {
        store.update(trace.clone());
    }
    assert_eq!((store.size().running, store.size().failed), (1, 1));
    for trace in [&second, &open, &failed] {
        store.update(trace.clone());
    }
    let size = store.size();
    assert_eq!((size.traces, size.running, size.failed, size.evicted), (3, 0, 1, 0));
    let rows = list(
        &store,
        &Query {
            kind: KindFilter::Verb(CniCommand::Del),
            ..Query::default()
        },
    )
    .rows;
    let listed: Vec<_> = rows.iter().map(|row| (row.root, row.result)).collect();
    assert_eq!(
        listed,
        [
            (second.root_id(), TraceOutcome::Ok),
            (failed.root_id(), TraceOutcome::Failed)
        ]
    );

    // Each by its root or any other span of it; without one the newest, or the sandbox's.
    let find = |span: Option<SpanId>| trace(&store, failed.id, span).map(|view| view.row.root);
    assert_eq!(find(Some(failed.root_id().span)), Some(failed.root_id()));
    assert_eq!(find(Some(failed.spans[3].id)), Some(failed.root_id()));
    assert_eq!(find(Some(second.root_id().span)), Some(second.root_id()));
    assert_eq!(find(Some(SpanId(1))), None);
    assert_eq!(find(None), Some(second.root_id()));
    sandbox.id = failed.id;
    store.update(sandbox.clone());
    assert_eq!(find(None), Some(sandbox.root_id()));
}

#[test]
fn operations_that_share_the_runtimes_trace_lead_to_one_another() {
    let store = store();
    let now = wall_ns();
    let sandbox = samples::usual("shop", "web-0", 1, now - 60 * SECOND);
    let [first, second] = samples::dels_of_one_trace(&sandbox, now - 30 * SECOND);
    let mut of_another = samples::third_del(&samples::usual("shop", "web-1", 2, now), now - 20 * SECOND);
    of_another.id = first.id;
    for trace in [&sandbox, &first, &second, &of_another] {
        store.update(trace.clone());
    }
    let related = |of: &Trace| {
        let related = view(&store, &row(&store, of.root_id()).unwrap()).related;
        related
            .into_iter()
            .map(|other| (other.row.root, other.relation))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        related(&first),
        [
            (sandbox.root_id(), "sandbox"),
            (second.root_id(), "next_attempt"),
            (of_another.root_id(), "same_trace"),
        ]
    );
    assert_eq!(related(&second)[1], (first.root_id(), "previous_attempt"));
    assert_eq!(
        related(&of_another),
        [(first.root_id(), "same_trace"), (second.root_id(), "same_trace")]
    );
}

#[test]
fn of_a_loop_of_operations_the_nearest_are_related() {
    let store = store();
    let now = wall_ns();
    let sandbox = samples::usual("shop", "web-0", 1, now - 1_000 * SECOND);
    store.update(sandbox.clone());
    let dels: Vec<Trace> = (0..100)
        .map(|number| samples::third_del(&sandbox, now - (900 - number) * SECOND))
        .collect();
    for del in &dels {
        let mut del = del.clone();
        del.id = dels[0].id;
        store.update(del);
    }
    assert_eq!(store.size().traces, 101);
    let related = trace(&store, dels[0].id, Some(dels[80].spans[0].id)).unwrap().related;
    let spans: Vec<SpanId> = related.iter().map(|other| other.row.root.span).collect();
    assert_eq!((spans.len(), spans[0]), (50, sandbox.spans[0].id));
    assert!(spans.contains(&dels[79].spans[0].id) && spans.contains(&dels[81].spans[0].id));
    assert!(!spans.contains(&dels[0].spans[0].id) && !spans.contains(&dels[80].spans[0].id));
}

#[test]
fn lists_sort_and_filter() {
    let store = filled();
    let query = Query::default();
    let newest = list(&store, &query);
    assert_eq!(newest.total, 26);
    assert!(
        newest
            .rows
            .windows(2)
            .all(|pair| pair[0].start_unix_ns >= pair[1].start_unix_ns)
    );
    assert_eq!((newest.counts.running, newest.counts.failed), (1, 3));
    assert!(newest.counts.p95_ns > newest.counts.median_ns);
    assert!(newest.plugins.contains(&"slow-firewall".to_owned()));

    let slowest = Query {
        sort: Sort::Slowest,
        state: StateFilter::Ended,
        ..Query::default()
    };
    assert_eq!(pods(&store, &slowest)[..2], ["ingress-0", "checkout-5c7f8d9b4-slow1"]);

    for (query, expected) in [
        (
            Query {
                result: Some(TraceOutcome::Failed),
                ..query.clone()
            },
            3,
        ),
        (
            Query {
                state: StateFilter::Running,
                ..query.clone()
            },
            1,
        ),
        (
            Query {
                kind: KindFilter::Operation,
                ..query.clone()
            },
            1,
        ),
        (
            Query {
                kind: KindFilter::Verb(CniCommand::Del),
                ..query.clone()
            },
            1,
        ),
        (
            Query {
                kind: KindFilter::Verb(CniCommand::Check),
                ..query.clone()
            },
            0,
        ),
        (
            Query {
                plugin: "slow-firewall".into(),
                ..query.clone()
            },
            1,
        ),
        (
            Query {
                text: "sleep".into(),
                ..query.clone()
            },
            1,
        ),
        (
            Query {
                text: "BATCH no ip".into(),
                ..query.clone()
            },
            2,
        ),
        (
            Query {
                text: samples::sandbox_id(40).0,
                ..query.clone()
            },
            1,
        ),
        (
            Query {
                text: "no-such-thing".into(),
                ..query.clone()
            },
            0,
        ),
    ] {
        assert_eq!(list(&store, &query).total, expected, "{query:?}");
    }

    let paged = Query {
        limit: 5,
        offset: 24,
        ..query
    };
    let page = list(&store, &paged);
    assert_eq!((page.total, page.rows.len()), (26, 2));
}

#[test]
fn rows_say_what_took_the_time_and_phases_add_up() {
    let store = filled();
    for row in list(&store, &Query::default()).rows {
        assert_eq!(row.phases.values().sum::<u64>(), row.duration_ns, "{row:?}");
        if row.running {
            let wanted = "waits for plugin bridge › command iptables: iptables waits for a lock on a file (/run/xtables.lock, held by \
                          kube-proxy), in locks_lock_inode_wait, for ";
            assert!(
                row.verdict.starts_with(wanted) && row.verdict.ends_with(" now"),
                "{}",
                row.verdict
            );
        }
        if row.pod.contains("slow1") {
            assert!(
                row.verdict
                    .starts_with("command sleep of plugin slow-firewall took 4.20 s"),
                "{}",
                row.verdict
            );
        }
    }
}

#[test]
fn a_trace_shows_its_spans_and_its_family() {
    let store = filled();
    let failed = Query {
        text: "report".into(),
        ..Query::default()
    };
    let rows = list(&store, &failed).rows;
    let second = view(&store, &rows[0]);
    assert_eq!(second.row.attempt, 2);
    assert_eq!(second.related.len(), 1);
    assert_eq!(second.related[0].relation, "previous_attempt");
    let first = view(&store, &rows[1]);
    assert_eq!(first.related[0].relation, "next_attempt");

    let json = serde_json::to_value(&second).unwrap();
    let ipam = json["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .find(|span| span["name"] == "plugin host-local")
        .unwrap();
    assert_eq!(ipam["depth"], 4);
    assert_eq!(ipam["phase"], "delegate");
    assert_eq!(ipam["error_message"], samples::NO_ADDRESS);
    assert_eq!(ipam["attributes"]["process.exit.code"], 1);
    assert_eq!(ipam["offset_ns"], 31_000_000);
    assert_eq!(
        ipam["start_unix_ns"].as_str().unwrap().parse::<u64>().unwrap() % 1_000,
        second.row.start_unix_ns % 1_000
    );

    let del = Query {
        kind: KindFilter::Operation,
        ..Query::default()
    };
    let del = view(&store, &list(&store, &del).rows[0]);
    assert_eq!((del.row.attempt, del.related[0].relation), (3, "sandbox"));
}

#[test]
fn running_operations_say_who_is_waited_for() {
    let store = filled();
    let running = operations(&store, 30 * SECOND);
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].waits_for, ["plugin bridge", "command iptables"]);
    assert!(running[0].stuck && running[0].age_ns > 40 * SECOND && running[0].pid > 0);
    let waiting = running[0].waiting.as_ref().expect("what it waits for");
    assert_eq!(
        (waiting.reason, waiting.what.as_str()),
        ("file_lock", "/run/xtables.lock")
    );
    assert!(
        waiting.for_ns > 40 * SECOND && waiting.for_ns < running[0].age_ns,
        "{waiting:?}"
    );
    assert!(waiting.text.contains("held by kube-proxy"), "{}", waiting.text);
    assert!(!operations(&store, 60 * SECOND)[0].stuck);
}

#[test]
fn what_hcs_does_for_the_runtime_runs_like_a_step_of_it() {
    let mut trace = samples::stuck("n", "p", 1, wall_ns() - 50 * SECOND);
    let operations = |trace: &Trace| {
        let store = store();
        store.update(trace.clone());
        let running = operations(&store, 30 * SECOND);
        running
            .into_iter()
            .map(|one| (one.name, one.waits_for, one.stuck, one.pid))
            .collect::<Vec<_>>()
    };
    let before = operations(&trace);
    let create = trace
        .spans
        .iter()
        .position(|span| matches!(span.detail, Detail::SandboxCreate(_)))
        .unwrap();
    let innermost = trace.spans.iter().rposition(|span| span.end.is_none()).unwrap();
    for (service, name, parent) in [
        (Service::Hcs, "HcsCreateComputeSystem", create),
        (Service::Hns, "RequestHandler", innermost),
    ] {
        trace.spans.push(Span {
            id: SpanId::of(&[name.as_bytes()]),
            parent: Some(parent),
            start: trace.spans[parent].start,
            end: None,
            status: Status::Unset,
            detail: Detail::Activity(Box::new(ActivityDetail {
                service,
                name: name.into(),
                result: None,
                objects: Vec::new(),
                ambiguous: false,
            })),
            events: Vec::new(),
            links: Vec::new(),
        });
    }
    let mut with = operations(&trace);
    with.sort();
    let mut operation = before[0].clone();
    operation.1.push("hns RequestHandler".to_owned());
    let step = ("hcs HcsCreateComputeSystem".to_owned(), Vec::new(), true, 0);
    assert_eq!(with, [operation, step]);
}

#[test]
fn a_created_sandbox_waits_for_traffic_and_is_not_called_running() {
    let store = store();
    let open = samples::waiting("shop", "web-0", 1, wall_ns() - 20 * SECOND);
    let root = open.root_id();
    store.update(open);
    let row = row(&store, root).unwrap();
    assert_eq!((row.result, row.running), (TraceOutcome::Waiting, false));
    let network = row.network.unwrap();
    assert_eq!(
        (network.state, network.first_attempt_ns),
        (ReadinessState::Waiting, None)
    );
    // Its time stands still where its creation ended, and so does its verdict.
    assert_eq!(row.duration_ns, network.created_ns);
    assert_eq!(row.duration_ns, row.phases.values().sum::<u64>());
    assert!(row.duration_ns < SECOND && row.verdict.contains(" took "), "{row:?}");
    assert_eq!((store.size().running, store.size().waiting), (0, 1));
    assert!(operations(&store, 0).is_empty());
    let state = |state| {
        list(
            &store,
            &Query {
                state,
                ..Query::default()
            },
        )
        .total
    };
    assert_eq!(
        (
            state(StateFilter::Waiting),
            state(StateFilter::Running),
            state(StateFilter::Ended)
        ),
        (1, 0, 0)
    );

    store.update(samples::network_ready("shop", "web-0", 1, wall_ns() - 20 * SECOND));
    assert_eq!(super::network(&store).readiness.ready, 1);
}

#[test]
fn traffic_after_the_creation_is_separate_from_it() {
    let sandbox = samples::network_ready("shop", "web-0", 1, wall_ns());
    let row = Row::of(&sandbox, &TraceIndex::of(&sandbox), wall_ns());
    let network = row.network.unwrap();
    assert_eq!(network.state, ReadinessState::Ready);
    assert_eq!(network.wait_ns, Some(34_000_000));
    assert_eq!(row.duration_ns, network.ready_ns.unwrap());
    assert_eq!(row.duration_ns - row.busy_ns, 140_000_000 + 2_000_000);
    assert!(row.verdict.starts_with("plugin bridge took"), "{}", row.verdict);

    let stalled = samples::stalled("shop", "web-1", 2, wall_ns());
    let row = Row::of(&stalled, &TraceIndex::of(&stalled), wall_ns());
    assert_eq!(
        row.verdict,
        "lookup of db.shop.svc.cluster.local took 5.01 s: conntrack dropped one of two parallel queries (likely)"
    );
    assert_eq!(row.causes, ["conntrack_race"]);

    let failed = samples::never_connected("shop", "web-2", 3, wall_ns());
    let row = Row::of(&failed, &TraceIndex::of(&failed), wall_ns());
    assert_eq!(
        row.verdict,
        "its network never proved usable: connect to 203.0.113.9:443 took 15.0 s: the other end, or the way to it, was silent (likely)"
    );
    assert_eq!(row.result, TraceOutcome::Ok);
}

#[test]
fn journeys_are_listed_by_reason_and_cause_and_stand_beside_their_sandbox() {
    let store = filled();
    let sandbox = samples::network_ready("shop", "web-0", 70, wall_ns());
    let journey = samples::stalled_journey(&sandbox, wall_ns());
    store.update(sandbox.clone());
    store.update(journey.clone());
    store.update(samples::refused_journey(wall_ns()));
    let find = |query: Query| {
        let rows = list(
            &store,
            &Query {
                kind: KindFilter::Journey,
                ..query
            },
        )
        .rows;
        rows.into_iter().map(|row| row.target.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(find(Query::default()).len(), 2);
    let reason = |reason| Query {
        reason: Some(reason),
        ..Query::default()
    };
    use sandglass_model::trace::JourneyReason;
    assert_eq!(find(reason(JourneyReason::Retried)), [samples::NAME]);
    assert_eq!(find(reason(JourneyReason::Slow)), Vec::<String>::new());
    let cause = Query {
        cause: "connect_refused".into(),
        ..Query::default()
    };
    assert_eq!(find(cause), ["10.96.0.80:8080"]);
    assert_eq!(
        list(&store, &Query::default()).causes,
        ["connect_refused", "conntrack_race"]
    );
    let related = trace(&store, sandbox.id, None).unwrap().related;
    assert_eq!((related.len(), related[0].relation), (1, "journey"));
    let verdicts: Vec<String> = network(&store).journeys.into_iter().map(|row| row.verdict).collect();
    assert!(
        verdicts
            .iter()
            .any(|verdict| verdict.contains("one of two parallel queries (likely)")),
        "{verdicts:?}"
    );
    assert!(
        verdicts
            .iter()
            .any(|verdict| verdict.contains("refused: the other end refused (certain)")),
        "{verdicts:?}"
    );
}

#[test]
fn an_hour_in_slots_adds_up() {
    let now = 1_800_000_000 * SECOND;
    let findings = samples::an_hour(now);
    // A replay's hour ends with its newest finding.
    let store = Store::new(StoreOptions::replay(), NodeInfo::default());
    for (at, finding) in &findings {
        store.traffic(finding, *at);
    }
    let view = network(&store);
    let listed: u32 = view.slots.iter().flat_map(|slot| slot.lookups.values()).sum();
    let lookups = findings
        .iter()
        .filter(|(_, finding)| matches!(finding, Finding::Lookup(_)));
    assert_eq!(listed as usize, lookups.count());
    assert_eq!(view.slots.len(), 350);
    let last = view.slots.last().unwrap();
    assert_eq!(last.at_unix_ns + view.slot_ns, view.until_unix_ns);
    assert!(last.lookup_p95_ns < Some(6 * MILLISECOND), "{last:?}");
    let stalled = view.slots.iter().find(|slot| slot.lookups.contains_key("timeout"));
    assert!(stalled.unwrap().lookup_p95_ns > Some(4 * SECOND), "{stalled:?}");
    let conntrack = view.conntrack.unwrap();
    assert_eq!((conntrack.entries, conntrack.limit), (83_000, 262_144));
    assert_eq!(view.causes[0].cause, "conntrack_race");
    assert_eq!(view.drops.iter().map(|drop| drop.count).sum::<u64>(), 22);
    // The slowest name comes first; its longest lookup is the one without an answer.
    assert_eq!(view.names[0].max_ns, 10 * SECOND);
    assert!(view.names.is_sorted_by_key(|name| Reverse(name.p95_ns)));
}

#[test]
fn what_was_evicted_is_counted_beside_the_list_of_its_kind() {
    let store = Store::new(StoreOptions::live(10), NodeInfo::default());
    for number in 0..20 {
        let sandbox = samples::usual("n", "p", number, wall_ns());
        store.update(sandbox.clone());
        store.update(samples::third_del(&sandbox, wall_ns()));
    }
    let evicted = |kind| {
        let query = Query {
            kind,
            ..Query::default()
        };
        list(&store, &query).counts.evicted
    };
    assert_eq!(evicted(KindFilter::Sandbox), 11);
    assert_eq!(evicted(KindFilter::Operation), 19);
    assert_eq!(evicted(KindFilter::All), 30);
    assert_eq!(evicted(KindFilter::Journey), 0);
}

#[test]
fn sandboxes_older_than_the_agent_are_counted_beside_the_list() {
    let store = store();
    for number in 0..3 {
        store.known(samples::sandbox_id(number), PodIdentity::default(), Timestamp(1));
    }
    assert_eq!(known_sandboxes(&store).len(), 3);
    assert_eq!(list(&store, &Query::default()).counts.older_than_agent, 3);
}
