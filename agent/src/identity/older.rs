//! Locates the network namespace of a sandbox that is older than the agent, from its verbose status.
//!
//! containerd and CRI-O both add the sandbox's runtime specification (OCI, `linux.namespaces`) and process id. The CRI does
//! not specify that text: any other content is no answer. Does not: open the namespace.

use sandglass_model::SandboxId;
use serde_json::Value;

use crate::cri::messages::PodSandboxStatusResponse;
use crate::sources::NamespacePlace;

/// The sandbox shares the node's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OnNode;

/// The place; `None` when the answer does not contain it.
pub(super) fn place(sandbox: SandboxId, answer: &PodSandboxStatusResponse) -> Option<Result<NamespacePlace, OnNode>> {
    if answer.status.as_ref().is_some_and(|status| status.on_node_network()) {
        return Some(Err(OnNode));
    }
    let info: Value = serde_json::from_str(answer.info.get("info")?).ok()?;
    let namespaces = info.pointer("/runtimeSpec/linux/namespaces")?.as_array()?;
    // A container that shares the node's network has no entry.
    let Some(network) = namespaces.iter().find(|namespace| namespace["type"] == "network") else {
        return Some(Err(OnNode));
    };
    let path = network["path"].as_str().unwrap_or_default();
    let pid = info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let place = NamespacePlace {
        sandbox,
        path: if path.len() <= MAX_PATH { path } else { "" }.to_owned(),
        pid: pid.unwrap_or_default(),
    };
    (!place.path.is_empty() || place.pid != 0).then_some(Ok(place))
}

/// `PATH_MAX` (linux/limits.h).
const MAX_PATH: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::messages::{
        LinuxPodSandboxStatus, Namespace, NamespaceMode, NamespaceOption, PodSandboxStatus, PodSandboxStatusResponse,
    };

    fn placed(info: &str) -> Option<Result<NamespacePlace, OnNode>> {
        let answer = PodSandboxStatusResponse {
            info: [("info".to_owned(), info.to_owned())].into(),
            ..PodSandboxStatusResponse::default()
        };
        place(SandboxId("sb".to_owned()), &answer)
    }

    fn at(path: &str, pid: u32) -> Option<Result<NamespacePlace, OnNode>> {
        Some(Ok(NamespacePlace {
            sandbox: SandboxId("sb".to_owned()),
            path: path.to_owned(),
            pid,
        }))
    }

    #[test]
    fn the_path_and_the_process_are_found_where_both_runtimes_put_them() {
        let text = r#"{"pid": 812, "runtimeSpec": {"ociVersion": "1.0.2", "linux": {"namespaces":
            [{"type": "pid"}, {"type": "network", "path": "/var/run/netns/cni-1"}]}}}"#;
        assert_eq!(placed(text), at("/var/run/netns/cni-1", 812));
        let without_path = r#"{"pid": 812, "runtimeSpec": {"linux": {"namespaces": [{"type": "network"}]}}}"#;
        assert_eq!(placed(without_path), at("", 812));
    }

    #[test]
    fn a_sandbox_on_the_nodes_network_has_none() {
        let text = r#"{"pid": 812, "runtimeSpec": {"linux": {"namespaces": [{"type": "pid"}]}}}"#;
        assert_eq!(placed(text), Some(Err(OnNode)));
        let options = NamespaceOption {
            network: NamespaceMode::Node.into(),
            ..NamespaceOption::default()
        };
        let status = PodSandboxStatus {
            linux: Some(LinuxPodSandboxStatus {
                namespaces: Some(Namespace { options: Some(options) }),
            }),
            ..PodSandboxStatus::default()
        };
        let answer = PodSandboxStatusResponse {
            status: Some(status),
            ..PodSandboxStatusResponse::default()
        };
        assert_eq!(place(SandboxId("sb".to_owned()), &answer), Some(Err(OnNode)));
    }

    #[test]
    fn anything_else_is_no_answer() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            r#"{"runtimeSpec": null}"#,
            r#"{"runtimeSpec": {"linux": {"namespaces": {"type": "network"}}}}"#,
            r#"{"pid": -1, "runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": 7}]}}}"#,
            r#"{"pid": 1e99, "runtimeSpec": {"linux": {"namespaces": ["network", {"type": "network"}]}}}"#,
        ] {
            assert_eq!(placed(text), None, "{text}");
        }
        let long = format!(
            r#"{{"runtimeSpec": {{"linux": {{"namespaces": [{{"type": "network", "path": "/{}"}}]}}}}}}"#,
            "x".repeat(5_000)
        );
        assert_eq!(placed(&long), None);
        let answer = PodSandboxStatusResponse::default();
        assert_eq!(place(SandboxId("sb".to_owned()), &answer), None);
    }
}
