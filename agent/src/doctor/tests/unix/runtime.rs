//! Runtimes that answer well, slowly, wrongly or not at all, and statistics with holes.

use super::super::stats::{self, StatsLook};
use super::*;
use crate::cri::messages::{
    Container, ContainerMetadata, ContainerState, ListContainersResponse, ListPodSandboxResponse, NamespaceMode,
    NamespaceOption, PodSandbox, PodSandboxMetadata, PodSandboxState, PodSandboxStatus, PodSandboxStatusResponse,
    RuntimeCondition, RuntimeStatus, StatusResponse, VersionResponse,
};
use crate::cri::messages::{LinuxPodSandboxStatus, Namespace};
use crate::cri::scripted::{Runtime, ScriptedResponse};
use crate::cri::stats::{
    ContainerAttributes, ContainerStats, CpuUsage, LinuxPodSandboxStats, ListContainerStatsResponse,
    ListPodSandboxStatsResponse, MemoryUsage, NetworkInterfaceUsage, NetworkUsage, PodSandboxAttributes,
    PodSandboxStats, ProcessUsage, UInt64Value,
};

fn some(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

fn condition(kind: &str, status: bool) -> RuntimeCondition {
    RuntimeCondition {
        r#type: kind.to_owned(),
        status,
        reason: if status {
            String::new()
        } else {
            "NetworkPluginNotReady".to_owned()
        },
        message: if status {
            String::new()
        } else {
            "cni plugin not initialized".to_owned()
        },
    }
}

fn sandbox(id: &str, state: PodSandboxState) -> PodSandbox {
    PodSandbox {
        id: id.to_owned(),
        metadata: Some(PodSandboxMetadata {
            name: format!("pod-{id}"),
            namespace: "shop".to_owned(),
            ..PodSandboxMetadata::default()
        }),
        state: state as i32,
        ..PodSandbox::default()
    }
}

fn container_stats(id: &str, rate: u64) -> ContainerStats {
    ContainerStats {
        attributes: Some(ContainerAttributes {
            id: id.to_owned(),
            ..ContainerAttributes::default()
        }),
        cpu: Some(CpuUsage {
            usage_nano_cores: some(rate),
            usage_core_nano_seconds: some(9),
            ..CpuUsage::default()
        }),
        ..ContainerStats::default()
    }
}

/// Statistics with everything in them, for the container `c-ID`.
fn full(id: &str) -> PodSandboxStats {
    let interface = NetworkInterfaceUsage {
        name: "eth0".to_owned(),
        rx_bytes: some(5),
        tx_bytes: some(0),
    };
    PodSandboxStats {
        attributes: Some(PodSandboxAttributes {
            id: id.to_owned(),
            ..PodSandboxAttributes::default()
        }),
        linux: Some(LinuxPodSandboxStats {
            cpu: Some(CpuUsage {
                usage_nano_cores: some(7),
                usage_core_nano_seconds: some(70),
                ..CpuUsage::default()
            }),
            memory: Some(MemoryUsage {
                working_set_bytes: some(4096),
                ..MemoryUsage::default()
            }),
            network: Some(NetworkUsage {
                default_interface: Some(interface),
                ..NetworkUsage::default()
            }),
            process: Some(ProcessUsage {
                process_count: some(2),
                ..ProcessUsage::default()
            }),
            containers: vec![container_stats(&format!("c-{id}"), 7)],
        }),
    }
}

fn script(runtime: &Runtime, pods: &[&str], stats: Vec<PodSandboxStats>, rate: u64) {
    let version = VersionResponse {
        runtime_name: "containerd".to_owned(),
        runtime_version: "9.9.9".to_owned(),
        ..VersionResponse::default()
    };
    runtime.on("Version", ScriptedResponse::of(&version));
    let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", true)];
    let status = StatusResponse {
        status: Some(RuntimeStatus { conditions }),
        ..StatusResponse::default()
    };
    runtime.on("Status", ScriptedResponse::of(&status));
    let mut items: Vec<_> = pods
        .iter()
        .map(|id| sandbox(id, PodSandboxState::SandboxReady))
        .collect();
    items.push(sandbox("gone", PodSandboxState::SandboxNotready));
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse { items }),
    );
    let containers = pods.iter().map(|id| Container {
        id: format!("c-{id}"),
        pod_sandbox_id: (*id).to_owned(),
        metadata: Some(ContainerMetadata {
            name: "app".to_owned(),
            ..ContainerMetadata::default()
        }),
        state: ContainerState::ContainerRunning as i32,
        ..Container::default()
    });
    let containers = containers.collect();
    runtime.on(
        "ListContainers",
        ScriptedResponse::of(&ListContainersResponse { containers }),
    );
    runtime.on(
        "ListPodSandboxStats",
        ScriptedResponse::of(&ListPodSandboxStatsResponse { stats }),
    );
    let stats = pods
        .iter()
        .map(|id| container_stats(&format!("c-{id}"), rate))
        .collect();
    runtime.on(
        "ListContainerStats",
        ScriptedResponse::of(&ListContainerStatsResponse { stats }),
    );
}

