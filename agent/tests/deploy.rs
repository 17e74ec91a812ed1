//! The chart, the plain manifests and the image, without a cluster.
//!
//! Every switch of the chart is rendered by a real Helm; each rendering is judged by Kubernetes' own schemas of many
//! versions, the Prometheus operator's CRDs, two independent policy checkers, and the rules of `rules.rs`. What cannot be
//! installed is skipped, by name. Does not: need a cluster (`cluster.rs` does), or a container engine but for the Dockerfiles.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

#[path = "deploy/cache.rs"]
mod cache;
#[path = "deploy/configuration.rs"]
mod configuration;
#[path = "deploy/confined.rs"]
mod confined;
#[path = "deploy/helm.rs"]
mod helm;
#[path = "deploy/images.rs"]
mod images;
#[path = "deploy/policy.rs"]
mod policy;
#[path = "deploy/rules.rs"]
mod rules;
#[path = "deploy/switches.rs"]
mod switches;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use helm::{Helm, output, root};
use sandglass::app::live::LIVE_KEYS;
use serde_json::Value;
use switches::switches;

/// Where rendered fields differ: AppArmor is a field from Kubernetes 1.30 on, recursively read-only mounts from 1.31.
const GENERATIONS: [(&str, u32, u32); 3] = [("1.26.0", 26, 29), ("1.30.0", 30, 30), ("1.31.0", 31, 37)];
const OPERATOR: [&str; 3] = [
    "monitoring.coreos.com/v1",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
];

#[test]
fn every_switch_renders_and_every_rendering_is_valid() {
    let test = "every_switch_renders_and_every_rendering_is_valid";
    let Some(helm) = Helm::find(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    for switch in switches() {
        for (version, first, last) in GENERATIONS {
            let text = helm
                .template(&switch.arguments, version, &OPERATOR)
                .unwrap_or_else(|problem| panic!("{}: {problem}", switch.name));
            let documents = rules::documents(&text);
            rules::hold(&switch.name, &documents);
            seen.insert(text.clone());
            fs::write(folder.path().join(format!("{}.{first}-{last}.yaml", switch.name)), text).unwrap();
        }
    }
    // A switch that changes nothing would not be one.
    assert!(seen.len() > 60, "only {} different renderings", seen.len());
    assert_valid(test, folder.path());
}

#[test]
fn each_switch_changes_what_it_is_for() {
    let Some(helm) = Helm::find("each_switch_changes_what_it_is_for") else {
        return;
    };
    let plain = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        helm.template(&arguments, "1.36.0", &[]).unwrap()
    };
    let with_operator = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        helm.template(&arguments, "1.36.0", &OPERATOR).unwrap()
    };
    // Nothing of the operator without its API; all of it with the API; none when switched off.
    assert!(!plain(&[]).contains("monitoring.coreos.com"));
    assert!(plain(&[]).contains("prometheus.io/scrape"));
    assert!(with_operator(&[]).contains("kind: PodMonitor"));
    assert!(!with_operator(&[]).contains("prometheus.io/scrape"), "scraped twice");
    assert!(!with_operator(&["podMonitor.enabled=false"]).contains("kind: PodMonitor"));
    let refused = helm.template(&["podMonitor.enabled=true".to_owned()], "1.36.0", &[]);
    assert!(refused.unwrap_err().contains("install the Prometheus operator first"));
    for (arguments, wanted) in [
        (&["http.address=loopback"][..], "--listen=127.0.0.1:9477"),
        (&["http.ipFamily=IPv6"], "--listen=[$(HOST_IP)]:9477"),
        (&["http.ipFamily=IPv6"], "--page-listen=[::1]:9478"),
        (
            &["page.address=node", "page.tokenSecret.name=t"],
            "--page-listen=$(HOST_IP):9478",
        ),
        (&["page.tokenSecret.name=t"], "token_file: /etc/sandglass/page/token"),
        (
            &["page.address=node", "page.tls.secretName=t"],
            "client_ca_file: /etc/sandglass/page/ca.crt",
        ),
        (&["linux.runtime=crio"], "path: /etc/crio"),
        (
            &["linux.cri.enabled=true"],
            "endpoint: unix:///run/containerd/containerd.sock",
        ),
        (
            &["linux.runtime=k3s", "linux.cri.enabled=true"],
            "path: /run/k3s/containerd",
        ),
        (&["otlp.endpoint=http://c:4317"], "endpoint: http://c:4317"),
        (&["otlp.tls.secretName=t"], "ca_file: /etc/sandglass/tls/ca.crt"),
        (&["otlp.headersSecret.name=h"], "name: OTEL_EXPORTER_OTLP_HEADERS"),
        (&["config.correlation.settle=1s"], "settle: 1s"),
        (
            &["image.digest=sha256:0123456789012345678901234567890123456789012345678901234567890123"],
            "sandglass@sha256:0123",
        ),
        (&["windows.enabled=true"], "hostProcess: true"),
    ] {
        assert!(!plain(&[]).contains(wanted), "{wanted} is there by default");
        assert!(
            plain(arguments).contains(wanted),
            "{arguments:?} does not give {wanted}"
        );
    }
}

