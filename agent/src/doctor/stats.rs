//! Pod statistics: what `ListPodSandboxStats` leaves out or gives as 0, held against `ListContainerStats`.
//!
//! The kubelet's summary API (`pkg/kubelet/stats` of Kubernetes) is what `kubectl top`, HPA and eviction read, directly or
//! through metrics-server. A kubelet with the feature `PodAndContainerStatsFromCRI` makes its summary of these figures alone;
//! runtimes are known to give a CPU rate of 0 and no network. Pure: [`super::cri`] gets the answers.

use std::collections::BTreeMap;

use super::{Finding, Level};
use crate::cri::messages::{Container, ContainerState, PodSandbox, PodSandboxState};
use crate::cri::stats::{ContainerStats, CpuUsage, LinuxPodSandboxStats, PodSandboxStats, UInt64Value};

/// The runtime's responses, requested one after another: a sandbox or container may come or go in between. Statistics are `None`
/// when the runtime has no such call.
pub(super) struct StatsLook {
    pub(super) sandboxes: Vec<PodSandbox>,
    pub(super) containers: Vec<Container>,
    /// CPU use of each sandbox some time before `pod_stats`, by sandbox id: a counter that rose is evidence of use.
    pub(super) before: BTreeMap<String, CpuUsage>,
    pub(super) pod_stats: Option<Vec<PodSandboxStats>>,
    pub(super) container_stats: Option<Vec<ContainerStats>>,
}

/// CPU use of each sandbox, by id, as of one call.
/// A sandbox without an id or CPU figures is left out: nothing can be compared with it.
pub(super) fn cpu_use(stats: &[PodSandboxStats]) -> BTreeMap<String, CpuUsage> {
    let uses = stats.iter().filter_map(|stats| {
        let id = stats.attributes.as_ref()?.id.clone();
        Some((id, stats.linux.as_ref()?.cpu?))
    });
    uses.collect()
}

impl StatsLook {
    /// Sandboxes that are ready: a runtime owes no figures of others.
    fn running(&self) -> impl Iterator<Item = &PodSandbox> {
        let ready = PodSandboxState::SandboxReady;
        self.sandboxes.iter().filter(move |sandbox| sandbox.state() == ready)
    }

    /// Statistics of one sandbox; runtimes return them in any order. A search each time: nodes have some hundred sandboxes at most.
    fn pod(&self, id: &str) -> Option<&PodSandboxStats> {
        let mut stats = self.pod_stats.iter().flatten();
        stats.find(|stats| stats.attributes.as_ref().is_some_and(|attributes| attributes.id == id))
    }

    /// Its figures on Linux; `None` on Windows nodes, whose figures are in a message of their own that the agent does not read.
    fn linux(&self, id: &str) -> Option<&LinuxPodSandboxStats> {
        self.pod(id)?.linux.as_ref()
    }

    /// Statistics of one container, from the list of all containers.
    fn container(&self, id: &str) -> Option<&ContainerStats> {
        let mut stats = self.container_stats.iter().flatten();
        stats.find(|stats| is_of(stats, id))
    }

    /// Running containers of one sandbox. Containers that have exited have no cgroup, hence no figures.
    fn running_containers(&self, sandbox: &str) -> Vec<&Container> {
        let running = ContainerState::ContainerRunning;
        let containers = self.containers.iter();
        containers
            .filter(|container| container.pod_sandbox_id == sandbox && container.state() == running)
            .collect()
    }

    /// Running sandboxes that have statistics, but none of their network.
    pub(super) fn without_network(&self) -> Vec<String> {
        let sandboxes = self.running().filter(|sandbox| {
            let linux = self.linux(&sandbox.id);
            linux.is_some_and(|linux| !has_network(linux))
        });
        sandboxes.map(|sandbox| sandbox.id.clone()).collect()
    }
}

/// Whether statistics are those of the container with this id.
fn is_of(stats: &ContainerStats, id: &str) -> bool {
    stats.attributes.as_ref().is_some_and(|attributes| attributes.id == id)
}

