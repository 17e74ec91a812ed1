//! Callers of CNI that are no Kubernetes: cnitool and podman. What they make is shown by its container id, and by a name
//! where its caller gives one.
//!
//! Each is skipped, by name, where it is absent: `SANDGLASS_CNITOOL` names a cnitool (`scripts/peer.sh cnitool` builds
//! one), podman 4 with its CNI backend is a package. All of it in directories and a network namespace of the test's own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass::config::Config;
use sandglass::terminal;
use sandglass_demo::image;
use sandglass_model::Trace;
use sandglass_model::cni::CniCommand;
use sandglass_model::trace::{Detail, OperationDetail, Relation, RuntimeStep, Span};

use crate::operations;
use crate::rig::{self, Agent};
use crate::runtimes::installed;

#[tokio::test(flavor = "multi_thread")]
async fn what_cnitool_makes_is_shown_by_its_container_id() {
    let test = "what_cnitool_makes_is_shown_by_its_container_id";
    let Some(cnitool) = std::env::var_os("SANDGLASS_CNITOOL") else {
        eprintln!("SKIPPED {test}: SANDGLASS_CNITOOL names no cnitool; scripts/peer.sh cnitool builds one");
        return;
    };
    let Some(place) = Place::new(test) else { return };
    let _alone = rig::alone().await;
    let Some(mut agent) = Agent::with(&place.config(), test).await else {
        return;
    };
    // The node's side of the bridge ends with the shell; the sandbox's namespace is made for it, as a runtime does.
    let script = r#"
        ip link set lo up && ip netns add "$1" || exit 1
        for verb in add check del; do
            "$0" $verb lonely "/run/netns/$1" || failed=$verb
        done
        ip netns del "$1"
        [ -z "$failed" ]"#;
    let netns = format!("sandglass-tool-{}", std::process::id());
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .arg(cnitool)
        .arg(&netns)
        .env("CNI_PATH", &place.plugins)
        .env("NETCONFPATH", place.networks())
        .env("CNI_IFNAME", "eth7")
        .output()
        .unwrap();
    succeeded(&output);

    let of_eth7 = |trace: &Trace| {
        let mut operations = trace.spans.iter().filter_map(operation);
        operations.any(|operation| operation.ifname == "eth7")
    };
    let traces = settled(&mut agent, of_eth7, 3).await;
    let creation = only(&traces, |trace| matches!(trace.root().detail, Detail::Sandbox(_)));
    let id = &creation.sandbox.as_ref().unwrap().0;
    assert!(id.starts_with("cnitool-"), "{id}");
    assert_eq!(runtime(creation), "cnitool");
    // What it wrote to its caller has the address; the trace has the same, where it can be read.
    let printed = String::from_utf8_lossy(&output.stdout);
    let add = operations(creation).next().unwrap();
    assert_eq!(
        (add.ifname.as_str(), add.netns.as_str()),
        ("eth7", &*format!("/run/netns/{netns}"))
    );
    assert!(
        add.addresses.iter().all(|address| printed.contains(address)),
        "{printed}"
    );
    assert_eq!(plugins(creation), ["bridge", "host-local", "portmap"]);
    // There is no runtime to wait for: it is over with its last plugin.
    let last = creation
        .spans
        .iter()
        .filter(|span| matches!(span.detail, Detail::Plugin(_)));
    assert_eq!(creation.root().end, last.filter_map(|span| span.end).max());
    for verb in [CniCommand::Check, CniCommand::Del] {
        linked(only(&traces, |trace| is_single(trace, verb)), creation);
    }
    shown_as("cnitool-", id, &traces);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_podman_makes_is_shown_by_its_name_and_container_id() {
    let test = "what_podman_makes_is_shown_by_its_name_and_container_id";
    let Some(place) = Place::new(test) else { return };
    if let Some(missing) = ["podman", "conmon", "runc"]
        .into_iter()
        .find(|program| installed(program).is_none())
    {
        eprintln!("SKIPPED {test}: {missing} is not installed");
        return;
    }
    let podman = Podman::new(&place);
    let backend = podman
        .call(&["info", "--format", "{{.Host.NetworkBackend}}"])
        .output()
        .unwrap();
    let backend = String::from_utf8_lossy(&backend.stdout).trim().to_owned();
    if backend != "cni" {
        eprintln!("SKIPPED {test}: this podman has no CNI backend (it has {backend:?})");
        return;
    }
    let _alone = rig::alone().await;
    let Some(mut agent) = Agent::with(&place.config(), test).await else {
        return;
    };
    let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];
    let rootfs = place.directory.path().join("rootfs");
    let cid = place.directory.path().join("cid");
    let name = format!("lonely-{}", std::process::id());
    let run = podman
        .call(&["run", "--detach", "--name", &name, "--network", "lonely", "--cidfile"])
        .arg(&cid)
        .args(limits)
        .arg("--rootfs")
        .arg(&rootfs)
        .arg("/pause")
        .output()
        .unwrap();
    let id = std::fs::read_to_string(&cid).unwrap_or_default();
    let removed = podman.call(&["rm", "--force", "--time", "2", &id]).output().unwrap();
    succeeded(&run);
    succeeded(&removed);

    let of_the_container = |trace: &Trace| trace.sandbox.as_ref().is_some_and(|sandbox| sandbox.0 == id);
    let traces = settled(&mut agent, of_the_container, 2).await;
    let creation = only(&traces, |trace| matches!(trace.root().detail, Detail::Sandbox(_)));
    assert_eq!(creation.sandbox.as_ref().unwrap().0, id);
    assert_eq!(runtime(creation), "podman");
    assert_eq!(plugins(creation), ["bridge", "host-local", "portmap"]);
    let steps: BTreeSet<RuntimeStep> = creation.spans.iter().filter_map(step).collect();
    let all = [RuntimeStep::Shim, RuntimeStep::Create, RuntimeStep::Start];
    assert_eq!(steps, BTreeSet::from(all), "conmon, then the OCI runtime");
    linked(only(&traces, |trace| is_single(trace, CniCommand::Del)), creation);
    // podman hands its container's name to the plugins in the place of a pod's.
    shown_as(&name, &id, &traces);
    agent.stop().await;
}