/// A running agent loads the others from its volume.
#[test]
fn only_keys_that_need_a_restart_make_new_pods() {
    let Some(helm) = Helm::find("only_keys_that_need_a_restart_make_new_pods") else {
        return;
    };
    let rendered = |value: Option<String>| {
        let arguments: Vec<String> = ["windows.enabled=true".to_owned()].into_iter().chain(value).collect();
        helm.template(&arguments, "1.36.0", &[]).unwrap()
    };
    let checksums = |manifests: &str| -> Vec<String> {
        let lines = manifests.lines().filter(|line| line.contains("checksum/config: "));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let plain = rendered(None);
    assert_eq!(checksums(&plain).len(), 2, "one for each system");
    for key in LIVE_KEYS {
        let value = match key {
            "correlation.stuck_after" => "77s",
            "otlp.sampling" => "bad",
            _ => "77",
        };
        let changed = rendered(Some(format!("config.{key}={value}")));
        let name = key.rsplit('.').next().unwrap();
        assert_eq!(
            changed.matches(&format!("{name}: {value}")).count(),
            2,
            "{key} reaches both files"
        );
        assert_eq!(checksums(&changed), checksums(&plain), "{key}");
    }
    for value in [
        "config.correlation.settle=1s",
        "config.otlp.batch_spans=77",
        "otlp.endpoint=http://c:4317",
    ] {
        let (before, after) = (checksums(&plain), checksums(&rendered(Some(value.to_owned()))));
        assert!(before.iter().all(|checksum| !after.contains(checksum)), "{value}");
    }
}

#[test]
fn a_typo_in_the_values_is_refused() {
    let Some(helm) = Helm::find("a_typo_in_the_values_is_refused") else {
        return;
    };
    for (argument, printed) in [
        ("linux.capabilites={BPF}", "'capabilites' not allowed"),
        ("linux.capabilities={NET_ADMN}", "linux/capabilities"),
        ("linux.capabilities={BPF,SYS_ADMIN}", "linux/capabilities"),
        ("lnux.enabled=false", "'lnux' not allowed"),
        ("windows.runasUserName=x", "'runasUserName' not allowed"),
        ("config.store.max_traces=0", "config/store/max_traces"),
        ("config.windows.vfp=601s", "config/windows/vfp"),
        ("config.http.address=0.0.0.0:1", "'address' not allowed"),
        ("linux.appArmorProfile.type=Localhost", "localhostProfile"),
        ("config.probes.ring_bytes=4096", "'ring_bytes' not allowed"),
        ("config.otlp.headers.authorization=secret", "'headers' not allowed"),
        ("http.port=70000", "http/port"),
        ("http.address=0.0.0.0", "http/address"),
        ("page.address=node", "set page.tokenSecret.name"),
        ("page.port=9477", "page.port must differ"),
        ("linux.resources.limits.memory=96MB", "limits/memory"),
        ("podMonitor.enabled=maybe", "podMonitor/enabled"),
        ("image.digest=latest", "image/digest"),
        ("linux.maxUnavailable=0", "maxUnavailable"),
        (
            "image.repository=",
            "helm upgrade --install sandglass ... --set image.repository=",
        ),
        ("image.repository=has space/x", "image/repository"),
    ] {
        let refused = helm.template(&[argument.to_owned()], "1.36.0", &[]);
        let error = refused.expect_err(argument);
        assert!(error.contains(printed), "{argument}: {error}");
    }
}

#[test]
fn the_plain_manifests_are_the_charts() {
    if Helm::find("the_plain_manifests_are_the_charts").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rendered = output(Command::new(root("scripts/manifests.sh")).arg(folder.path()));
    assert!(
        rendered.status.success(),
        "{}",
        String::from_utf8_lossy(&rendered.stderr)
    );
    for name in ["linux.yaml", "windows.yaml"] {
        let kept = fs::read_to_string(root("deploy/manifests").join(name)).unwrap();
        let fresh = fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(
            kept == fresh,
            "deploy/manifests/{name} is old: run scripts/manifests.sh"
        );
        assert!(!kept.contains("Helm") && !kept.contains("helm.sh"), "{name} names Helm");
        rules::hold(name, &rules::documents(&kept));
    }
}

#[test]
fn the_package_holds_the_dashboards_and_rules_of_the_tree() {
    let Some(helm) = Helm::find("the_package_holds_the_dashboards_and_rules_of_the_tree") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    helm.package(folder.path());
    let chart = folder.path().join("sandglass");
    let unpacked = output(
        Command::new("tar")
            .arg("xzf")
            .arg("sandglass-0.1.0.tgz")
            .current_dir(folder.path()),
    );
    assert!(unpacked.status.success());
    for (part, source, ending) in [
        ("files/grafana", "dashboards/grafana", "json"),
        ("files/rules", "dashboards/rules", "yaml"),
    ] {
        assert_eq!(files(&chart.join(part), ending), files(&root(source), ending), "{part}");
    }
}

#[test]
fn every_value_has_a_comment_and_a_place_in_the_schema() {
    let values = fs::read_to_string(root("deploy/helm/sandglass/values.yaml")).unwrap();
    let schema: Value =
        serde_json::from_slice(&fs::read(root("deploy/helm/sandglass/values.schema.json")).unwrap()).unwrap();
    let mut before = "";
    for line in values.lines() {
        let key = line.trim_start().split(": ").next().unwrap_or_default();
        let is_leaf = line.contains(": ") && !line.trim_start().starts_with(['#', '-']);
        // Values of free maps (seccompProfile, resources) are explained where the map begins.
        let inside = ["type", "cpu", "memory"].contains(&key);
        assert!(
            !is_leaf || inside || before.trim_start().starts_with("# -- "),
            "{line:?} has no comment"
        );
        before = line;
    }
    let parsed: Value = serde_saphyr::from_str(&values).unwrap();
    let known: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
    let set: BTreeSet<&String> = parsed.as_object().unwrap().keys().collect();
    let extra: Vec<_> = known.difference(&set).map(|key| key.as_str()).collect();
    assert_eq!(extra, ["enabled", "global"], "what Helm itself passes");
    assert_eq!(set.difference(&known).count(), 0);
}

#[test]
fn the_table_of_capabilities_is_complete() {
    let readme = fs::read_to_string(root("deploy/README.md")).unwrap();
    let schema: Value =
        serde_json::from_slice(&fs::read(root("deploy/helm/sandglass/values.schema.json")).unwrap()).unwrap();
    let allowed = &schema["properties"]["linux"]["properties"]["capabilities"]["items"]["enum"];
    let allowed: BTreeSet<&str> = allowed.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let table: BTreeSet<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(name, _)| name)
        .filter(|name| name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_'))
        .collect();
    assert_eq!(table, allowed);
}

#[test]
fn the_image_holds_one_static_binary_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let build = |binary: &Path, out: &str| {
        output(
            Command::new("python3")
                .arg(root("deploy/image/oci.py"))
                .args([
                    "--arch",
                    "amd64",
                    "--name",
                    "docker.io/x/sandglass:1",
                    "--version",
                    "1",
                    "--binary",
                ])
                .arg(binary)
                .arg("--out")
                .arg(folder.path().join(out)),
        )
    };
    // This test's own agent is linked dynamically: it could not start in an image without a loader.
    let refused = build(Path::new(env!("CARGO_BIN_EXE_sandglass")), "never.tar");
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && printed.contains("dynamic loader") && printed.contains("hint: "),
        "{printed}"
    );
    let empty = folder.path().join("empty");
    fs::write(&empty, b"#!/bin/sh\n").unwrap();
    assert!(!build(&empty, "never.tar").status.success());

    let binary = folder.path().join("static");
    fs::write(&binary, static_elf()).unwrap();
    for out in ["one.tar", "two.tar"] {
        let built = build(&binary, out);
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
    let archive = fs::read(folder.path().join("one.tar")).unwrap();
    assert!(
        archive == fs::read(folder.path().join("two.tar")).unwrap(),
        "the same binary gives other bytes"
    );
    let layer = newest_layer(folder.path(), "one.tar");
    let listed = output(Command::new("tar").arg("tvf").arg(&layer));
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(
        listed.starts_with("-rwxr-xr-x 0/0") && listed.trim_end().ends_with(" sandglass"),
        "{listed}"
    );
}

