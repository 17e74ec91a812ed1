//! Every switch of the chart, taken from its schema: booleans both ways, choices one by one; and by hand what is neither.

use std::fs;

use serde_json::Value;

use super::helm::chart;

/// One rendering.
pub struct Switch {
    /// For file names and messages.
    pub name: String,
    /// Arguments of `--set`.
    pub arguments: Vec<String>,
}

/// All of them. Both DaemonSets are rendered unless a switch turns one off.
pub fn switches() -> Vec<Switch> {
    let schema: Value = serde_json::from_slice(&fs::read(chart().join("values.schema.json")).unwrap()).unwrap();
    let mut found = vec![
        by_hand("defaults", &[]),
        by_hand("nothing", &["linux.enabled=false", "windows.enabled=false"]),
    ];
    walk("", &schema, &schema, &mut found);
    found.extend(BY_HAND.iter().map(|(name, arguments)| by_hand(name, arguments)));
    found
}

fn by_hand(name: &str, arguments: &[&str]) -> Switch {
    let mut all = vec!["windows.enabled=true".to_owned()];
    // They are large and the same for every switch but their own.
    if !["defaults", "dashboards"].iter().any(|about| name.starts_with(about)) {
        all.push("dashboards.enabled=false".to_owned());
    }
    all.extend(arguments.iter().map(ToString::to_string));
    Switch {
        name: name.to_owned(),
        arguments: all,
    }
}

fn walk(path: &str, schema: &Value, whole: &Value, found: &mut Vec<Switch>) {
    if let Some(name) = schema["$ref"].as_str() {
        return walk(path, &whole["$defs"][name.trim_start_matches("#/$defs/")], whole, found);
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        // What Helm itself passes, and the agent's keys, which are no switches of the chart.
        if path.is_empty() && ["global", "enabled", "config"].contains(&name.as_str()) {
            continue;
        }
        let inner_path = [path, name]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(".");
        walk(&inner_path, inner, whole, found);
    }
    let choices: Vec<Value> = match (schema["type"].as_str(), schema["enum"].as_array()) {
        (Some("boolean"), _) => vec![true.into(), false.into()],
        (_, Some(choices)) => choices.clone(),
        _ => Vec::new(),
    };
    for choice in choices {
        let choice = choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
        // Alone it has no profile to name, and no token to ask for.
        if choice != "Localhost" && (path, choice.as_str()) != ("page.address", "node") {
            let name = format!("{path}-{}", choice.replace('/', "-"));
            found.push(by_hand(&name, &[&format!("{path}={choice}")]));
        }
    }
}

const BY_HAND: [(&str, &[&str]); 20] = [
    (
        "page-on-the-node-by-token",
        &["page.address=node", "page.tokenSecret.name=token"],
    ),
    (
        "page-on-the-node-by-certificate",
        &["page.address=node", "page.tls.secretName=tls"],
    ),
    ("names", &["nameOverride=glass", "fullnameOverride=hour"]),
    (
        "labels",
        &[
            "commonLabels.team=net",
            "linux.podLabels.a=b",
            "windows.podLabels.a=b",
            "linux.podAnnotations.c=d",
        ],
    ),
    ("no-capabilities", &["linux.capabilities=null"]),
    (
        "all-capabilities",
        &["linux.capabilities={BPF,PERFMON,SYS_PTRACE,NET_ADMIN,SYSLOG,SYS_RESOURCE,DAC_READ_SEARCH}"],
    ),
    (
        "localhost-seccomp",
        &[
            "linux.seccompProfile.type=Localhost",
            "linux.seccompProfile.localhostProfile=sandglass.json",
        ],
    ),
    (
        "localhost-apparmor",
        &[
            "linux.appArmorProfile.type=Localhost",
            "linux.appArmorProfile.localhostProfile=sandglass",
        ],
    ),
    ("selinux", &["linux.seLinuxOptions.type=spc_t"]),
    (
        "digests",
        &["image.digest=sha256:0123456789012345678901234567890123456789012345678901234567890123"],
    ),
    (
        "pull-secrets",
        &["imagePullSecrets[0].name=one", "image.tag=x", "windows.image.tag=y"],
    ),
    (
        "otlp",
        &[
            "otlp.endpoint=http://collector:4317",
            "otlp.resource.a=b",
            "otlp.headersSecret.name=headers",
        ],
    ),
    (
        "otlp-tls",
        &["otlp.endpoint=https://collector:4317", "otlp.tls.secretName=tls"],
    ),
    (
        "otlp-mutual-tls",
        &["otlp.tls.secretName=tls", "otlp.tls.clientCertificate=true"],
    ),
    (
        "spool-on-the-node",
        &[
            "otlp.endpoint=http://collector:4317",
            "otlp.spool.hostPath=/var/lib/sandglass/spool",
            "config.otlp.spool_hours=6",
        ],
    ),
    ("node-certificates", &["otlp.tls.nodeCertificates=/etc/ssl/certs"]),
    (
        "placed",
        &[
            "linux.nodeSelector.pool=a",
            "windows.nodeSelector.pool=b",
            "linux.maxUnavailable=1",
            "linux.tolerations=null",
        ],
    ),
    (
        "affinity",
        &["linux.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null"],
    ),
    (
        "environment",
        &["extraEnv[0].name=A", "extraEnv[0].value=b", "log=debug"],
    ),
    (
        "no-account",
        &["serviceAccount.create=false", "serviceAccount.name=other"],
    ),
];