/// Whether both directions are counted. A counter that is present and 0 counts: nothing was sent yet. The CRI wraps each figure in
/// a message for that difference (`UInt64Value` of `pkg/apis/runtime/v1/api.proto`).
fn has_network(linux: &LinuxPodSandboxStats) -> bool {
    let interface = linux
        .network
        .as_ref()
        .and_then(|network| network.default_interface.as_ref());
    interface.is_some_and(|interface| interface.rx_bytes.is_some() && interface.tx_bytes.is_some())
}

/// One figure that is absent, or 0 where a running sandbox must have more. `Warn` where evidence contradicts the figure, `Note`
/// where an idle sandbox would look the same.
struct Gap {
    /// That of the finding, unless another gap of the sandbox is worse.
    level: Level,
    /// The figure, in the field names of the CRI.
    what: String,
    /// What a user of the summary API notices.
    means: &'static str,
}

/// What is missing: a summary first, then pod by pod, at most [`MAX_PODS`]. Nothing where no sandbox runs, or where the runtime
/// has no statistics at all, which `cri.rs` reports. `node_network` are sandboxes without a network of their own.
pub(super) fn compare(look: &StatsLook, node_network: &[String]) -> Vec<Finding> {
    let pods = look.running().count();
    // `NOTREADY` sandboxes are left out: their cgroups are gone.
    if pods == 0 || look.pod_stats.is_none() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut more = 0;
    for sandbox in look.running() {
        let gaps = gaps(look, sandbox, node_network.contains(&sandbox.id));
        if gaps.is_empty() {
            continue;
        }
        // Beyond the bound pods are only counted.
        if findings.len() < MAX_PODS {
            findings.push(finding(sandbox, &gaps));
        } else {
            more += 1;
        }
    }
    // Every pod with a gap counts, whether it is shown or not.
    let incomplete = findings.len() + more;
    if more > 0 {
        findings.push(Finding::new(Level::Warn, "stats.pod", format!("... and {more} more pods")).why("as above"));
    }
    let what = format!("{} of {pods} running pods have all figures", pods - incomplete);
    let summary = if incomplete == 0 {
        Finding::ok("stats.summary", what)
    } else {
        Finding::new(Level::Note, "stats.summary", what)
            .why("these figures matter when the kubelet takes pod statistics from the CRI (feature PodAndContainerStatsFromCRI); otherwise it reads cgroups itself")
            .hint("a newer runtime may report them; otherwise leave that feature off")
    };
    findings.insert(0, summary);
    findings
}

/// One finding for a sandbox, as severe as its worst gap; consequences that gaps share are named once. `dedup` finds equal
/// neighbours only, which is enough: gaps with one consequence come from one check.
fn finding(sandbox: &PodSandbox, gaps: &[Gap]) -> Finding {
    // Namespace and name of the pod; empty where a client other than the kubelet made the sandbox without them.
    let metadata = sandbox.metadata.clone().unwrap_or_default();
    // As crictl shortens ids.
    let id = &sandbox.id[..sandbox.id.floor_char_boundary(13)];
    let what: Vec<&str> = gaps.iter().map(|gap| gap.what.as_str()).collect();
    let mut means: Vec<&str> = gaps.iter().map(|gap| gap.means).collect();
    means.dedup();
    // `Level` is ordered from best to worst.
    let level = gaps.iter().map(|gap| gap.level).max().unwrap_or(Level::Note);
    let what = format!("{}/{} ({id}): {}", metadata.namespace, metadata.name, what.join(", "));
    Finding::new(level, "stats.pod", what).why(means.join("; "))
}