#[test]
fn the_examples_are_valid() {
    let test = "the_examples_are_valid";
    let kept = rules::documents(&fs::read_to_string(root("deploy/examples/collector-gateway.yaml")).unwrap());
    let config: Value = serde_saphyr::from_str(kept[0]["data"]["collector.yaml"].as_str().unwrap()).unwrap();
    let policies = config["processors"]["tail_sampling"]["policies"].as_array().unwrap();
    let kinds: Vec<&str> = policies.iter().filter_map(|policy| policy["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "ottl_condition",
            "status_code",
            "latency",
            "boolean_attribute",
            "probabilistic"
        ]
    );
    // Every part of a pipeline is configured, and the attribute is one the agent sets.
    for (section, names) in [
        ("receivers", "receivers"),
        ("processors", "processors"),
        ("exporters", "exporters"),
    ] {
        for pipeline in config["service"]["pipelines"].as_object().unwrap().values() {
            for name in pipeline[names].as_array().into_iter().flatten() {
                let name = name.as_str().unwrap();
                let found = config[section].get(name).or_else(|| config["connectors"].get(name));
                assert!(found.is_some(), "{name} is not configured");
            }
        }
    }
    let registry = fs::read_to_string(root("agent/model/src/registry.rs")).unwrap();
    for key in ["sandglass.incomplete", "sandbox.id"] {
        assert!(registry.contains(&format!("\"{key}\"")), "{key}");
    }
    let crio = fs::read_to_string(root("deploy/examples/tracing/crio.conf")).unwrap();
    assert!(
        crio.parse::<toml::Table>().unwrap()["crio"]["tracing"]["enable_tracing"]
            .as_bool()
            .unwrap()
    );
    let kubelet = fs::read_to_string(root("deploy/examples/tracing/kubelet.yaml")).unwrap();
    assert_eq!(rules::documents(&kubelet)[0]["kind"], "KubeletConfiguration");
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "collector-gateway",
        "collector-routing",
        "jaeger",
        "jaeger-durable",
        "prometheus",
        "tempo",
    ] {
        let text = fs::read_to_string(root("deploy/examples").join(format!("{name}.yaml"))).unwrap();
        fs::write(folder.path().join(format!("{name}.26-37.yaml")), text).unwrap();
    }
    assert_valid(test, folder.path());
}

