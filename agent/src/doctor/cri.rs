//! The container runtime: whether its socket is there, how fast it answers, whether its network is ready, which CNI settings it
//! uses.
//!
//! Calls that the kubelet makes too, in the words of CRI v1 (`pkg/apis/runtime/v1/api.proto` of kubernetes/cri-api). Read-only
//! ones alone: a doctor that makes a sandbox changes the node. Each has the deadline of `DoctorOptions::timeout`, so that a
//! runtime that hangs delays the report by that and not for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::stats::{self, StatsLook};
use super::{DoctorOptions, Finding, Level};
use crate::cni_conf::{Libcni, RuntimeKind};
use crate::cri::messages::StatusResponse;
use crate::cri::{Cri, CriError, RuntimeChoice};
use crate::failure::{Advice, causes};

/// What the runtime reports of itself. What could not be requested is `None`, and `findings` say why. The CNI section reads
/// `kind`, `libcni` and `cni`: so the runtime is checked first.
#[derive(Debug, Default)]
pub(super) struct RuntimeView {
    pub(super) findings: Vec<Finding>,
    pub(super) stats: Vec<Finding>,
    pub(super) kind: Option<RuntimeKind>,
    /// The generation of libcni that its version is built with.
    pub(super) libcni: Option<Libcni>,
    /// The settings that it runs with, which its files need not contain any more.
    pub(super) cni: Option<LoadedCni>,
    /// Ids of all sandboxes; `None` where the runtime did not list them.
    pub(super) sandboxes: Option<BTreeSet<String>>,
}

/// The CNI settings a running containerd uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoadedCni {
    /// `PluginConfDir`.
    pub(super) conf_dir: String,
    /// `PluginDirs`, in the order in which plugins are looked up; at most 16. Never empty: go-cni's own default is `/opt/cni/bin`
    /// (`DefaultCNIDir` of its `types_others.go`).
    pub(super) bin_dirs: Vec<String>,
    /// `PluginMaxConfNum`: files that are loaded; `None` for all.
    pub(super) max_networks: Option<usize>,
    /// Directories of runtime handlers; `None` where the runtime does not report its whole configuration.
    pub(super) handlers: Option<Vec<LoadedHandler>>,
}

/// A runtime handler with a directory of its own (`cni_conf_dir`, `cni_max_conf_num` of a runtime in containerd's configuration):
/// sandboxes of a RuntimeClass that names the handler get their networks from there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoadedHandler {
    pub(super) handler: String,
    pub(super) conf_dir: String,
    /// `None` for the number of the default directory; within, `None` for all files.
    pub(super) max_networks: Option<Option<usize>>,
}

/// Requests what the runtime reports, and judges it. Never fails: what does not answer becomes a finding. Takes at most
/// `timeout` for each call, 19 with those that are repeated, one more for each sandbox of `on_node_network`, and the pause.
pub(super) async fn check(options: &DoctorOptions) -> RuntimeView {
    let mut view = RuntimeView::default();
    let Some(endpoint) = options.runtime.endpoint(&options.root) else {
        view.findings.push(absent(&options.runtime));
        return view;
    };
    // The CRI has no authentication of its own: who reaches the socket controls the node's containers.
    if !endpoint.is_local() {
        view.findings.push(
            Finding::new(
                Level::Warn,
                "cri.endpoint",
                format!("{endpoint} is on another machine, unencrypted"),
            )
            .why("anyone on the network path can read and change requests, and access to a CRI socket is root on its node")
            .hint("use the node's own socket"),
        );
    }
    // A socket without a listener fails here, one of a runtime that hangs at the first call.
    let cri = match Cri::connect_to(endpoint, options.timeout).await {
        Ok(cri) => cri,
        Err(error) => {
            view.findings.push(failed("connect", &error));
            return view;
        }
    };
    look(options, &cri, &mut view).await;
    view
}

