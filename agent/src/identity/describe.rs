//! From the CRI's answer about a sandbox to a bounded description.
//!
//! Labels are sorted; those that repeat the pod's identity or are the runtime's own are left out, as are those beyond the bounds. Values of
//! secrets are masked before they are cut.

use sandglass_model::event::SandboxDescription;
use sandglass_model::{PodIdentity, SandboxId, masking};

use crate::cri::messages::{Labels, PodSandbox, PodSandboxMetadata, PodSandboxState, PodSandboxStatus};

/// A sandbox from the list of all. `None` when it has no usable id.
pub(super) fn listed(sandbox: PodSandbox) -> Option<SandboxDescription> {
    let ready = sandbox.state() == PodSandboxState::SandboxReady;
    describe(sandbox.id, sandbox.metadata, sandbox.labels, sandbox.created_at, ready)
}

/// One sandbox, from its status. `None` when it has no usable id.
pub(super) fn status(status: PodSandboxStatus) -> Option<SandboxDescription> {
    let ready = status.state() == PodSandboxState::SandboxReady;
    describe(status.id, status.metadata, status.labels, status.created_at, ready)
}

fn describe(
    id: String,
    metadata: Option<PodSandboxMetadata>,
    labels: Labels,
    created_at: i64,
    ready: bool,
) -> Option<SandboxDescription> {
    if id.is_empty() || id.len() > MAX_TEXT {
        return None;
    }
    let metadata = metadata.unwrap_or_default();
    let known = |text: String, label: &str| {
        let text = if text.is_empty() {
            labels.get(label).cloned().unwrap_or_default()
        } else {
            text
        };
        // Longer ones are no Kubernetes names, see PodIdentity::from_cni_args.
        if text.len() > 253 { String::new() } else { text }
    };
    let mut identity = PodIdentity {
        namespace: known(metadata.namespace, REPEATED[0]),
        name: known(metadata.name, REPEATED[1]),
        uid: known(metadata.uid, REPEATED[2]),
        labels: Vec::new(),
    };
    identity.labels = labels
        .into_iter()
        .filter(|(key, _)| !key.is_empty() && key.len() <= MAX_TEXT && !REPEATED.contains(&key.as_str()))
        .map(|(key, value)| {
            let value = cut(masking::value_of(&key, &value));
            (key, value)
        })
        .take(MAX_LABELS)
        .collect();
    Some(SandboxDescription {
        sandbox: SandboxId(id),
        identity,
        created_unix_ns: u64::try_from(created_at).unwrap_or(0),
        ready,
        preexisting: false,
    })
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

/// Labels the kubelet puts on every sandbox (its `pkg/types/labels.go`), in the order of [`PodIdentity`]'s fields; and `POD`, the
/// container's name that CRI-O adds (`populateSandboxLabels` of server/sandbox_run_linux.go), which is no label of the pod.
const REPEATED: [&str; 4] = [
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.uid",
    "io.kubernetes.container.name",
];
const MAX_LABELS: usize = 64;
/// Bytes of an id, a label's key, a label's value.
const MAX_TEXT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(labels: Labels) -> PodSandbox {
        PodSandbox {
            id: "abc".to_owned(),
            labels,
            created_at: -1,
            ..PodSandbox::default()
        }
    }

    #[test]
    fn labels_are_sorted_bounded_and_do_not_repeat_the_identity() {
        let mut labels: Labels = (0..200).map(|n| (format!("k{n:03}"), "ü".repeat(200))).collect();
        labels.insert("io.kubernetes.pod.name".to_owned(), "cart-0".to_owned());
        labels.insert("io.kubernetes.container.name".to_owned(), "POD".to_owned());
        labels.insert("k".repeat(300), "v".to_owned());
        let description = listed(sandbox(labels)).unwrap();
        assert_eq!(description.identity.name, "cart-0");
        assert_eq!(description.identity.labels.len(), 64);
        assert!(description.identity.labels.is_sorted());
        assert!(
            description
                .identity
                .labels
                .iter()
                .all(|(key, value)| key.len() == 4 && value.len() == 256)
        );
        assert_eq!(description.created_unix_ns, 0);
    }

    #[test]
    fn a_sandbox_without_id_is_none() {
        assert_eq!(listed(PodSandbox::default()), None);
        let long = PodSandboxStatus {
            id: "x".repeat(300),
            ..PodSandboxStatus::default()
        };
        assert_eq!(status(long), None);
    }
}