async fn report(runtime: &Runtime) -> Report {
    let node = Node::new();
    node.good_kernel();
    run(DoctorOptions {
        runtime: RuntimeChoice::parse(&runtime.endpoint()).unwrap(),
        ..node.options()
    })
    .await
}

fn whats(report: &Report, title: &str) -> Vec<(Level, String)> {
    let section = report.sections.iter().find(|section| section.title == title).unwrap();
    section
        .findings
        .iter()
        .map(|finding| (finding.level, finding.what.clone()))
        .collect()
}

#[tokio::test]
async fn a_good_runtime_is_timed_and_its_figures_are_complete() {
    let runtime = Runtime::start();
    script(&runtime, &["a", "b"], vec![full("a"), full("b")], 7);
    let report = report(&runtime).await;
    let answers = whats(&report, "container runtime");
    let expected = [
        "containerd 9.9.9 at unix://",
        "Version ",
        "Status ",
        "RuntimeReady = true",
        "NetworkReady = true",
        "ListPodSandbox ",
        "ListContainers ",
        "ListContainerStats ",
        "ListPodSandboxStats ",
    ];
    assert_eq!(answers.len(), expected.len(), "{answers:#?}");
    for ((level, what), expected) in answers.iter().zip(expected) {
        assert!(*level == Level::Ok && what.starts_with(expected), "{what} / {expected}");
    }
    assert_eq!(
        whats(&report, "pod statistics"),
        [(Level::Ok, "2 of 2 running pods have all figures".to_owned())]
    );
    assert_eq!(runtime.called("Version"), 3);
}

