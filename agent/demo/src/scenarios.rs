//! What the demo does to its node: pods that come up, are slow, fail, hang, are retried, and go.
//!
//! Used by [`super::run`], the end-to-end tests and the benchmarks. Each call to the runtime is timed by its caller on
//! the boot clock, the one the kernel stamps events with: these [`CallRecord`]s are what traces are held against.
//! Does not: look at traces (that is [`super::verify`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use sandglass::cri::messages::{LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption};
use sandglass::cri::{Cri, CriError};
use sandglass::failure::causes;
use sandglass::grpc::{self, CallError};
use sandglass_model::id::SandboxId;
use tokio::task::JoinSet;

use crate::client::{self, Talk, Talked};
use crate::image;
use crate::neighbours::Neighbours;
use crate::networks::Network;
use crate::pods::{CallRecord, Pod, Runtime};
use crate::rig::Rig;
use crate::services::Services;
use crate::timing::{PluginClock, Stopwatch};

/// The demo's pods by step; those of one step are made at the same time. Each `round` has pods of its own: the same
/// names, other uids.
#[must_use]
pub fn steps(round: u32) -> Vec<Vec<Pod>> {
    let pod = |name, number, network| Pod::new(name, round * 100 + number, network);
    let talk = |name, stalls| Some(Talk { name, port: 80, stalls });
    let talking = |name, number, network| Pod {
        talk: talk("orders", false),
        ..pod(name, number, network)
    };
    let plain = |name, number| talking(name, number, Network::Plain);
    let published = Pod {
        host_port: Some(8080),
        // One dot, so one name of the search path too many.
        talk: talk("orders.shop", false),
        ..plain("web-0", 3)
    };
    let stalled = Pod {
        talk: talk("orders", true),
        ..plain("checkout-0", 8)
    };
    let hanging = Pod {
        deadline: Duration::from_secs(3),
        ..pod("search-0", 6, Network::Hanging)
    };
    let failing = pod("billing-0", 5, Network::Failing);
    let retried = Pod {
        attempt: 1,
        ..failing.clone()
    };
    vec![
        vec![plain("cart-0", 1), plain("cart-1", 2), published],
        vec![
            talking("reports-0", 4, Network::Slow),
            failing,
            hanging,
            talking("ledger-0", 9, Network::Locked),
        ],
        vec![retried, talking("db-0", 7, Network::Two), stalled],
        // Alone: what shares its processor would wait too.
        vec![talking("models-0", 10, Network::Crowded)],
        // Alone too: a pod's program begins when all pods of its step are made.
        vec![talking("returns-0", 11, Network::Served)],
    ]
}

/// The pods that the demo deletes again.
pub const DELETED: [&str; 3] = ["cart-1", "web-0", "reports-0"];

/// Makes `pods` at the same time; the records are in their order. The programs in them begin when all are made: what they
/// do must not lengthen a call that is being timed.
pub async fn make(cri: &Arc<Cri>, rig: &Rig, pods: Vec<Pod>) -> Vec<CallRecord> {
    let neighbours = Neighbours::of(&pods, rig).inspect_err(|error| {
        tracing::warn!(%error, "the node's other processes cannot be started: the pods that are to meet them will not");
    });
    let mut made = Vec::new();
    for pods in at_once(rig.runtime(), pods) {
        if let Some((_, pod)) = pods.first()
            && let Err(error) = rig.choose(pod.network).await
        {
            tracing::warn!(%error, "the pods will be attached to another network than theirs");
        }
        let mut calls = JoinSet::new();
        for (index, pod) in pods {
            let (cri, parent, runtime) = (Arc::clone(cri), rig.cgroup_parent(), rig.runtime());
            calls.spawn(async move {
                let record = make_one(&cri, &parent, pod).await;
                (index, CallRecord { runtime, ..record })
            });
        }
        made.extend(calls.join_all().await);
    }
    drop(neighbours);
    let mut programs = JoinSet::new();
    for (index, mut record) in made {
        let (cri, services) = (Arc::clone(cri), rig.services());
        programs.spawn(async move {
            if let (Some(plan), Ok(id)) = (record.pod.talk, &record.outcome) {
                record.talked = Some(let_talk(&cri, services, &record.pod, id, plan).await);
            }
            (index, record)
        });
    }
    let mut records: Vec<(usize, CallRecord)> = programs.join_all().await;
    records.sort_by_key(|(index, _)| *index);
    records
        .into_iter()
        .map(|(_, mut record)| {
            let noted = rig.plugin_clock(&record.pod.identity.uid);
            // An earlier attempt's note is none.
            record.plugin_clock = noted.filter(|clock| clock.begin.0 + PluginClock::TICK_NS > record.run.begin.0);
            record
        })
        .collect()
}

/// The pods that can be made at the same time: all, or those of one network where the runtime knows one only.
fn at_once(runtime: Runtime, pods: Vec<Pod>) -> Vec<Vec<(usize, Pod)>> {
    let mut groups: Vec<Vec<(usize, Pod)>> = Vec::new();
    for (index, pod) in pods.into_iter().enumerate() {
        let fits = |group: &&mut Vec<(usize, Pod)>| {
            runtime == Runtime::Containerd || group.iter().all(|(_, other)| other.network == pod.network)
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push((index, pod)),
            None => groups.push(vec![(index, pod)]),
        }
    }
    groups
}

