//! Questions to a scripted runtime: answered, unknown, refused, shed; the runtime away and back.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;

use sandglass_model::event::SandboxDescription;
use sandglass_model::{Body, Event};
use tokio::time::Instant;

use super::*;
use crate::cri::messages::{
    ListPodSandboxResponse, PodSandbox, PodSandboxMetadata, PodSandboxStatus, PodSandboxStatusResponse,
};
use crate::cri::scripted::{Runtime, ScriptedResponse};
use crate::sources::{EventReceiver, channel};

const WAIT: Duration = Duration::from_secs(10);

fn options(endpoint: &str) -> IdentityOptions {
    IdentityOptions {
        runtime: RuntimeChoice::parse(endpoint).unwrap(),
        timeout: WAIT,
        backoff: (Duration::from_millis(20), Duration::from_millis(50)),
        ask_again: vec![Duration::from_millis(30); 2],
        root: PathBuf::from("/nonexistent"),
        namespaces: None,
    }
}

fn start(endpoint: &str) -> (Identity, EventReceiver, Health) {
    let (sender, receiver) = channel(8, Gauge::default());
    let health = Health::default();
    let identity = Identity::start(options(endpoint), sender, health.clone(), || Timestamp(77));
    (identity, receiver, health)
}

fn sandbox(id: &str, created_at: i64) -> PodSandbox {
    PodSandbox {
        id: id.to_owned(),
        metadata: Some(PodSandboxMetadata {
            name: format!("pod-{id}"),
            ..PodSandboxMetadata::default()
        }),
        created_at,
        ..PodSandbox::default()
    }
}

fn status(id: &str) -> ScriptedResponse {
    ScriptedResponse::of(&PodSandboxStatusResponse {
        status: Some(PodSandboxStatus {
            id: id.to_owned(),
            labels: [("app".to_owned(), "cart".to_owned())].into(),
            ..PodSandboxStatus::default()
        }),
        ..PodSandboxStatusResponse::default()
    })
}

async fn next(receiver: EventReceiver) -> (SandboxDescription, EventReceiver) {
    tokio::task::spawn_blocking(move || match receiver.receive(WAIT).unwrap().unwrap() {
        Event {
            at: Timestamp(77),
            body: Body::SandboxDescribed(description),
        } => (*description, receiver),
        other => panic!("unexpected {other:?}"),
    })
    .await
    .unwrap()
}

async fn until(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn older_sandboxes_are_listed_and_questions_answered() {
    let runtime = Runtime::start();
    let young = i64::MAX;
    let items = vec![sandbox("old", 5), sandbox("", 5), sandbox("young", young)];
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse { items }),
    );
    runtime.on("PodSandboxStatus", status("pending"));
    let (identity, receiver, health) = start(&runtime.endpoint());
    let (old, receiver) = next(receiver).await;
    assert_eq!(
        (old.sandbox.0.as_str(), old.preexisting, old.created_unix_ns),
        ("old", true, 5)
    );
    assert_eq!(old.identity.name, "pod-old");
    let (young, receiver) = next(receiver).await;
    assert_eq!((young.sandbox.0.as_str(), young.preexisting), ("young", false));

    identity.resolve(SandboxId("pending".to_owned()));
    let (resolved, _receiver) = next(receiver).await;
    assert_eq!(resolved.identity.labels, [("app".to_owned(), "cart".to_owned())]);
    assert!(!resolved.preexisting);
    assert_eq!(identity.metrics().count(Outcome::Answered), 1);
    let probe = &health.probes()[0];
    assert_eq!(
        (probe.probe.as_str(), probe.hook.as_str(), probe.attached),
        ("identity", "cri", true)
    );
}

/// Secrets in the labels, annotations and verbose answers of a runtime do not become events.
#[tokio::test]
async fn no_event_holds_a_secret_that_the_runtime_answers_with() {
    const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";
    let labels = || {
        let pairs = [
            ("app", "cart"),
            ("vault-token", "plantedlabel"),
            ("team/db-password", "plantedpassword"),
            ("session", TOKEN),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    };
    let annotations = || [("registry-credential".to_owned(), "plantedannotation".to_owned())].into();
    let runtime = Runtime::start();
    let listed = PodSandbox {
        labels: labels(),
        annotations: annotations(),
        ..sandbox("old", 5)
    };
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse { items: vec![listed] }),
    );
    let info = r#"{"pid": 9, "config": {"envs": [{"key": "API_TOKEN", "value": "plantedenv"}]}, "runtimeSpec": {}}"#;
    let asked = PodSandboxStatus {
        id: "asked".to_owned(),
        labels: labels(),
        annotations: annotations(),
        ..PodSandboxStatus::default()
    };
    runtime.on(
        "PodSandboxStatus",
        ScriptedResponse::of(&PodSandboxStatusResponse {
            status: Some(asked),
            info: [("info".to_owned(), info.to_owned())].into(),
        }),
    );
    let (identity, receiver, _health) = start(&runtime.endpoint());
    let (old, receiver) = next(receiver).await;
    identity.resolve(SandboxId("asked".to_owned()));
    let (resolved, _receiver) = next(receiver).await;
    for description in [old, resolved] {
        let text = format!("{description:?}");
        assert!(text.contains("cart") && text.contains("vault-token"), "{text}");
        for secret in ["planted", TOKEN] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}

/// What a runtime says verbosely of a sandbox with this path to its network namespace.
fn verbose(path: &str) -> ScriptedResponse {
    let info = format!(
        r#"{{"pid": 9, "runtimeSpec": {{"linux": {{"namespaces": [{{"type": "network", "path": "{path}"}}]}}}}}}"#
    );
    ScriptedResponse::of(&PodSandboxStatusResponse {
        status: Some(PodSandboxStatus::default()),
        info: [("info".to_owned(), info)].into(),
    })
}

