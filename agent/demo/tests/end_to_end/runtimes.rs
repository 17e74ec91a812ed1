//! The same sandboxes from other runtimes: containerd 2 with its own shim, and crun below the distribution's.
//!
//! Each test is skipped, by name, where its peer is absent: `SANDGLASS_CONTAINERD_2` names a directory with a containerd
//! 2.x (`scripts/peer.sh containerd` builds one), crun is a package. CRI-O is in `crio.rs`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_demo::networks::Network;
use sandglass_demo::pods::{CallRecord, Pod};
use sandglass_demo::rig::RigOptions;
use sandglass_demo::scenarios;
use sandglass_demo::verify;
use sandglass_model::cni::CniCommand;
use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{Detail, RuntimeStep, RuntimeStepDetail, Span, Trace};

use crate::older::older_sandbox;
use crate::rig::{Agent, Node};
use crate::{every_scenario, fifty_sandboxes};

#[tokio::test(flavor = "multi_thread")]
async fn containerd_2_is_traced_as_completely() {
    let test = "containerd_2_is_traced_as_completely";
    let Some(containerd) = containerd_2(test) else { return };
    let shim = containerd.join("containerd-shim-runc-v2");
    let options = RigOptions {
        containerd: Some(containerd),
        ..RigOptions::default()
    };
    let Some((traces, records)) = every_scenario(test, options).await else {
        return;
    };
    let mut at_once = 0;
    for trace in ready(&traces, &records) {
        assert_eq!(steps(trace, RuntimeStep::Shim), [shim.as_path()]);
        one_of_each(trace, "runc");
        at_once += usize::from(attached_at_once(trace));
    }
    // Whether they overlap is the scheduler's choice each time; that it never happens is not.
    assert!(at_once > 0, "containerd 2 attaches lo and eth0 at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_sandboxes_of_containerd_2_are_neither_lost_nor_mixed_up() {
    let test = "fifty_sandboxes_of_containerd_2_are_neither_lost_nor_mixed_up";
    let Some(containerd) = containerd_2(test) else { return };
    let options = RigOptions {
        containerd: Some(containerd),
        ..RigOptions::default()
    };
    fifty_sandboxes(test, options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_reports_sandboxes_older_than_the_agent() {
    let test = "containerd_reports_sandboxes_older_than_the_agent";
    older_sandboxes(test, RigOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_2_reports_sandboxes_older_than_the_agent() {
    let test = "containerd_2_reports_sandboxes_older_than_the_agent";
    let Some(containerd) = containerd_2(test) else { return };
    let options = RigOptions {
        containerd: Some(containerd),
        ..RigOptions::default()
    };
    older_sandboxes(test, options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_containerd_2_too_an_older_sandbox_has_traffic_of_its_own() {
    let test = "of_containerd_2_too_an_older_sandbox_has_traffic_of_its_own";
    let Some(containerd) = containerd_2(test) else { return };
    let options = RigOptions {
        containerd: Some(containerd),
        ..RigOptions::default()
    };
    older_sandbox(test, options, Pod::new("cart-0", 1, Network::Plain)).await;
}

/// Labels are in no plugin's environment: a deletion that has them has them from the runtime.
pub async fn older_sandboxes(test: &str, options: RigOptions) {
    let Some(node) = Node::with(test, options).await else {
        return;
    };
    let mut records = node.make(vec![Pod::new("cart-0", 1, Network::Plain)]).await;
    let Some(mut agent) = Agent::start(&node, test).await else {
        return;
    };
    // Requested at the start, reported a moment later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    scenarios::delete(&node.cri, &mut records[0]).await.unwrap();
    let sandbox = records[0].outcome.clone().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let del = loop {
        let mut traces = agent.traces().iter();
        let of_eth0 = |trace: &&Arc<Trace>| {
            matches!(&trace.root().detail, Detail::Operation(operation) if operation.ifname == "eth0")
                && trace.sandbox.as_ref() == Some(&sandbox)
        };
        if let Some(del) = traces.find(of_eth0) {
            break Arc::clone(del);
        }
        assert!(Instant::now() < deadline, "no DEL of {sandbox}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(del.identity, records[0].pod.identity);
    assert_eq!(del.identity.labels, [("app".to_owned(), "cart".to_owned())]);
    agent.stop().await;
    node.stop().await;
}

/// Debian's containerd: crun 1.8 does not take the newer configuration that containerd 2 writes.
#[tokio::test(flavor = "multi_thread")]
async fn crun_below_containerd_is_recognised() {
    let test = "crun_below_containerd_is_recognised";
    let Some(crun) = installed("crun") else {
        eprintln!("SKIPPED {test}: crun is not installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let options = RigOptions {
        oci_runtime: Some(without_hybrid_cgroups(&crun, directory.path())),
        ..RigOptions::default()
    };
    let Some((traces, records)) = every_scenario(test, options).await else {
        return;
    };
    for trace in ready(&traces, &records) {
        assert_eq!(steps(trace, RuntimeStep::Shim).len(), 1);
        one_of_each(trace, "crun");
    }
}

/// Where containerd 2 is; prints `SKIPPED` where it is not.
pub fn containerd_2(test: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("SANDGLASS_CONTAINERD_2").map(PathBuf::from);
    if directory.is_none() {
        eprintln!(
            "SKIPPED {test}: SANDGLASS_CONTAINERD_2 names no containerd 2; scripts/peer.sh containerd builds one"
        );
    }
    directory
}

/// Path of an installed program.
pub fn installed(program: &str) -> Option<PathBuf> {
    let directories = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
    let paths = directories.map(|directory| Path::new(directory).join(program));
    paths.into_iter().find(|path| path.is_file())
}

/// crun refuses a node where a version 2 hierarchy with controllers stands beside version 1 ones. There it gets a view of
/// the node without it; the name of what makes the view is no runtime's, so only crun itself is seen.
pub fn without_hybrid_cgroups(crun: &Path, directory: &Path) -> PathBuf {
    const BESIDE: &str = "/sys/fs/cgroup/unified";
    if !Path::new(BESIDE).join("cgroup.controllers").exists() {
        return crun.to_owned();
    }
    let path = directory.join("with-version-1");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount --propagation slave sh -c 'umount --lazy {BESIDE} && exec \"$@\"' sh {} \"$@\"\n",
        crun.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Traces of the sandboxes that came up.
pub fn ready<'t>(traces: &'t [Arc<Trace>], records: &[CallRecord]) -> Vec<&'t Arc<Trace>> {
    let came_up = records.iter().filter(|record| record.outcome.is_ok());
    let ready: Vec<_> = came_up
        .map(|record| verify::creation(traces, record).unwrap())
        .collect();
    assert!(ready.len() > Network::ALL.len() - 3);
    ready
}

/// One `create` and one `start` by this program, both well.
pub fn one_of_each(trace: &Trace, runtime: &str) {
    for step in [RuntimeStep::Create, RuntimeStep::Start] {
        let paths = steps(trace, step);
        assert_eq!(paths.len(), 1, "{step:?}: {paths:?}");
        assert_eq!(paths[0].file_name().unwrap(), runtime, "{step:?}");
    }
}

/// Paths of the programs that did a step, which all must have ended well and within `sandbox.create`.
pub fn steps(trace: &Trace, wanted: RuntimeStep) -> Vec<&Path> {
    let of_step = |span: &&Span| matches!(&span.detail, Detail::RuntimeStep(step) if step.step == wanted);
    let found = trace.spans.iter().filter(of_step);
    found
        .map(|span| {
            let Detail::RuntimeStep(step) = &span.detail else {
                unreachable!()
            };
            let RuntimeStepDetail { process, .. } = &**step;
            assert_eq!(process.exit, Some(ExitStatus::Code(0)), "{wanted:?}");
            let parent = &trace.spans[span.parent.unwrap()];
            assert!(matches!(parent.detail, Detail::SandboxCreate(_)), "{wanted:?}");
            Path::new(&*process.path)
        })
        .collect()
}

/// The ADDs of two interfaces overlap, and are siblings all the same.
fn attached_at_once(trace: &Trace) -> bool {
    let adds = || {
        trace
            .spans
            .iter()
            .filter(|span| matches!(&span.detail, Detail::Operation(operation) if operation.command == CniCommand::Add))
    };
    let parents: Vec<Option<usize>> = adds().map(|span| span.parent).collect();
    assert!(parents.len() >= 2 && parents.windows(2).all(|pair| pair[0] == pair[1]));
    adds().any(|one| adds().any(|other| one.id != other.id && one.start <= other.start && one.end > Some(other.start)))
}
