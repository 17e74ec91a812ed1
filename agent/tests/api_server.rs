//! The chart before a real API server: it takes every switch, upgrades older charts in place, and refuses the pods below each level
//! of Pod Security as deploy/README.md says.
//!
//! The server is that of the cluster's programs, by itself (`api_server/server.rs`); without them, or without the repository's
//! history, each test prints `SKIPPED`. Does not: run a pod (`cluster.rs` does).
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "deploy/helm.rs"]
mod helm;
#[path = "api_server/older.rs"]
mod older;
#[path = "api_server/server.rs"]
mod server;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "deploy/switches.rs"]
mod switches;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use helm::Helm;
use older::OLDER;
use serde_json::{Value, json};
use server::{Server, root};
use switches::switches;

/// The version of the server.
const VERSION: &str = "1.36.0";
/// The chart makes its objects where they are known.
const OPERATOR: [&str; 3] = [
    "monitoring.coreos.com/v1",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
];
/// What the chart demands, and both systems.
const REQUIRED: [&str; 3] = [
    "--set=image.repository=registry.invalid/sandglass",
    "--set=windows.image.repository=registry.invalid/sandglass-windows",
    "--set=windows.enabled=true",
];
/// What the chart makes; objects of the Prometheus operator aside, which this server does not know.
const KINDS: &str = "daemonsets,configmaps,serviceaccounts,pods";

#[test]
fn the_api_server_takes_every_switch() {
    let test = "the_api_server_takes_every_switch";
    let Some(server) = Server::start(test) else { return };
    let Some(helm) = Helm::find(test) else { return };
    server.namespace("sandglass", &[]);
    let mut documents = BTreeSet::new();
    for switch in switches() {
        let text = helm.template(&switch.arguments, VERSION, &OPERATOR).unwrap();
        let rendered: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        // The operator's kinds and OpenShift's are not Kubernetes'; the namespace is there.
        let foreign = [
            "PodMonitor",
            "PrometheusRule",
            "SecurityContextConstraints",
            "Namespace",
        ];
        let is_ours = |document: &Value| document["kind"].as_str().is_some_and(|kind| !foreign.contains(&kind));
        let ours = rendered.into_iter().filter(is_ours);
        documents.extend(ours.map(|document| document.to_string()));
    }
    assert!(documents.len() > 60, "only {} different documents", documents.len());
    let folder = tempfile::tempdir().unwrap();
    for (number, document) in documents.iter().enumerate() {
        fs::write(folder.path().join(format!("{number}.json")), document).unwrap();
    }
    // Strictly: a field that the API does not have is an error.
    let folder = folder.path().display().to_string();
    let created = server.kubectl(
        &["create", "--dry-run=server", "--validate=strict", "--filename", &folder],
        "",
    );
    let printed = created.expect("create");
    assert_eq!(printed.matches(" created (server dry run)").count(), documents.len());
}

/// Installed, upgraded, rolled back, upgraded again, taken away. Each upgrade keeps the objects: Kubernetes refuses a change of a field
/// that cannot change, a DaemonSet's selector for example, and a DaemonSet of another name would run beside the old one.
#[test]
fn the_chart_upgrades_older_ones_in_place() {
    let test = "the_chart_upgrades_older_ones_in_place";
    let Some(server) = Server::start(test) else { return };
    let chart = root("deploy/helm/sandglass").display().to_string();
    for older in OLDER {
        let Some((_folder, before)) = older.chart() else {
            eprintln!("SKIPPED {test}: the history has no {}", older.commit);
            return;
        };
        let namespace = format!("older-{}", &older.commit[..7]);
        server.namespace(&namespace, &[]);
        let upgrade = |chart: &str, more: &[&str]| {
            let begin = ["upgrade", "--install", "sandglass", chart, "--namespace", &namespace];
            server.helm(&[&begin[..], &REQUIRED, more].concat())
        };
        upgrade(&before.display().to_string(), &[]).expect("install");
        let first = kept(&server, &namespace);
        assert_eq!(first.len(), 5, "{first:?}");

        upgrade(&chart, &[]).expect("upgrade");
        let images = |namespace: &str| server.objects("daemonsets", namespace);
        assert_eq!(kept(&server, &namespace), first, "{}: after the upgrade", older.commit);
        let upgraded = images(&namespace);
        server
            .helm(&["rollback", "sandglass", "1", "--namespace", &namespace])
            .expect("rollback");
        assert_eq!(kept(&server, &namespace), first, "{}: after the rollback", older.commit);
        // What a user has set stays, and what the chart of before had by default goes.
        upgrade(&chart, &["--reset-then-reuse-values"]).expect("upgrade with the values of before");
        assert_eq!(
            kept(&server, &namespace),
            first,
            "{}: after the second upgrade",
            older.commit
        );
        let specs = |sets: &[Value]| sets.iter().map(|set| set["spec"].clone()).collect::<Vec<_>>();
        assert_eq!(specs(&images(&namespace)), specs(&upgraded), "{}", older.commit);

        let values = before.join("values.yaml").display().to_string();
        let taken = upgrade(&chart, &["--values", &values, "--dry-run=server"]);
        assert_eq!(
            taken.succeeded,
            older.refused.is_empty(),
            "{}: {}",
            older.commit,
            taken.complained
        );
        assert!(
            taken.complained.contains(older.refused),
            "{}: {}",
            older.commit,
            taken.complained
        );

        server
            .helm(&["uninstall", "sandglass", "--namespace", &namespace])
            .expect("uninstall");
        assert_eq!(
            kept(&server, &namespace),
            BTreeMap::new(),
            "{}: left behind",
            older.commit
        );
    }
}