#[tokio::test]
async fn namespaces_of_older_sandboxes_follow_their_descriptions_and_a_miss_is_counted() {
    let runtime = Runtime::start();
    let items = vec![sandbox("old", 5), sandbox("young", i64::MAX)];
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse { items }),
    );
    runtime.on("PodSandboxStatus", verbose("/run/netns/cni-1"));
    let look = |path: &'static str| {
        NamespaceLook::new(move |place| {
            (place.path == path).then(|| sandglass_model::event::Netns {
                sandbox: place.sandbox.clone(),
                path: place.path.clone(),
                inode: 4_026_532_001,
                created: None,
                there: None,
            })
        })
    };
    let start = |path| {
        let (sender, receiver) = channel(8, Gauge::default());
        let options = IdentityOptions {
            namespaces: Some(look(path)),
            ..options(&runtime.endpoint())
        };
        let identity = Identity::start(options, sender, Health::default(), || Timestamp(77));
        (identity, receiver)
    };
    let (identity, receiver) = start("/run/netns/cni-1");
    let (_, receiver) = next(receiver).await;
    let (_, receiver) = next(receiver).await;
    let waited = tokio::task::spawn_blocking(move || receiver.receive(WAIT))
        .await
        .unwrap();
    let Body::NetnsObserved(netns) = waited.unwrap().unwrap().body else {
        panic!("no namespace");
    };
    assert_eq!((netns.sandbox.0.as_str(), netns.inode), ("old", 4_026_532_001));
    assert_eq!(runtime.called("PodSandboxStatus"), 1, "the young one was seen");
    assert_eq!(identity.metrics().count(Outcome::Answered), 1);
    drop(identity);

    let (missed, receiver) = start("/run/netns/cni-2");
    until(|| missed.metrics().count(Outcome::Failed) == 1).await;
    drop((missed, receiver));
    runtime.on("PodSandboxStatus", ScriptedResponse::Status(13, "internal"));
    let (refused, _receiver) = start("/run/netns/cni-1");
    until(|| refused.metrics().count(Outcome::Failed) == 1).await;
    runtime.on("PodSandboxStatus", ScriptedResponse::Status(5, "not found"));
    let (gone, _receiver) = start("/run/netns/cni-1");
    until(|| gone.metrics().count(Outcome::Unknown) == 1).await;
}

#[tokio::test]
async fn an_unknown_sandbox_is_queried_again_and_given_up() {
    let runtime = Runtime::start();
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse::default()),
    );
    runtime.on("PodSandboxStatus", ScriptedResponse::Status(5, "not found"));
    let (identity, receiver, _health) = start(&runtime.endpoint());
    identity.resolve(SandboxId("late".to_owned()));
    until(|| runtime.called("PodSandboxStatus") >= 2).await;
    runtime.on("PodSandboxStatus", status("late"));
    let (late, _receiver) = next(receiver).await;
    assert_eq!(late.sandbox.0, "late");

    runtime.on("PodSandboxStatus", ScriptedResponse::Status(5, "not found"));
    identity.resolve(SandboxId("never".to_owned()));
    until(|| identity.metrics().count(Outcome::Unknown) == 1).await;
    runtime.on("PodSandboxStatus", ScriptedResponse::Status(13, "internal"));
    identity.resolve(SandboxId("refused".to_owned()));
    until(|| identity.metrics().count(Outcome::Failed) == 1).await;
}

#[tokio::test]
async fn a_runtime_that_goes_and_comes_back_loses_no_question() {
    let runtime = Runtime::start();
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse::default()),
    );
    let (identity, receiver, health) = start(&runtime.endpoint());
    until(|| health.probes().iter().any(|probe| probe.attached)).await;
    runtime.stop().await;
    identity.resolve(SandboxId("x".to_owned()));
    until(|| health.probes().iter().any(|probe| !probe.attached)).await;
    let probe = health.probes().remove(0);
    assert_eq!(probe.hook, "none");
    assert!(
        probe
            .consequence
            .starts_with("no labels, sandboxes older than the agent are not listed: cannot connect")
    );
    assert!(!probe.hint.is_empty());
    runtime.on("PodSandboxStatus", status("x"));
    runtime.start_again();
    let (x, _receiver) = next(receiver).await;
    assert_eq!(x.sandbox.0, "x");
    assert_eq!(runtime.called("ListPodSandbox"), 1, "the list is requested once");
}

#[tokio::test]
async fn without_a_runtime_questions_are_shed_beyond_the_bound_and_all_stops_with_the_asker() {
    let (identity, receiver, health) = start("auto");
    until(|| !health.probes().is_empty()).await;
    assert!(health.probes()[0].consequence.contains("no CRI socket found"));
    for n in 0..3 * MAX_PENDING {
        identity.resolve(SandboxId(n.to_string()));
    }
    until(|| identity.metrics().count(Outcome::Shed) > 0).await;
    drop(identity);
    let stopped = tokio::task::spawn_blocking(move || receiver.receive(WAIT))
        .await
        .unwrap();
    assert_eq!(stopped, Err(crate::sources::Stopped));
}

#[tokio::test]
async fn a_full_pipeline_does_not_stall_the_runtime() {
    let runtime = Runtime::start();
    let items = (0..200).map(|n| sandbox(&n.to_string(), 1)).collect();
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse { items }),
    );
    let (_identity, receiver, _health) = start(&runtime.endpoint());
    until(|| runtime.called("ListPodSandbox") == 1).await;
    // This test's runtime has one thread: were it blocked, this sleep would not end.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut receiver = receiver;
    for n in 0..200 {
        let (description, back) = next(receiver).await;
        assert_eq!(description.sandbox.0, n.to_string());
        receiver = back;
    }
}