/// No runtime to call: by configuration, or because there is no socket. A note, since traces come from the probes alone.
fn absent(runtime: &RuntimeChoice) -> Finding {
    // Two ways to be without a runtime; the consequence is the same.
    let finding = match runtime {
        // Chosen by the user, so that there is nothing to mend.
        RuntimeChoice::Off => Finding::new(
            Level::Note,
            "cri.endpoint",
            "the container runtime is not used: cri.endpoint is none",
        ),
        RuntimeChoice::Auto | RuntimeChoice::At(_) => {
            Finding::new(Level::Note, "cri.endpoint", "no CRI socket at the well-known paths")
                .hint("set the runtime's endpoint, or mount its socket into the agent's container")
        }
    };
    finding.why("no pod labels, and sandboxes older than the agent are not listed; traces do not need it")
}

/// The calls, in the order in which a later one needs an earlier one: version, conditions, lists, statistics. Without a
/// version nothing else is called; a later call that fails is a finding, and the next one is made.
async fn look(options: &DoctorOptions, cri: &Cri, view: &mut RuntimeView) {
    match timed(|| cri.version()).await {
        // `runtime_name` is "containerd" or "cri-o", `runtime_version` a release (VersionResponse of the CRI).
        Ok((version, median)) => {
            let kind = RuntimeKind::from_name(&version.runtime_name);
            view.kind = Some(kind);
            view.libcni = Libcni::of(kind, &version.runtime_version);
            let what = format!(
                "{} {} at {}",
                version.runtime_name,
                version.runtime_version,
                cri.endpoint()
            );
            view.findings.push(Finding::ok("cri.version", what));
            view.findings.push(pace("Version", median));
        }
        Err(error) => {
            view.findings.push(failed("Version", &error));
            return;
        }
    }
    match timed(|| cri.status(true)).await {
        Ok((status, median)) => {
            view.findings.push(pace("Status", median));
            view.cni = loaded_cni(&status);
            view.findings.extend(conditions(&status));
        }
        Err(error) => view.findings.push(failed("Status", &error)),
    }
    // Without the lists there is nothing to hold the statistics against; each call is timed all the same.
    let sandboxes = keep(view, "ListPodSandbox", timed(|| cri.list_pod_sandbox()).await);
    view.sandboxes = sandboxes
        .as_ref()
        .map(|sandboxes| sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect());
    let containers = keep(view, "ListContainers", timed(|| cri.list_containers()).await);
    // The first of two looks at CPU counters; the containers' statistics and the pause pass between them. Its error is that of
    // the second, which is reported.
    let mut before = BTreeMap::new();
    if let Ok(first) = cri.list_pod_sandbox_stats().await {
        before = stats::cpu_use(&first);
    }
    let container_stats = keep(view, "ListContainerStats", timed(|| cri.list_container_stats()).await);
    if !before.is_empty() {
        tokio::time::sleep(options.pause).await;
    }
    let pod_stats = keep(
        view,
        "ListPodSandboxStats",
        timed(|| cri.list_pod_sandbox_stats()).await,
    );
    let (Some(sandboxes), Some(containers)) = (sandboxes, containers) else {
        return;
    };
    let look = StatsLook {
        sandboxes,
        containers,
        before,
        pod_stats,
        container_stats,
    };
    let node_network = on_node_network(cri, &look).await;
    view.stats = stats::compare(&look, &node_network);
}

/// Of the sandboxes without network figures, those that have no network of their own (`NamespaceMode` NODE of the CRI): their
/// traffic is the node's, and missing figures are right.
async fn on_node_network(cri: &Cri, look: &StatsLook) -> Vec<String> {
    // Ids of those that share the node's network namespace.
    let mut ids = Vec::new();
    // One call for each, since the list does not contain the namespace mode.
    for id in look.without_network().into_iter().take(MAX_ASKED) {
        match cri.pod_sandbox_status(&id, false).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.on_node_network()) => ids.push(id),
            Ok(_) => {}
            // Gone meanwhile, perhaps.
            // gRPC's NOT_FOUND and its like: an answer about one sandbox, not a sign of the runtime's state.
            Err(error) if error.status().is_some() => {}
            // A runtime that hangs now would hang for each of them.
            Err(_) => break,
        }
    }
    ids
}