/// What one sandbox lacks, in the order in which the summary API shows the figures.
/// Network figures are not expected of a sandbox on the node's network: its traffic is the node's.
fn gaps(look: &StatsLook, sandbox: &PodSandbox, on_node_network: bool) -> Vec<Gap> {
    let Some(linux) = look.linux(&sandbox.id) else {
        return vec![gap(
            Level::Warn,
            "not in ListPodSandboxStats",
            "the summary API leaves the pod out: kubectl top, HPA and eviction do not see it",
        )];
    };
    let containers = look.running_containers(&sandbox.id);
    // A sandbox may lack several figures; all are shown in one line.
    let mut gaps = Vec::new();
    gaps.extend(cpu(look, sandbox, linux, &containers));
    gaps.extend(memory(linux));
    if !on_node_network {
        gaps.extend(network(linux));
    }
    // The pause process alone is one. `rankPIDPressure` of kubelet's `pkg/kubelet/eviction/helpers.go` orders pods by it.
    if linux.process.is_none_or(|process| value(process.process_count) == 0) {
        gaps.push(gap(
            Level::Note,
            "no process count",
            "eviction under PID pressure ranks the pod as if it had no processes",
        ));
    }
    gaps.extend(missing_containers(look, linux, &containers));
    gaps
}

/// The total must have grown since the sandbox began: it has at least the pause container's start. The rate may be 0 in an idle
/// sandbox, so that it is a gap only where something else shows use: the total between two looks, or the containers' own rates.
fn cpu(look: &StatsLook, sandbox: &PodSandbox, linux: &LinuxPodSandboxStats, containers: &[&Container]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let cpu = linux.cpu.unwrap_or_default();
    // Nanoseconds of all processors since the sandbox began.
    let total = value(cpu.usage_core_nano_seconds);
    if total == 0 {
        gaps.push(gap(
            Level::Warn,
            format!(
                "usageCoreNanoSeconds is {}",
                missing_or_zero(cpu.usage_core_nano_seconds)
            ),
            "kubectl top and an HPA on CPU cannot compute a rate",
        ));
    }
    // A rate is evidence that the runtime computes rates at all.
    if value(cpu.usage_nano_cores) > 0 {
        return gaps;
    }
    // Between two looks that are a moment apart. Rates that the runtime reports are of windows of its own choice, so that the two
    // are not compared with one another. A total that went back is a restart of the runtime's count, and no evidence.
    let before = look.before.get(&sandbox.id).copied().unwrap_or_default();
    let moved = total.saturating_sub(value(before.usage_core_nano_seconds));
    let elapsed = cpu.timestamp.saturating_sub(before.timestamp);
    let moved = if before.timestamp > 0 && elapsed > 0 { moved } else { 0 };
    // The runtime computes the rates of containers apart from that of their sandbox: one may be there without the other.
    let rates = containers
        .iter()
        .filter_map(|container| look.container(&container.id)?.cpu);
    let rate = rates
        .map(|cpu| value(cpu.usage_nano_cores))
        .fold(0, u64::saturating_add);
    // containerd has no rate for what it has looked at once only (`getUsageNanoCores` of its `container_stats_list.go`).
    let absent = cpu.usage_nano_cores.is_none();
    let mut what = format!("usageNanoCores is {}", missing_or_zero(cpu.usage_nano_cores));
    if moved > 0 {
        let (used, elapsed) = (moved as f64 / 1e6, elapsed as f64 / 1e9);
        what.push_str(&format!(" while it used {used:.1} ms of CPU in {elapsed:.1} s"));
    } else if rate > 0 {
        what.push_str(&format!(
            " while its containers use {} millicores",
            rate.div_ceil(1_000_000)
        ));
    } else if !absent {
        // The figures do not tell the two apart, least of all those of one look.
        what.push_str(match before.timestamp {
            0 => " (idle, or never computed; it had no figures a moment before)",
            _ => " (idle, or never computed)",
        });
    }
    let level = if absent || rate > 0 || moved > 0 {
        Level::Warn
    } else {
        Level::Note
    };
    gaps.push(gap(
        level,
        what,
        "the summary API shows no CPU rate: its readers, among them metrics-server before 0.6 with kubectl top and HPA, see 0",
    ));
    gaps
}