/// Has everything in `folder` judged by `deploy/validate.py`.
fn assert_valid(test: &str, folder: &Path) {
    let Some((python, crds)) = validators(test) else { return };
    let script = root("deploy/validate.py");
    let judged = output(Command::new(python.join("python")).arg(script).arg(folder).arg(crds));
    let printed = String::from_utf8_lossy(&judged.stdout);
    assert!(
        judged.status.success() && printed.contains("checked: "),
        "{printed}{}",
        String::from_utf8_lossy(&judged.stderr)
    );
}

/// Directory of the Python environment's programs, and that of the CRDs; or prints `SKIPPED`.
fn validators(test: &str) -> Option<(PathBuf, String)> {
    let found = output(&mut Command::new(root("scripts/validators.sh")));
    if !found.status.success() {
        let why = String::from_utf8_lossy(&found.stderr);
        eprintln!(
            "SKIPPED {test}: no validators: {}",
            why.lines().last().unwrap_or_default()
        );
        return None;
    }
    let printed = String::from_utf8(found.stdout).unwrap();
    let (environment, crds) = printed.trim().split_once('\n').unwrap();
    Some((Path::new(environment).join("bin"), crds.to_owned()))
}

fn files(folder: &Path, ending: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let matching = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == ending));
    matching
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