/// Makes a call three times; returns the last response and the median time, which one slow call (a cold cache, a pod that starts)
/// does not move. Stops at the first error: a runtime that does not answer is not made to do so three times.
async fn timed<T, F>(mut call: impl FnMut() -> F) -> Result<(T, Duration), CriError>
where
    F: Future<Output = Result<T, CriError>>,
{
    // Wall-clock time as the kubelet would measure it.
    let mut times = Vec::with_capacity(3);
    loop {
        let begin = Instant::now();
        let answer = call().await?;
        times.push(begin.elapsed());
        // Of three values the second in order is the median.
        if times.len() == 3 {
            times.sort();
            return Ok((answer, times[1]));
        }
    }
}

/// Notes how a call went; its response, if there is one. So the report has a line for each method, also for those whose response
/// is not needed.
fn keep<T>(view: &mut RuntimeView, method: &str, outcome: Result<(T, Duration), CriError>) -> Option<T> {
    match outcome {
        Ok((answer, median)) => {
            view.findings.push(pace(method, median));
            Some(answer)
        }
        Err(error) => {
            view.findings.push(failed(method, &error));
            None
        }
    }
}

/// Whether a call is as fast as the kubelet needs it. The time includes the transport, as it does for the kubelet.
fn pace(method: &str, median: Duration) -> Finding {
    // The median of three: the first may load what the others find loaded.
    let what = format!("{method} answers in {:.1} ms (median of 3)", median.as_secs_f64() * 1e3);
    if median < SLOW {
        return Finding::ok("cri.pace", what);
    }
    Finding::new(Level::Warn, "cri.pace", what)
        .why("the kubelet repeats this call all the time: a slow runtime delays the start of every pod")
        .hint("see the runtime's log and the load of its disk")
}

/// A call that failed. Statistics are optional in the CRI (`UNIMPLEMENTED`): without them the kubelet reads cgroups.
fn failed(method: &str, error: &CriError) -> Finding {
    // `ListContainerStats` and `ListPodSandboxStats`.
    let statistics = method.ends_with("Stats");
    let level = if statistics && error.is_unimplemented() {
        Level::Note
    } else {
        Level::Warn
    };
    let why = if statistics {
        "a kubelet that takes pod statistics from the CRI has none from this runtime"
    } else {
        "no pod labels, and sandboxes older than the agent are not listed; traces do not need it"
    };
    Finding::new(level, "cri.call", causes(error))
        .why(why)
        .hint(error.hint())
}

/// The conditions of the verbose status. The kubelet requires `RuntimeReady` and `NetworkReady` (`updateRuntimeUp` of its
/// `pkg/kubelet/kubelet.go`); containerd adds `ContainerdHasNoDeprecationWarnings`, which is for people.
fn conditions(status: &StatusResponse) -> Vec<Finding> {
    // A condition that is absent is as bad as one that is false (`updateRuntimeUp`), hence the finding for an empty list.
    let conditions = status.status.iter().flat_map(|status| &status.conditions);
    let mut findings: Vec<Finding> = conditions
        .take(MAX_CONDITIONS)
        .map(|condition| {
            let name = condition.r#type.as_str();
            if condition.status {
                return Finding::ok("cri.condition", format!("{name} = true"));
            }
            // `RuntimeReady` and `NetworkReady` of kubernetes/cri-api, `pkg/apis/runtime/v1/constants.go`.
            let required = matches!(name, "RuntimeReady" | "NetworkReady");
            let level = if required { Level::Fail } else { Level::Note };
            let what = format!("{name} = false: {} {}", condition.reason, condition.message);
            let finding = Finding::new(level, "cri.condition", what.trim_end().to_owned());
            match name {
                "NetworkReady" => finding
                    .why("the kubelet marks the node NotReady; pods with a network of their own do not start")
                    .hint(network_hint(status)),
                "RuntimeReady" => finding
                    .why("the kubelet marks the node NotReady")
                    .hint("see the runtime's log"),
                _ => finding.why("the kubelet does not use this condition"),
            }
        })
        .collect();
    if findings.is_empty() {
        findings.push(
            Finding::new(Level::Warn, "cri.condition", "the runtime reports no conditions")
                .why("the kubelet takes that for not ready"),
        );
    }
    findings
}

