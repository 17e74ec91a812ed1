//! What must hold of every rendering, whatever its switches: the project's own rules for both DaemonSets and the test pod.

use std::collections::BTreeSet;

use serde_json::Value;

/// The documents of a rendering.
pub fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// Holds all rules against `documents`.
pub fn hold(name: &str, documents: &[Value]) {
    for document in documents {
        let kind = document["kind"].as_str().unwrap();
        let what = format!("{name}: {kind} {}", document["metadata"]["name"]);
        labels(&what, document);
        match kind {
            "DaemonSet" => daemon_set(&what, document),
            "Pod" => {
                assert_eq!(document["metadata"]["annotations"]["helm.sh/hook"], "test", "{what}");
                let pod = &document["spec"];
                assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{what}");
                assert_eq!(pod["automountServiceAccountToken"], false, "{what}");
                confined(&what, &pod["containers"][0], &BTreeSet::new());
            }
            "SecurityContextConstraints" => constraints(&what, document),
            _ => {}
        }
    }
}

/// The constraints of OpenShift allow what the DaemonSet asks for, to its service account alone.
fn constraints(what: &str, document: &Value) {
    let users = document["users"].as_array().unwrap();
    assert_eq!(users.len(), 1, "{what}");
    assert!(
        users[0]
            .as_str()
            .unwrap()
            .starts_with("system:serviceaccount:sandglass:"),
        "{what}"
    );
    assert_eq!(document["groups"], serde_json::json!([]), "{what}");
    for forbidden in ["allowPrivilegedContainer", "allowPrivilegeEscalation", "allowHostIPC"] {
        assert_eq!(document[forbidden], false, "{what}: {forbidden}");
    }
    for needed in [
        "allowHostPID",
        "allowHostNetwork",
        "allowHostPorts",
        "allowHostDirVolumePlugin",
        "readOnlyRootFilesystem",
    ] {
        assert_eq!(document[needed], true, "{what}: {needed}");
    }
}

fn labels(what: &str, document: &Value) {
    let labels = &document["metadata"]["labels"];
    for key in ["name", "instance", "version", "part-of"] {
        assert!(
            labels[format!("app.kubernetes.io/{key}")].is_string(),
            "{what}: label {key}"
        );
    }
    if !["Namespace", "SecurityContextConstraints"].contains(&document["kind"].as_str().unwrap()) {
        assert_eq!(document["metadata"]["namespace"], "sandglass", "{what}");
    }
}

fn daemon_set(what: &str, document: &Value) {
    let template = &document["spec"]["template"];
    let pod = &template["spec"];
    for (key, value) in document["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&template["metadata"]["labels"][key], value, "{what}: selector {key}");
        // These change with an upgrade, and a selector cannot.
        assert!(
            !key.contains("version") && !key.contains("chart"),
            "{what}: selector {key}"
        );
    }
    assert!(
        template["metadata"]["annotations"]["checksum/config"].is_string(),
        "{what}"
    );
    assert_eq!(document["spec"]["updateStrategy"]["type"], "RollingUpdate", "{what}");
    assert_eq!(pod["automountServiceAccountToken"], false, "{what}");
    assert_eq!(pod["priorityClassName"], "system-node-critical", "{what}");
    assert_eq!(pod["hostNetwork"], true, "{what}");
    // Longer than the five seconds in which traces are flushed.
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > 5, "{what}");
    if !what.starts_with("placed:") {
        assert_eq!(
            pod["tolerations"],
            serde_json::json!([{"operator": "Exists"}]),
            "{what}"
        );
    }
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "{what}");
    let container = &containers[0];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(container[probe]["httpGet"]["path"].is_string(), "{what}: {probe}");
    }
    assert!(container["resources"]["limits"]["memory"].is_string(), "{what}");
    assert!(
        container["resources"]["limits"]["cpu"].is_null(),
        "{what}: a CPU limit loses events"
    );
    let env = container["env"].as_array().unwrap();
    let node_name = env.iter().find(|variable| variable["name"] == "NODE_NAME").unwrap();
    assert_eq!(
        node_name["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName",
        "{what}"
    );
    // The spool is the one place that can be written.
    for mount in container["volumeMounts"].as_array().unwrap() {
        let is_spool = mount["name"] == "spool" && mount["mountPath"] == "/var/lib/sandglass/spool";
        assert!(mount["readOnly"] == true || is_spool, "{what}: {mount}");
    }
    match pod["os"]["name"].as_str().unwrap() {
        "linux" => linux(what, pod, container),
        "windows" => windows(what, template, pod, container),
        other => panic!("{what}: os {other}"),
    }
}

