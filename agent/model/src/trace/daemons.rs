//! Detail of the span of a request to a daemon, and why what a daemon ran is attributed to it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::daemons::RequestTransport;
use crate::trace::Confidence;
use crate::waits::TimeSpent;

/// A request of a plugin, or of what it started, to a daemon: from its sending to its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonDetail {
    /// Name of the daemon's process; empty when not known.
    pub name: Arc<str>,
    /// Its process id; 0 when not known.
    pub pid: u32,
    /// Path of its cgroup; empty when not known.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub cgroup: Arc<str>,
    /// How both are connected.
    pub transport: RequestTransport,
    /// How the span's begin is known.
    pub begin: RequestBegin,
    /// The client ended without an answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// What its time went to: what the daemon ran for it, what the daemon's threads waited for, and the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Box<TimeSpent>>,
    /// Why what the daemon's threads waited for is part of that time; `None` where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<ThreadsAttribution>,
}

/// Why what the threads of a daemon did is attributed to one of its requests. No reason is certain: a daemon also works by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadsAttribution {
    /// No other request to this daemon was in flight, and none can have been missed.
    OnlyRequest,
    /// Wake-ups lead without a gap from the thread that received the request to the one that sent the answer, and none of the threads
    /// between them received or answered another request meanwhile.
    WakeUps,
    /// Of a daemon in Go: goroutines that had received the request, or were created by one that had, waited in system calls. What they
    /// did besides is the daemon's own time.
    Goroutines,
    /// Nothing of the above: they may have done it for another request.
    Ambiguous,
}

impl ThreadsAttribution {
    /// Value of the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ThreadsAttribution::OnlyRequest => "only_request",
            ThreadsAttribution::WakeUps => "wake_ups",
            ThreadsAttribution::Goroutines => "goroutines",
            ThreadsAttribution::Ambiguous => "ambiguous",
        }
    }

    /// How sure it is.
    #[must_use]
    pub fn confidence(self) -> Confidence {
        match self {
            ThreadsAttribution::OnlyRequest | ThreadsAttribution::WakeUps | ThreadsAttribution::Goroutines => {
                Confidence::Likely
            }
            ThreadsAttribution::Ambiguous => Confidence::Possible,
        }
    }
}

/// How the begin of a request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestBegin {
    /// It was seen.
    Sent,
    /// It was sent before messages were followed: the client slept since then.
    Recovered,
    /// It was sent before messages were followed, which is the begin.
    Followed,
}

impl RequestBegin {
    /// Value of the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RequestBegin::Sent => "sent",
            RequestBegin::Recovered => "recovered",
            RequestBegin::Followed => "followed",
        }
    }
}

/// Why what a daemon ran is attributed to one of its requests, the strongest reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribution {
    /// Its environment or its arguments have the container's id, and those of no other request in flight.
    ContainerId,
    /// They have the path or the name of the sandbox's network namespace.
    Namespace,
    /// It ran in the sandbox's network namespace.
    InNamespace,
    /// They have the name of the interface, which only one request in flight is about.
    Interface,
    /// No other request to this daemon was in flight, and none can have been missed.
    OnlyRequest,
    /// The goroutine that started it had received this request, or was created by one that had, or by one that started something for it.
    Goroutine,
    /// Wake-ups lead without a gap from the thread that received this request to the one that started it.
    WakeUps,
    /// The thread that started it had received this request last, in a daemon that does not move work between its threads.
    Thread,
    /// Nothing of the above: of the requests for which nothing runs the one that arrived last, or whose last command ended last.
    Newest,
}

