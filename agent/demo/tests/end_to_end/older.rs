//! A sandbox that is older than the agent: its traffic is its own all the same.
//!
//! Used by `end_to_end.rs`. The agent saw no plugin name its network namespace; it queries the runtime for it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sandglass::app::{self, App};
use sandglass_demo::client::{self, Talk, Talked};
use sandglass_demo::networks::Network;
use sandglass_demo::pods::Pod;
use sandglass_demo::rig::RigOptions;
use sandglass_model::trace::Detail;
use sandglass_model::{SandboxId, Trace};

use crate::rig::Node;
use crate::{netns, rig};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_older_than_the_agent_has_traffic_of_its_own() {
    older_sandbox(
        "a_sandbox_older_than_the_agent_has_traffic_of_its_own",
        RigOptions::default(),
        Pod::new("cart-0", 1, Network::Plain),
    )
    .await;
}

/// `pod` is named cart-0.
pub async fn older_sandbox(test: &str, options: RigOptions, pod: Pod) {
    let Some(node) = Node::with(test, options).await else {
        return;
    };
    let records = node.make(vec![pod]).await;
    let id = records[0].outcome.clone().unwrap();
    let Some((app, closed)) = start(&node, test).await else {
        return;
    };
    let address = app.address.unwrap();
    // The agent queries the runtime after its start; until then it does not know the sandbox.
    eventually("the namespace", || {
        value(address, "sandglass_identity_questions_total", &["answered"]) >= 1.0
    });

    let talked = talk(&node, netns(&node.cri, &records[0]).await).await;
    assert_eq!(talked.again, 1, "the dropped query was sent again");
    let journey = eventually_some("the journey", || {
        let mut ours = closed.try_iter().filter(|trace| trace.sandbox.as_ref() == Some(&id));
        ours.find(|trace| matches!(trace.root().detail, Detail::Journey(_)))
    });
    check(&journey, &id);
    let of_sandbox = |name: &str, result: &str| value(address, name, &["scope=\"sandbox\"", result]);
    assert!(of_sandbox("sandglass_dns_lookup_duration_seconds_count", "rcode=\"noerror\"") >= 1.0);
    assert!(of_sandbox("sandglass_connect_duration_seconds_count", "established") >= 1.0);
    app.stop().await.unwrap();
    node.stop().await;
}

/// An agent with its metrics; the closed traces.
async fn start(node: &Node, test: &str) -> Option<(App, mpsc::Receiver<Arc<Trace>>)> {
    let mut config = node.config_for_traffic();
    config.http.address = SocketAddr::from(([127, 0, 0, 1], 0));
    let (sender, closed) = mpsc::channel();
    let options = app::StartOptions {
        node_netns: Some(node.rig.node_netns()),
        netns_directories: vec![node.rig.netns_directory().display().to_string()],
        closed: Some(sender),
        record: rig::recording(test),
        record_only: true,
        serve: true,
        ..app::StartOptions::default()
    };
    match app::start(&config, options).await {
        Ok(app) => Some((app, closed)),
        Err(failure) if matches!(failure.exit().code(), 69 | 77) => {
            eprintln!(
                "SKIPPED {test}: {}",
                failure.to_string().lines().next().unwrap_or_default()
            );
            None
        }
        Err(failure) => panic!("the agent does not start: {failure}"),
    }
}

/// The pod's program: its first query is dropped, so that it goes badly enough for a trace of its own.
async fn talk(node: &Node, netns: String) -> Talked {
    let services = node.rig.services().unwrap();
    let plan = Talk {
        name: "orders",
        port: 80,
        stalls: true,
    };
    let talking = tokio::task::spawn_blocking(move || {
        client::talk(Path::new(&netns), "cart-0", plan, |address| {
            services.drop_next_query(address)
        })
    });
    talking.await.unwrap().unwrap()
}

fn check(journey: &Trace, id: &SandboxId) {
    assert_eq!(journey.identity.name, "cart-0");
    let Detail::Journey(detail) = &journey.root().detail else {
        panic!("no journey");
    };
    assert!(!detail.node, "the sandbox's, not the node's");
    assert_eq!((journey.sandbox.as_ref(), journey.check()), (Some(id), Ok(())));
    let parts: Vec<_> = journey.spans.iter().map(sandglass_model::registry::name).collect();
    assert_eq!(parts, ["journey", "lookup", "connect"]);
}

/// The sum of a metric's values in the lines that hold all of these.
fn value(address: SocketAddr, name: &str, labels: &[&str]) -> f64 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let lines = answer.lines().filter(|line| line.starts_with(name));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    let values = lines.filter_map(|line| line.split("} ").nth(1)?.split(' ').next()?.parse::<f64>().ok());
    values.sum()
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    eventually_some(what, || is().then_some(()));
}

fn eventually_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