fn linux(what: &str, pod: &Value, container: &Value) {
    assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux", "{what}");
    assert_eq!(pod["hostPID"], true, "{what}");
    assert!(pod["hostIPC"].is_null(), "{what}");
    assert!(pod["securityContext"]["seccompProfile"]["type"].is_string(), "{what}");
    let added = container["securityContext"]["capabilities"]["add"].as_array();
    let added: BTreeSet<&str> = added.into_iter().flatten().filter_map(Value::as_str).collect();
    if ["defaults:", "linux.yaml:"].iter().any(|name| what.starts_with(name)) {
        assert_eq!(
            added,
            BTreeSet::from(["BPF", "NET_ADMIN", "PERFMON", "SYS_PTRACE"]),
            "{what}"
        );
        let apparmor = &container["securityContext"]["appArmorProfile"]["type"];
        // The kubelet refuses a pod that names a profile, RuntimeDefault too, on a node without AppArmor.
        assert!(apparmor.is_null(), "{what}: {apparmor}");
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{what}"
        );
    }
    confined(what, container, &added);
    // Host paths are few and known; each but the spool is read-only (see above).
    for volume in pod["volumes"].as_array().unwrap() {
        let Some(path) = volume["hostPath"]["path"].as_str() else {
            continue;
        };
        let known = [
            "/etc/cni/net.d",
            "/opt/cni/bin",
            "/etc/c",
            "/var/lib/cni",
            "/var/lib/sandglass/spool",
            "/var/lib/rancher/",
            "/sys/fs/cgroup",
            "/run/",
            "/etc/ssl/certs",
        ];
        assert!(
            known.iter().any(|known| path.starts_with(known)),
            "{what}: host path {path}"
        );
    }
}

fn confined(what: &str, container: &Value, added: &BTreeSet<&str>) {
    let security = &container["securityContext"];
    assert_eq!(security["privileged"], false, "{what}");
    assert_eq!(security["allowPrivilegeEscalation"], false, "{what}");
    assert_eq!(security["readOnlyRootFilesystem"], true, "{what}");
    assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]), "{what}");
    assert_eq!(
        security["capabilities"]["add"].as_array().map_or(0, Vec::len),
        added.len(),
        "{what}"
    );
}

/// Fields that Kubernetes refuses for Windows pods (validation of `spec.os`), here and anywhere below.
fn windows(what: &str, template: &Value, pod: &Value, container: &Value) {
    assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "windows", "{what}");
    let options = &pod["securityContext"]["windowsOptions"];
    assert_eq!(options["hostProcess"], true, "{what}");
    assert!(
        options["runAsUserName"].as_str().is_some_and(|name| !name.is_empty()),
        "{what}"
    );
    let pod_security: Vec<&String> = pod["securityContext"].as_object().unwrap().keys().collect();
    assert_eq!(pod_security, ["windowsOptions"], "{what}: Linux fields");
    assert!(container["securityContext"].is_null(), "{what}: Linux fields");
    for field in ["hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"] {
        assert!(pod[field].is_null(), "{what}: {field}");
    }
    for volume in pod["volumes"].as_array().unwrap() {
        assert!(
            volume["hostPath"].is_null(),
            "{what}: the node's paths are there as they are"
        );
        assert!(
            volume.to_string().find("defaultMode").is_none(),
            "{what}: modes are Linux's"
        );
    }
    assert!(
        container["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .all(|mount| mount["mountPropagation"].is_null())
    );
    let annotations = template["metadata"]["annotations"].as_object().unwrap();
    assert!(
        !annotations
            .keys()
            .any(|key| key.contains("apparmor") || key.contains("seccomp")),
        "{what}"
    );
    // Paths of the image and of volumes lie below the mount point, whichever version of the runtime it is.
    let command = container["command"][0].as_str().unwrap();
    assert_eq!(command, r"%CONTAINER_SANDBOX_MOUNT_POINT%\sandglass.exe", "{what}");
}