impl Attribution {
    /// Value of the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Attribution::ContainerId => "container_id",
            Attribution::Namespace => "namespace",
            Attribution::InNamespace => "in_namespace",
            Attribution::Interface => "interface",
            Attribution::OnlyRequest => "only_request",
            Attribution::Goroutine => "goroutine",
            Attribution::WakeUps => "wake_ups",
            Attribution::Thread => "thread",
            Attribution::Newest => "newest",
        }
    }

    /// Whether it is by what the process itself has, and not by when, or by which thread of the daemon, it was started.
    #[must_use]
    pub fn is_by_content(self) -> bool {
        match self {
            Attribution::ContainerId | Attribution::Namespace | Attribution::InNamespace | Attribution::Interface => {
                true
            }
            Attribution::OnlyRequest
            | Attribution::Goroutine
            | Attribution::WakeUps
            | Attribution::Thread
            | Attribution::Newest => false,
        }
    }

    /// How sure it is. A daemon also works by itself, and programs with goroutines move work between threads: what only time or a
    /// thread speaks for is never certain.
    #[must_use]
    pub fn confidence(self) -> Confidence {
        match self {
            Attribution::ContainerId | Attribution::Namespace | Attribution::InNamespace => Confidence::Certain,
            Attribution::Interface
            | Attribution::OnlyRequest
            | Attribution::Goroutine
            | Attribution::WakeUps
            | Attribution::Thread => Confidence::Likely,
            Attribution::Newest => Confidence::Possible,
        }
    }
}

/// Whose a cgroup is, by its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupOwner<'a> {
    /// Uid of the pod as the path has it, where systemd's names have `_` in place of `-`; empty for none.
    pod: &'a str,
    /// Id of the container; empty for none.
    pub container: &'a str,
    /// The systemd unit (service); empty for none.
    pub unit: &'a str,
}

impl<'a> CgroupOwner<'a> {
    /// Reads a path as the kubelet's two drivers make it: `kubepods-burstable-podUID.slice/cri-containerd-ID.scope` (systemd) or
    /// `kubepods/burstable/podUID/ID` (cgroupfs); see pkg/kubelet/cm/cgroup_manager_linux.go of Kubernetes. Of other paths the
    /// innermost service.
    #[must_use]
    pub fn of(path: &'a str) -> CgroupOwner<'a> {
        let mut owner = CgroupOwner::default();
        for part in path.split('/') {
            if !owner.pod.is_empty() {
                // The first one below the pod's: what a container makes lies below.
                if owner.container.is_empty() {
                    let name = part.trim_end_matches(".scope");
                    owner.container = name.rsplit('-').next().unwrap_or(name);
                }
            } else if let Some(uid) = pod_uid(part) {
                owner.pod = uid;
            } else if part.ends_with(".service") {
                owner.unit = part;
            }
        }
        if !owner.pod.is_empty() {
            // The kubelet's own service, where its cgroups lie below that.
            owner.unit = "";
        }
        owner
    }

    /// Uid of the pod; empty for none.
    #[must_use]
    pub fn pod_uid(&self) -> String {
        self.pod.replace('_', "-")
    }
}

fn pod_uid(part: &str) -> Option<&str> {
    let name = part.trim_end_matches(".slice");
    let uid = match name.rsplit_once("-pod") {
        Some((before, uid)) if before.starts_with("kubepods") => uid,
        _ => name.strip_prefix("pod")?,
    };
    let is_uid = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'_' | b'-');
    (uid.len() >= 32 && uid.bytes().all(is_uid)).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_names_its_pod_or_its_service() {
        const UID: &str = "0b3c6a52-4f0f-4d39-a2f6-9c62d1e4b001";
        let systemd = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-0123abcd.scope/init",
            UID.replace('-', "_")
        );
        let cgroupfs = format!("/kubelet.service/kubepods/besteffort/pod{UID}/0123abcd");
        for path in [systemd, cgroupfs] {
            let owner = CgroupOwner::of(&path);
            assert_eq!(
                (owner.pod_uid().as_str(), owner.container, owner.unit),
                (UID, "0123abcd", ""),
                "{path}"
            );
        }
        let unit = CgroupOwner::of("/system.slice/cni-dhcp.service");
        assert_eq!(
            (unit.pod_uid().as_str(), unit.container, unit.unit),
            ("", "", "cni-dhcp.service")
        );
        assert_eq!(CgroupOwner::of("/user.slice/pod/podman"), CgroupOwner::default());
        assert_eq!(CgroupOwner::of(""), CgroupOwner::default());
    }
}