/// Makes one pod below the cgroup `parent`; its plugin's clock is not read, and its program does not run.
pub async fn make_one(cri: &Cri, parent: &str, pod: Pod) -> CallRecord {
    let config = pod.config(parent);
    let watch = Stopwatch::start();
    let answer = cri.run_pod_sandbox(config, pod.network.handler(), pod.deadline).await;
    let run = watch.stop();
    CallRecord {
        pod,
        runtime: Runtime::default(),
        run,
        outcome: answer.map(SandboxId).map_err(|error| causes(&error)),
        stop: None,
        plugin_clock: None,
        talked: None,
    }
}

/// Runs the pod's program until it has connected.
async fn let_talk(
    cri: &Cri,
    services: Option<Arc<Services>>,
    pod: &Pod,
    id: &SandboxId,
    plan: Talk,
) -> Result<Talked, String> {
    let services = services.ok_or("the node has no services")?;
    let netns = netns(cri, id).await?;
    let name = pod.identity.name.clone();
    let talking = tokio::task::spawn_blocking(move || {
        client::talk(&netns, &name, plan, |address| match plan.stalls {
            true => services.drop_next_query(address),
            false => Ok(()),
        })
    });
    match talking.await {
        Ok(talked) => talked.map_err(|error| error.to_string()),
        Err(panic) => Err(panic.to_string()),
    }
}

/// Path of the sandbox's network namespace, as the runtime reports it.
async fn netns(cri: &Cri, id: &SandboxId) -> Result<PathBuf, String> {
    let answer = cri
        .pod_sandbox_status(&id.0, true)
        .await
        .map_err(|error| causes(&error))?;
    let info = answer.info.get("info").map_or("", String::as_str);
    let info: serde_json::Value = serde_json::from_str(info).map_err(|error| error.to_string())?;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
    let network = namespaces.and_then(|list| list.iter().find(|namespace| namespace["type"] == "network"));
    let path = network.and_then(|network| network["path"].as_str());
    path.map(PathBuf::from)
        .ok_or_else(|| "the runtime does not report the sandbox's network namespace".to_owned())
}

/// Stops and removes the sandbox of `record`, if it has one.
pub async fn delete(cri: &Cri, record: &mut CallRecord) -> Result<(), CriError> {
    let Ok(id) = &record.outcome else { return Ok(()) };
    let watch = Stopwatch::start();
    cri.stop_pod_sandbox(&id.0, DELETE_DEADLINE).await?;
    record.stop = Some(watch.stop());
    cri.remove_pod_sandbox(&id.0, DELETE_DEADLINE).await
}

/// Makes and removes one sandbox on the node's own network, so without CNI: the first one of a fresh containerd unpacks,
/// loads and allocates what later ones find ready, and that would be in no trace.
pub async fn warm_up(cri: &Cri, rig: &Rig) -> Result<(), CriError> {
    let pod = Pod::new("warm-up", 0, Network::Plain);
    let mut config = pod.config(&rig.cgroup_parent());
    // The node has a name already.
    config.hostname.clear();
    if let Some(linux) = &mut config.linux {
        linux.security_context = Some(LinuxSandboxSecurityContext {
            namespace_options: Some(NamespaceOption {
                network: NamespaceMode::Node.into(),
                ..NamespaceOption::default()
            }),
            ..LinuxSandboxSecurityContext::default()
        });
    }
    let id = cri.run_pod_sandbox(config, pod.network.handler(), pod.deadline).await?;
    cri.stop_pod_sandbox(&id, DELETE_DEADLINE).await?;
    cri.remove_pod_sandbox(&id, DELETE_DEADLINE).await
}

/// Waits until the CRI knows the pause image: an event reports the import to it, a moment later.
pub async fn wait_for_pause(rig: &Rig) -> Result<(), CallError> {
    let transport = |error: std::io::Error| CallError::Transport(error.to_string());
    let stream = tokio::net::UnixStream::connect(rig.cri_socket())
        .await
        .map_err(transport)?;
    let mut connection = grpc::handshake(stream).await?;
    let request = ImageStatusRequest {
        image: Some(ImageSpec {
            image: image::NAME.to_owned(),
        }),
    };
    let message = request.encode_to_vec();
    let no_headers = hyper::HeaderMap::new();
    let method = "/runtime.v1.ImageService/ImageStatus";
    for _ in 0..200 {
        let answer = grpc::call(
            &mut connection,
            "http://localhost",
            method,
            &no_headers,
            &message,
            false,
        )
        .await?;
        // The image, field 1, is all that can be in it.
        if !answer.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err(CallError::Transport(
        "the pause image was imported but does not show up".to_owned(),
    ))
}

#[derive(Clone, PartialEq, Message)]
struct ImageStatusRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

const DELETE_DEADLINE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_shows_what_it_promises() {
        let pods: Vec<Pod> = steps(1).into_iter().flatten().collect();
        assert!(pods.len() >= 6);
        for network in Network::ALL {
            assert!(pods.iter().any(|pod| pod.network == network), "{network:?}");
        }
        for name in DELETED {
            assert!(pods.iter().any(|pod| pod.identity.name == name), "{name}");
        }
        // A uid stands for a pod, and only a retry may repeat it.
        let mut keys: Vec<_> = pods.iter().map(|pod| (&pod.identity.uid, pod.attempt)).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), pods.len());
    }
}