/// containerd keeps the outcome of its last attempt to load CNI configuration in `info` of the verbose status; it names the file
/// (`lastCNILoadStatus`, `internal/cri/server/status.go`). `OK` after a good one.
fn network_hint(status: &StatusResponse) -> String {
    // The section with the findings about files and directories follows this one.
    let general = "see the CNI configuration below";
    match status.info.get("lastCNILoadStatus") {
        Some(last) if last != "OK" => format!("{general}; containerd's last attempt: {last}"),
        _ => general.to_owned(),
    }
}

/// `cniconfig` in containerd's verbose status: the settings it runs with, whatever its files contain by now.
fn loaded_cni(status: &StatusResponse) -> Option<LoadedCni> {
    // `internal/cri/server/status.go` of containerd. CRI-O reports no such key, and its files have to do.
    let config: Value = serde_json::from_str(status.info.get("cniconfig")?).ok()?;
    // A field that is missing or of another type makes the whole report useless: then the files count.
    let directories = config.get("PluginDirs")?.as_array()?;
    let bin_dirs = directories.iter().filter_map(Value::as_str).take(16);
    Some(LoadedCni {
        conf_dir: config.get("PluginConfDir")?.as_str()?.to_owned(),
        bin_dirs: bin_dirs.map(str::to_owned).collect(),
        max_networks: limit(config.get("PluginMaxConfNum")?),
        handlers: status.info.get("config").and_then(|config| loaded_handlers(config)),
    })
}

/// `containerd.runtimes` in `config` of the verbose status (`Runtime` of containerd's `internal/cri/config/config.go`).
fn loaded_handlers(config: &str) -> Option<Vec<LoadedHandler>> {
    let config: Value = serde_json::from_str(config).ok()?;
    // The configuration as containerd marshals it, with the Go names of its JSON tags.
    let runtimes = config.get("containerd")?.get("runtimes")?.as_object()?;
    // In the order of their names, which is that of a JSON object here.
    let own = runtimes.iter().filter_map(|(handler, runtime)| {
        let conf_dir = runtime.get("cniConfDir")?.as_str()?;
        // 0 stands for the number of the default directory (`initPlatform` of `internal/cri/server/service_linux.go`).
        let number = runtime.get("cniMaxConfNum").filter(|number| **number != 0);
        // Handlers without a directory of their own use the default one, which is checked anyway.
        (!conf_dir.is_empty()).then(|| LoadedHandler {
            handler: handler.clone(),
            conf_dir: conf_dir.to_owned(),
            max_networks: number.map(limit),
        })
    });
    Some(own.take(MAX_HANDLERS).collect())
}

/// A number of files. go-cni loads all when the number is not positive (`loadFromConfDir` of its `opts.go`).
fn limit(number: &Value) -> Option<usize> {
    usize::try_from(number.as_u64()?).ok().filter(|number| *number > 0)
}

/// Above this median a call counts as slow: the kubelet lists pods every second (`genericPlegRelistPeriod` of its
/// `pkg/kubelet/kubelet.go`), so that a slower list is never up to date.
const SLOW: Duration = Duration::from_secs(1);
/// Runtimes report two to four; the text of each is the runtime's own.
const MAX_CONDITIONS: usize = 32;
/// Sandboxes whose status is requested: one call each.
const MAX_ASKED: usize = 50;
/// Handlers of a node are a handful: one for each RuntimeClass.
const MAX_HANDLERS: usize = 64;