/// A running sandbox has at least the pause process resident, so 0 is as wrong as a missing value. The kubelet's eviction manager
/// ranks pods by the working set (`pkg/kubelet/eviction/helpers.go`).
fn memory(linux: &LinuxPodSandboxStats) -> Option<Gap> {
    // Working set: usage less the file pages that can be dropped (cgroup memory.current less inactive_file).
    let working_set = linux.memory.unwrap_or_default().working_set_bytes;
    (value(working_set) == 0).then(|| {
        gap(
            Level::Warn,
            format!("workingSetBytes is {}", missing_or_zero(working_set)),
            "kubectl top and an HPA on memory see nothing, and eviction under memory pressure ranks the pod as if it used none",
        )
    })
}

/// Only the default interface is in the summary API's pod figures (`NetworkStats` of k8s.io/kubelet, `pkg/apis/stats/v1alpha1/types.go`);
/// further interfaces may be absent.
fn network(linux: &LinuxPodSandboxStats) -> Option<Gap> {
    // Absent, or without one of the two counters: the summary API leaves the interface out then.
    if !has_network(linux) {
        return Some(gap(
            Level::Warn,
            "no network figures",
            "the summary API shows no traffic for the pod, dashboards of pod traffic are empty (kubectl top, HPA and eviction do not need it)",
        ));
    }
    // Both directions at 0 are possible in a sandbox that has just begun, so this is a note.
    let interface = linux.network.as_ref()?.default_interface.as_ref()?;
    (value(interface.rx_bytes) == 0 && value(interface.tx_bytes) == 0).then(|| {
        gap(
            Level::Note,
            format!("0 bytes in both directions on {}", interface.name),
            "nothing was sent yet, or the runtime does not count",
        )
    })
}

/// Running containers without figures: of the pod's own list first, since the summary API takes that one where the feature is on
/// (`listPodStatsStrictlyFromCRI` of `pkg/kubelet/stats/cri_stats_provider.go`). A container may have stopped between two calls:
/// the statistics are requested after the lists, so that it then looks like a gap for this one report.
fn missing_containers(look: &StatsLook, linux: &LinuxPodSandboxStats, containers: &[&Container]) -> Option<Gap> {
    let names = |missing: Vec<&&Container>| {
        // As many as fit in a line.
        let names = missing.iter().take(8).map(|container| {
            let metadata = container.metadata.as_ref();
            metadata.map_or(container.id.as_str(), |metadata| metadata.name.as_str())
        });
        names.collect::<Vec<_>>().join(" ")
    };
    let absent = |has: &dyn Fn(&str) -> bool| -> Vec<&&Container> {
        containers.iter().filter(|container| !has(&container.id)).collect()
    };
    let from_pod = absent(&|id| linux.containers.iter().any(|stats| is_of(stats, id)));
    // One finding is enough: the same containers would be missing in both lists.
    if !from_pod.is_empty() {
        return Some(gap(
            Level::Warn,
            format!("without its running containers {}", names(from_pod)),
            "the summary API leaves these containers out: kubectl top and HPA count the pod too low",
        ));
    }
    // A runtime without the call has been reported by `cri.rs`.
    look.container_stats.as_ref()?;
    let from_list = absent(&|id| look.container(id).is_some());
    (!from_list.is_empty()).then(|| {
        gap(
            Level::Warn,
            format!("ListContainerStats lacks {}", names(from_list)),
            "a kubelet that takes container statistics from the CRI does not see these containers",
        )
    })
}

/// A gap in words; `means` is fixed, so that equal consequences can be found.
fn gap(level: Level, what: impl Into<String>, means: &'static str) -> Gap {
    Gap {
        level,
        what: what.into(),
        means,
    }
}

/// 0 for a missing figure, where the difference does not matter ([`missing_or_zero`] tells them apart).
fn value(figure: Option<UInt64Value>) -> u64 {
    figure.map_or(0, |figure| figure.value)
}

/// The two ways in which a figure is of no use, as words of a finding.
fn missing_or_zero(figure: Option<UInt64Value>) -> &'static str {
    if figure.is_some() { "0" } else { "missing" }
}

/// Most pods that are shown one by one: a runtime that leaves a figure out does so for all pods, and one screen shows that.
const MAX_PODS: usize = 20;