/// A network `lonely` of real plugins and a root file system with one program.
struct Place {
    directory: tempfile::TempDir,
    plugins: PathBuf,
}

impl Place {
    /// `None`, with a `SKIPPED` line, where there are no plugins or no privilege.
    fn new(test: &str) -> Option<Place> {
        let directories = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"].map(PathBuf::from);
        let has_all = |directory: &PathBuf| {
            let needed = ["bridge", "host-local", "portmap"];
            needed.iter().all(|plugin| directory.join(plugin).is_file())
        };
        let Some(plugins) = directories.into_iter().find(has_all) else {
            eprintln!("SKIPPED {test}: no CNI plugins are installed");
            return None;
        };
        let allowed = Command::new("unshare").args(["--net", "true"]).status();
        if !allowed.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED {test}: no network namespace can be made");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let place = Place { directory, plugins };
        let at = place.directory.path().display();
        std::fs::create_dir(place.networks()).unwrap();
        let list = format!(
            r#"{{"cniVersion": "0.4.0", "name": "lonely", "plugins": [
                {{"type": "bridge", "bridge": "sglonely0", "isGateway": true, "ipam": {{"type": "host-local",
                    "dataDir": "{at}/ipam", "ranges": [[{{"subnet": "10.213.99.0/24"}}]]}}}},
                {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}"#
        );
        std::fs::write(place.networks().join("10-lonely.conflist"), list).unwrap();
        Some(place)
    }

    fn networks(&self) -> PathBuf {
        self.directory.path().join("net.d")
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.traffic.ready_deadline = rig::SILENT_DEADLINE;
        config.cri.endpoint = "none".to_owned();
        config.cni.conf_dir = Some(self.networks());
        config.cni.bin_dirs = vec![self.plugins.clone()];
        config
    }
}

/// podman with everything of its own: storage, state, configuration, and the node's network namespace.
struct Podman {
    directory: PathBuf,
    /// Keeps the namespace: it ends when its input does.
    node: std::process::Child,
}

