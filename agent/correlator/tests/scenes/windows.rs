//! Windows nodes: calls of plugins inferred from what the runtime reports, activities attributed by their objects.
//! Each subject has a file of its own; here is what all of them use.

mod activities;
mod calls;
mod silos;

use sandglass_model::trace::Detail;
use sandglass_model::windows::{ActivityChange, ActivityStep, ObjectKey, RuntimeReport, Service};
use sandglass_model::{Body, PodIdentity, ProcessKey, SandboxId, Trace};

use crate::scene::{Played, Scene};

fn windows() -> Scene {
    let mut scene = Scene::by_runtime("containerd.exe");
    scene.config.windows = true;
    scene
}

fn pod(name: &str) -> PodIdentity {
    PodIdentity {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        labels: Vec::new(),
    }
}

fn report(scene: &mut Scene, ms: u64, report: RuntimeReport) {
    scene.at(ms).event(Body::RuntimeReported(Box::new(report)));
}

fn began(scene: &mut Scene, ms: u64, name: &str) {
    report(
        scene,
        ms,
        RuntimeReport::RunBegan {
            identity: pod(name),
            attempt: 0,
        },
    );
}

fn returned(scene: &mut Scene, ms: u64, name: &str, id: &str) {
    let sandbox = SandboxId(id.to_owned());
    report(
        scene,
        ms,
        RuntimeReport::RunReturned {
            identity: pod(name),
            sandbox,
        },
    );
}

/// The runtime runs a program.
fn runs(scene: &mut Scene, ms: u64, name: &str) -> ProcessKey {
    scene.at(ms).runtime(&format!("C:/cni/{name}.exe"), &[])
}

fn step(name: &str, activity: &str, change: ActivityChange, keys: &[ObjectKey]) -> Body {
    Body::ActivitySeen(Box::new(ActivityStep {
        service: Service::Hns,
        name: name.to_owned(),
        activity: activity.to_owned(),
        related: String::new(),
        pid: 900,
        tid: 7,
        step: change,
        keys: keys.to_vec(),
        fields: Default::default(),
    }))
}

fn stopped(result: u32) -> ActivityChange {
    ActivityChange::Stopped {
        result: Some(result),
        message: String::new(),
    }
}

fn hns(scene: &mut Scene, from: u64, to: u64, name: &str, activity: &str, keys: &[ObjectKey]) {
    scene
        .at(from)
        .event(step(name, activity, ActivityChange::Started, keys));
    scene.at(to).event(step(name, activity, stopped(0), &[]));
}

fn endpoint(id: &str) -> ObjectKey {
    ObjectKey::Endpoint(id.to_owned())
}

fn sandbox_traces(played: &Played) -> Vec<&Trace> {
    let of_sandbox = |trace: &&Trace| matches!(trace.root().detail, Detail::Sandbox(_));
    played.closed.iter().filter(of_sandbox).collect()
}
