//! The requests of a real Multus in thick mode: its shim, its daemon, and the plugin that the daemon runs for it.
//!
//! The daemon is that of `scripts/peer.sh multus` and finds its pod at a real API server (`api_server/server.rs`), as on a node. Does
//! not: make interfaces; the default network is a script, which sleeps.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandglass_lab::built;
use sandglass_lab::netns::Namespace;
use sandglass_lab::pressure::Pressure;
use sandglass_model::text::tree;
use sandglass_model::trace::Confidence;
use sandglass_model::waits::TimeReason;
use sandglass_model::{Span, registry};
use serde_json::{Value, json};

use crate::daemons::{is_seen, watch};
use crate::server::{Server, TOKEN};
use crate::waits::{ns_of, time_of, trace_of};
use crate::watch::plugin;

/// What Multus looks for; its own is in deployments/multus-daemonset-thick.yml.
const DEFINITION: &str = r#"{
  "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
  "spec": {
    "group": "k8s.cni.cncf.io", "scope": "Namespaced",
    "names": {"plural": "network-attachment-definitions", "singular": "network-attachment-definition", "kind": "NetworkAttachmentDefinition"},
    "versions": [{"name": "v1", "served": true, "storage": true,
      "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]
  }
}"#;
const POD: &str = r#"{
  "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart-0", "namespace": "shop"},
  "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "registry.invalid/c"}]}
}"#;
/// Where a client in a pod finds its token (rest.InClusterConfig of k8s.io/client-go).
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The configuration of the shim, which the daemon makes of that of the default network once it serves.
const SHIM: &str = "net.d/00-multus.conf";

/// Multus' daemon. Ended when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        // Made for the mount, which ended with it; where somebody else has them they are not empty.
        for folder in Path::new(ACCOUNT).ancestors().take(3) {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn daemon(binary: &Path, folder: &Path, server: &Server) -> Daemon {
    for made in ["account", "net.d", "bin", "cache", "run"] {
        fs::create_dir_all(folder.join(made)).unwrap();
    }
    fs::write(folder.join("account/token"), TOKEN).unwrap();
    fs::copy(server.certificate(), folder.join("account/ca.crt")).unwrap();
    let pausing = folder.join("bin/pausing");
    let result = r#"{"cniVersion":"1.0.0","interfaces":[],"ips":[]}"#;
    fs::write(
        &pausing,
        format!("#!/bin/sh\ncat >/dev/null\nsleep 0.4\necho '{result}'\n"),
    )
    .unwrap();
    fs::set_permissions(&pausing, fs::Permissions::from_mode(0o755)).unwrap();
    let network = json!({"cniVersion": "1.0.0", "name": "default", "plugins": [{"type": "pausing"}]});
    fs::write(folder.join("net.d/10-default.conflist"), network.to_string()).unwrap();
    let settings = json!({
        "cniVersion": "1.0.0", "logLevel": "verbose", "logToStderr": true, "cniConfigDir": folder.join("net.d"),
        "multusAutoconfigDir": folder.join("net.d"), "multusConfigFile": "auto", "socketDir": folder.join("run"),
        "binDir": folder.join("bin"), "cniDir": folder.join("cache"),
    });
    fs::write(folder.join("daemon.json"), settings.to_string()).unwrap();
    fs::create_dir_all(ACCOUNT).unwrap();
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let child = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(folder.join("account"))
        .arg(ACCOUNT)
        .arg(binary)
        .arg("-config")
        .arg(folder.join("daemon.json"))
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", server.port().to_string())
        .env("MULTUS_NODE_NAME", "n1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("daemon.log")).unwrap())
        .spawn()
        .unwrap();
    let daemon = Daemon(child);
    let begin = Instant::now();
    // It waits up to 20 s for each of two lists of the API server before it serves.
    while !folder.join(SHIM).exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", log(folder));
        std::thread::sleep(Duration::from_millis(50));
    }
    daemon
}

fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("daemon.log")).unwrap_or_default()
}

#[test]
fn what_multus_daemon_runs_lies_below_its_shims_request() {
    let test = "what_multus_daemon_runs_lies_below_its_shims_request";
    let Some(programs) = built::peer("SANDGLASS_MULTUS", "multus") else {
        eprintln!("SKIPPED {test}: no Multus in the cache; scripts/peer.sh multus builds it");
        return;
    };
    let Some(server) = Server::start(test) else { return };
    let Some(pod) = Namespace::make(test) else { return };
    let Some(watch) = watch(test) else { return };
    let folder = watch.directory.path().to_owned();
    server.namespace("shop", &[]);
    server
        .kubectl(&["create", "-f", "-"], DEFINITION)
        .expect("the definition");
    server.kubectl(&["create", "-f", "-"], POD).expect("the pod");
    let multus = daemon(&programs.join("multus-daemon"), &folder, &server);
    let uid = server.kubectl(
        &["get", "pod", "cart-0", "-n", "shop", "-o", "jsonpath={.metadata.uid}"],
        "",
    );
    let uid = uid.expect("its uid");
    let mut command = plugin(&programs.join("multus-shim"), "multus");
    command
        .env("CNI_PATH", folder.join("bin"))
        .env("CNI_NETNS", pod.path())
        .env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=multus;K8S_POD_UID={uid}"),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let pressure = Pressure::now();
    let mut shim = command.spawn().unwrap();
    let mut network: Value = serde_json::from_slice(&fs::read(folder.join(SHIM)).unwrap()).unwrap();
    network["daemonSocketDir"] = json!(folder.join("run"));
    shim.stdin
        .take()
        .unwrap()
        .write_all(network.to_string().as_bytes())
        .unwrap();
    let answer = shim.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let said = log(&folder);
    let pid = multus.0.id();
    drop(multus);
    let trace = trace_of(watch.finish(), "multus");
    let printed = tree(&trace, trace.root().end.unwrap());
    println!("{printed}");
    assert!(
        answer.contains("cniVersion") && !trace.root().status.is_error(),
        "{answer}\n{said}"
    );
    let named = |name: &str| {
        let found = trace.spans.iter().find(|span| registry::name(span) == name);
        assert!(found.is_some(), "no {name}\n{printed}");
        found.unwrap()
    };
    let (shim, delegate) = (named("plugin multus-shim"), named("plugin pausing"));
    let parent = |span: &Span| &trace.spans[span.parent.unwrap()];
    let request = parent(delegate);
    assert_eq!(parent(request).id, shim.id, "{printed}");
    let daemon = request.detail.as_daemon().unwrap();
    assert_eq!(
        (&*daemon.name, daemon.pid, daemon.transport.as_str()),
        ("multus-daemon", pid, "unix")
    );
    if !is_seen(test, daemon, &pressure) {
        return;
    }
    let attributed = delegate
        .detail
        .as_plugin()
        .unwrap()
        .process
        .attribution
        .as_ref()
        .unwrap();
    assert_eq!(attributed.confidence(), Confidence::Certain, "{printed}");
    // The command that the delegate waited for is what the shim waited for; what was before the programs were attached is unknown.
    for name in ["plugin multus-shim", "plugin pausing"] {
        let time = time_of(&trace, name);
        let known = ns_of(time, TimeReason::Timer) + ns_of(time, TimeReason::Unknown);
        assert!(
            ns_of(time, TimeReason::Timer) >= 300_000_000 && known >= 390_000_000,
            "{name}: {time:?}"
        );
    }
}