/// The smallest file that is a static program for x86-64: header, one loadable segment.
fn static_elf() -> Vec<u8> {
    let mut elf = vec![0; 64 + 56];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    elf[16..20].copy_from_slice(&[2, 0, 62, 0]);
    elf[32] = 64;
    elf[54..58].copy_from_slice(&[56, 0, 1, 0]);
    elf[64] = 1;
    elf
}

/// Follows index, manifest and layer by their digests, as a runtime does, and returns the layer's file.
fn newest_layer(folder: &Path, archive: &str) -> PathBuf {
    let unpacked = output(Command::new("tar").arg("xf").arg(archive).current_dir(folder));
    assert!(unpacked.status.success());
    let blob = |described: &Value| {
        let digest = described["digest"].as_str().unwrap().trim_start_matches("sha256:");
        let path = folder.join("blobs/sha256").join(digest);
        let summed = output(Command::new("sha256sum").arg(&path));
        assert!(
            String::from_utf8(summed.stdout).unwrap().starts_with(digest),
            "digest of {digest}"
        );
        assert_eq!(described["size"].as_u64(), Some(fs::metadata(&path).unwrap().len()));
        path
    };
    let read = |path: PathBuf| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
    let index = read(folder.join("index.json"));
    let manifest = read(blob(&index["manifests"][0]));
    let config = read(blob(&manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"][0], "/sandglass");
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
    assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    blob(&manifest["layers"][0])
}

#[test]
fn the_scripts_of_the_cluster_are_shell() {
    let mut checked = 0;
    for folder in ["deploy/cluster", "scripts"] {
        for entry in fs::read_dir(root(folder)).unwrap().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "sh") {
                let parsed = output(Command::new("bash").arg("-n").arg(entry.path()));
                let printed = String::from_utf8_lossy(&parsed.stderr);
                assert!(parsed.status.success() && printed.is_empty(), "{printed}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 9, "{checked}");
}

#[test]
fn switches_cover_every_value_that_switches() {
    let names: BTreeSet<String> = switches().into_iter().map(|switch| switch.name).collect();
    for wanted in [
        "windows.enabled-false",
        "linux.enabled-false",
        "http.address-loopback",
        "page-on-the-node-by-token",
        "linux.runtime-rke2",
    ] {
        assert!(names.contains(wanted), "{wanted}: {names:?}");
    }
}