#[tokio::test]
async fn zero_and_missing_figures_are_shown_per_pod() {
    let runtime = Runtime::start();
    let mut zero = full("zero");
    let linux = zero.linux.as_mut().unwrap();
    linux.cpu.as_mut().unwrap().usage_nano_cores = some(0);
    linux.network = None;
    let mut bare = full("bare");
    bare.linux = Some(LinuxPodSandboxStats::default());
    let mut node_network = full("node");
    node_network.linux.as_mut().unwrap().network = None;
    script(
        &runtime,
        &["zero", "bare", "node", "absent"],
        vec![zero, bare, node_network],
        12_000_000,
    );
    let shares = |network| {
        ScriptedResponse::of(&PodSandboxStatusResponse {
            status: Some(PodSandboxStatus {
                linux: Some(LinuxPodSandboxStatus {
                    namespaces: Some(Namespace {
                        options: Some(NamespaceOption {
                            network: network as i32,
                            ..NamespaceOption::default()
                        }),
                    }),
                }),
                ..PodSandboxStatus::default()
            }),
            ..PodSandboxStatusResponse::default()
        })
    };
    runtime.on("PodSandboxStatus", shares(NamespaceMode::Pod));
    let first = report(&runtime).await;
    let found = whats(&first, "pod statistics");
    let expected = [
        (Level::Note, "0 of 4 running pods have all figures"),
        (
            Level::Warn,
            "shop/pod-zero (zero): usageNanoCores is 0 while its containers use 12 millicores, no network figures",
        ),
        (
            Level::Warn,
            "shop/pod-bare (bare): usageCoreNanoSeconds is missing, usageNanoCores is missing while its containers use 12 millicores, workingSetBytes is missing, no network figures, no process count, without its running containers app",
        ),
        (Level::Warn, "shop/pod-node (node): no network figures"),
        (Level::Warn, "shop/pod-absent (absent): not in ListPodSandboxStats"),
    ];
    assert_eq!(found, expected.map(|(level, what)| (level, what.to_owned())));
    assert_eq!(first.exit_code(), 0);

    runtime.on("PodSandboxStatus", shares(NamespaceMode::Node));
    let found = whats(&report(&runtime).await, "pod statistics");
    assert!(found.iter().all(|(_, what)| !what.contains("network")), "{found:#?}");
    assert_eq!(found[0].1, "1 of 4 running pods have all figures");
}

#[tokio::test]
async fn a_runtime_that_hangs_midway_is_not_waited_for_again_and_again() {
    let runtime = Runtime::start();
    let mut stats = vec![full("a"), full("b"), full("c")];
    for pod in &mut stats {
        pod.linux.as_mut().unwrap().network = None;
    }
    script(&runtime, &["a", "b", "c"], stats, 7);
    runtime.on(
        "PodSandboxStatus",
        ScriptedResponse::Slow(Duration::from_secs(60), Vec::new()),
    );
    let found = whats(&report(&runtime).await, "pod statistics");
    assert_eq!(found.len(), 4);
    assert_eq!(runtime.called("PodSandboxStatus"), 1);
}

#[tokio::test]
async fn an_idle_pod_is_no_warning() {
    let runtime = Runtime::start();
    let mut idle = full("idle");
    let cpu = idle.linux.as_mut().unwrap().cpu.as_mut().unwrap();
    (cpu.timestamp, cpu.usage_nano_cores) = (1, some(0));
    script(&runtime, &["idle"], vec![idle], 0);
    let found = whats(&report(&runtime).await, "pod statistics");
    let what = "shop/pod-idle (idle): usageNanoCores is 0 (idle, or never computed)".to_owned();
    assert_eq!(found[1], (Level::Note, what));
}

#[test]
fn a_rate_of_zero_is_held_against_the_time_that_went_by() {
    let at = |timestamp, total| CpuUsage {
        timestamp,
        usage_core_nano_seconds: some(total),
        usage_nano_cores: some(0),
    };
    let mut busy = full("busy");
    busy.linux.as_mut().unwrap().cpu = Some(at(3_000_000_000, 750_000_000));
    let look = |before| StatsLook {
        sandboxes: vec![sandbox("busy", PodSandboxState::SandboxReady)],
        containers: Vec::new(),
        before: [("busy".to_owned(), before)].into(),
        pod_stats: Some(vec![busy.clone()]),
        container_stats: None,
    };
    let what = |before| stats::compare(&look(before), &[])[1].what.clone();
    assert!(what(at(1_000_000_000, 500_000_000)).ends_with("is 0 while it used 250.0 ms of CPU in 2.0 s"));
    // Clocks that stand or go back, totals that shrink: no evidence.
    for before in [at(3_000_000_000, 0), at(9_000_000_000, 0), at(1, u64::MAX)] {
        assert!(what(before).ends_with("(idle, or never computed)"), "{before:?}");
    }
    assert!(what(CpuUsage::default()).ends_with("never computed; it had no figures a moment before)"));
}