impl Podman {
    fn new(place: &Place) -> Podman {
        let directory = place.directory.path().to_owned();
        let rootfs = directory.join("rootfs");
        for below in ["proc", "sys", "dev", "etc", "run", "tmp"] {
            std::fs::create_dir_all(rootfs.join(below)).unwrap();
        }
        let pause = rootfs.join("pause");
        std::fs::write(&pause, image::pause_program()).unwrap();
        executable(&pause);
        let settings = format!(
            "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\nruntime = \"runc\"\n\
             [network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [\"{}\"]\nnetwork_config_dir = \"{}\"\n",
            place.plugins.display(),
            place.networks().display()
        );
        std::fs::write(directory.join("containers.conf"), settings).unwrap();
        let node = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo up && cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        Podman { directory, node }
    }

    fn call(&self, arguments: &[&str]) -> Command {
        let at = |name: &str| self.directory.join(name).into_os_string();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.node.id()))
            .args(["podman", "--storage-driver", "vfs", "--root"])
            .arg(at("root"))
            .arg("--runroot")
            .arg(at("state"))
            .arg("--tmpdir")
            .arg(at("tmp"))
            .args(arguments)
            .env("CONTAINERS_CONF", at("containers.conf"));
        command
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        drop(self.node.stdin.take());
        let _ = self.node.wait();
    }
}

fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The closed traces that are `ours`, as soon as there are `count` of them: the node may have other pods.
async fn settled(agent: &mut Agent, ours: impl Fn(&Trace) -> bool, count: usize) -> Vec<Arc<Trace>> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let traces = agent.traces().iter().filter(|trace| ours(trace));
        let traces: Vec<_> = traces.cloned().collect();
        if traces.len() >= count {
            assert_eq!(traces.len(), count);
            for trace in &traces {
                assert_eq!(trace.check(), Ok(()));
                assert!(trace.closed && !trace.incomplete);
            }
            return traces;
        }
        assert!(Instant::now() < deadline, "{} traces, not {count}", traces.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn only(traces: &[Arc<Trace>], is: impl Fn(&Trace) -> bool) -> &Trace {
    let mut found = traces.iter().filter(|trace| is(trace));
    let one = found.next().unwrap();
    assert!(found.next().is_none());
    one
}

fn operation(span: &Span) -> Option<&OperationDetail> {
    match &span.detail {
        Detail::Operation(operation) => Some(operation),
        _ => None,
    }
}

fn step(span: &Span) -> Option<RuntimeStep> {
    match &span.detail {
        Detail::RuntimeStep(step) => Some(step.step),
        _ => None,
    }
}

fn is_single(trace: &Trace, verb: CniCommand) -> bool {
    operation(trace.root()).is_some_and(|operation| operation.command == verb)
}

fn runtime(creation: &Trace) -> &str {
    match &creation.root().detail {
        Detail::Sandbox(sandbox) => &sandbox.runtime,
        _ => "",
    }
}

fn plugins(trace: &Trace) -> Vec<&str> {
    let details = trace.spans.iter().map(|span| &span.detail);
    details
        .filter_map(|detail| match detail {
            Detail::Plugin(plugin) => Some(&*plugin.plugin),
            _ => None,
        })
        .collect()
}

/// A CHECK or DEL that is one's own.
fn linked(single: &Trace, creation: &Trace) {
    assert_eq!(single.sandbox, creation.sandbox);
    let links = &single.root().links;
    let own = links
        .iter()
        .any(|link| (link.trace, link.relation) == (creation.id, Relation::Sandbox));
    assert!(own, "{links:?}");
    assert!(!single.root().status.is_error());
}

/// The first line on the terminal names the owner of each trace: no pod.
fn shown_as(head: &str, id: &str, traces: &[Arc<Trace>]) {
    // As runtimes' own tools shorten it; on the terminal the end of what is cut is a sign.
    let short: String = id.chars().take(11).collect();
    for trace in traces {
        let text = terminal::render_waterfall(trace, 100, false);
        let first = text.lines().next().unwrap();
        assert!(first.starts_with(head) && first.contains(&short), "{first}");
        assert!(trace.identity.namespace.is_empty() && trace.identity.uid.is_empty());
    }
}