/// Objects of a namespace by kind and name, with their uids.
fn kept(server: &Server, namespace: &str) -> BTreeMap<String, String> {
    let objects = server.objects(KINDS, namespace).into_iter();
    let named = objects.map(|object| {
        let name = format!(
            "{} {}",
            object["kind"].as_str().unwrap(),
            object["metadata"]["name"].as_str().unwrap()
        );
        (name, object["metadata"]["uid"].as_str().unwrap().to_owned())
    });
    named.collect()
}

/// Each level refuses each pod of the chart for the reasons in the table of deploy/README.md, at the oldest version that the chart
/// supports and at the server's.
#[test]
fn pod_security_refuses_what_the_readme_says() {
    let test = "pod_security_refuses_what_the_readme_says";
    let Some(server) = Server::start(test) else { return };
    let Some(helm) = Helm::find(test) else { return };
    let pods = pods(&helm);
    let readme = fs::read_to_string(root("deploy/README.md")).unwrap();
    for version in ["v1.26", "v1.36"] {
        for level in ["privileged", "baseline", "restricted"] {
            let namespace = format!("{level}-{}", version.replace('.', "-"));
            server.namespace(
                &namespace,
                &[
                    format!("pod-security.kubernetes.io/enforce={level}"),
                    format!("pod-security.kubernetes.io/enforce-version={version}"),
                ],
            );
            let cells = pods.iter().map(|(name, pod)| refusals(&server, &namespace, name, pod));
            let row = format!("| `{level}` | {} |", cells.collect::<Vec<_>>().join(" | "));
            assert!(readme.contains(&row), "deploy/README.md lacks, of {version}: {row}");
        }
    }
    // The chart's own namespace has the label.
    let namespace = helm
        .template(&["namespace.create=true".to_owned()], VERSION, &[])
        .unwrap();
    let namespace: Vec<Value> = serde_saphyr::from_multiple(&namespace).unwrap();
    let mut namespace = namespace
        .into_iter()
        .find(|document| document["kind"] == "Namespace")
        .unwrap();
    namespace["metadata"]["name"] = "of-the-chart".into();
    server
        .kubectl(&["create", "--filename", "-"], &namespace.to_string())
        .expect("create namespace");
    for (name, pod) in &pods {
        assert_eq!(refusals(&server, "of-the-chart", name, pod), "-", "{name}");
    }
}

/// Why a namespace refuses a pod, a word for each check, or `-`.
fn refusals(server: &Server, namespace: &str, name: &str, pod: &Value) -> String {
    let created = server.kubectl(
        &[
            "create",
            "--dry-run=server",
            "--namespace",
            namespace,
            "--filename",
            "-",
        ],
        &pod.to_string(),
    );
    if created.succeeded {
        return "-".to_owned();
    }
    // Error from server (Forbidden): .. violates PodSecurity "baseline:v1.26": host namespaces (hostNetwork=true, ..), hostPort (..)
    let complained = created.complained.trim();
    let (_, checks) = complained.split_once("violates PodSecurity \"").unwrap_or_default();
    let (_, checks) = checks.split_once("\": ").unwrap_or_default();
    assert!(!checks.is_empty(), "{name} in {namespace}: {complained}");
    let named = checks
        .split("), ")
        .map(|check| check.split(" (").next().unwrap_or_default());
    let mut named: Vec<&str> = named.collect();
    named.sort_unstable();
    named.join(", ")
}

/// The pods of the chart: of each system, and that of `helm test` by default and where the page has an address of the node.
fn pods(helm: &Helm) -> Vec<(&'static str, Value)> {
    let documents = |arguments: &[&str]| -> Vec<Value> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        serde_saphyr::from_multiple(&helm.template(&arguments, VERSION, &[]).unwrap()).unwrap()
    };
    let plain = documents(&["windows.enabled=true"]);
    let on_node = documents(&["page.address=node", "page.tokenSecret.name=token"]);
    let of_set = |name: &str| {
        let is_wanted = |document: &&Value| document["kind"] == "DaemonSet" && document["metadata"]["name"] == name;
        let template = &plain.iter().find(is_wanted).unwrap()["spec"]["template"];
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "agent",
                "labels": template["metadata"]["labels"],
                "annotations": template["metadata"]["annotations"],
            },
            "spec": template["spec"],
        })
    };
    let of_test = |documents: &[Value]| {
        let mut pod = documents
            .iter()
            .find(|document| document["kind"] == "Pod")
            .unwrap()
            .clone();
        pod["metadata"].as_object_mut().unwrap().remove("namespace");
        pod
    };
    vec![
        ("linux", of_set("sandglass")),
        ("windows", of_set("sandglass-windows")),
        ("test", of_test(&plain)),
        ("test on the node's address", of_test(&on_node)),
    ]
}