#[tokio::test]
async fn many_incomplete_pods_are_summed_up() {
    let runtime = Runtime::start();
    let names: Vec<String> = (0..110).map(|n| format!("p{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    script(&runtime, &names, Vec::new(), 1);
    let found = whats(&report(&runtime).await, "pod statistics");
    assert_eq!(found.len(), 22);
    assert_eq!(found[21].1, "... and 90 more pods");
}

#[tokio::test]
async fn a_network_that_is_not_ready_fails_with_the_runtimes_words() {
    let runtime = Runtime::start();
    script(&runtime, &[], Vec::new(), 0);
    let status = StatusResponse {
        status: Some(RuntimeStatus {
            conditions: vec![
                condition("RuntimeReady", true),
                condition("NetworkReady", false),
                condition("Other", false),
            ],
        }),
        info: [
            ("lastCNILoadStatus".to_owned(), "cni config load failed: x".to_owned()),
            (
                "cniconfig".to_owned(),
                r#"{"PluginDirs":["/d1","/d2"],"PluginConfDir":"/c","PluginMaxConfNum":0}"#.to_owned(),
            ),
            (
                "config".to_owned(),
                r#"{"containerd":{"runtimes":{"runc":{"cniConfDir":""},"kata":{"cniConfDir":"/k","cniMaxConfNum":2}}}}"#
                    .to_owned(),
            ),
        ]
        .into(),
    };
    runtime.on("Status", ScriptedResponse::of(&status));
    let report = report(&runtime).await;
    let what = "NetworkReady = false: NetworkPluginNotReady cni plugin not initialized";
    assert_eq!(level_of(&report, "cri.condition", what), Level::Fail);
    assert_eq!(level_of(&report, "cri.condition", "Other"), Level::Note);
    assert!(
        report
            .to_json()
            .contains("containerd's last attempt: cni config load failed: x")
    );
    let (_, settings) = &whats(&report, "CNI configuration")[0];
    assert!(
        settings.contains("/c, plugins in ") && settings.ends_with("/d2 (reported by the runtime)"),
        "{settings}"
    );
    let of_handler = whats(&report, "CNI configuration").into_iter().map(|(_, what)| what);
    assert!(
        of_handler
            .into_iter()
            .any(|what| what.starts_with("sandboxes of runtime handler kata: /") && what.ends_with("/k"))
    );
    assert_eq!(report.exit_code(), 1);
}

#[tokio::test]
async fn a_runtime_without_cri_or_with_nonsense_is_a_warning() {
    let runtime = Runtime::start();
    assert_eq!(
        level_of(&report(&runtime).await, "cri.call", "UNIMPLEMENTED"),
        Level::Warn
    );
    runtime.on("Version", ScriptedResponse::Slow(Duration::from_secs(60), Vec::new()));
    assert_eq!(
        level_of(&report(&runtime).await, "cri.call", "no answer within"),
        Level::Warn
    );
    script(&runtime, &["a"], Vec::new(), 0);
    for method in [
        "Status",
        "ListPodSandbox",
        "ListContainers",
        "ListPodSandboxStats",
        "ListContainerStats",
    ] {
        runtime.on(method, ScriptedResponse::Body(vec![0xff; 99]));
    }
    let report_of_garbage = report(&runtime).await;
    assert_eq!(level_of(&report_of_garbage, "cri.call", "ListContainers"), Level::Warn);
    assert_eq!(report_of_garbage.exit_code(), 0);
    runtime.stop().await;
    assert_eq!(
        level_of(&report(&runtime).await, "cri.call", "cannot connect"),
        Level::Warn
    );
    script(&runtime, &["a"], Vec::new(), 0);
    runtime.on("ListPodSandboxStats", ScriptedResponse::Status(12, "not implemented"));
    runtime.start_again();
    assert_eq!(
        level_of(&report(&runtime).await, "cri.call", "ListPodSandboxStats"),
        Level::Note
    );
}
