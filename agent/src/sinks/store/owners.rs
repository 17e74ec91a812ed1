//! Traces by owner: the Kubernetes namespace, and within it the pod, or the sandbox where no pod is known.
//!
//! Used by [`super::traces`], once for each group of equal worth. The namespace with the most traces loses one first: of a pod that has more
//! than a quarter of them its oldest, or else its oldest of all. So a pod that restarts in a loop, or a job that makes pods
//! without end, evicts its own traces. What belongs to no sandbox is one owner, the node. Does not: know bounds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{RootId, SandboxId};

use super::index::TraceIndex;

/// Traces of equal worth.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_namespace: BTreeMap<String, Namespace>,
    count: usize,
}

#[derive(Debug, Default)]
struct Namespace {
    /// In order of arrival.
    all: BTreeSet<(u64, RootId)>,
    by_pod: BTreeMap<String, BTreeSet<(u64, RootId)>>,
}

/// A pod with more than this part of the traces, of its namespace's or of all, evicts its own.
const NOISY_PART: usize = 4;

impl Owners {
    pub(super) fn insert(&mut self, trace: &TraceIndex, arrival: u64) {
        let namespace = self.by_namespace.entry(trace.namespace.clone()).or_default();
        let entry = (arrival, trace.root);
        self.count += usize::from(namespace.all.insert(entry));
        namespace.by_pod.entry(pod_of(trace)).or_default().insert(entry);
    }

    pub(super) fn remove(&mut self, trace: &TraceIndex, arrival: u64) {
        let name = &trace.namespace;
        let Some(namespace) = self.by_namespace.get_mut(name) else {
            return;
        };
        let (entry, pod) = ((arrival, trace.root), pod_of(trace));
        self.count -= usize::from(namespace.all.remove(&entry));
        if let Some(of_pod) = namespace.by_pod.get_mut(&pod) {
            of_pod.remove(&entry);
            if of_pod.is_empty() {
                namespace.by_pod.remove(&pod);
            }
        }
        if namespace.all.is_empty() {
            self.by_namespace.remove(name);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The trace to evict next.
    pub(super) fn next_victim(&self) -> Option<RootId> {
        // Of as many, the one with the oldest.
        let namespace = self
            .by_namespace
            .values()
            .max_by_key(|&namespace| rank(&namespace.all))?;
        let most = namespace.all.len() / NOISY_PART;
        let pods = namespace.by_pod.values().filter(|pod| pod.len() > most);
        let noisy = pods.max_by_key(|&pod| rank(pod));
        let (_, root) = *noisy.unwrap_or(&namespace.all).first()?;
        Some(root)
    }

    /// The oldest trace of the pod with the most, if that pod has more than a quarter of all.
    pub(super) fn noisy_victim(&self) -> Option<RootId> {
        let most = self.count / NOISY_PART;
        let namespaces = self
            .by_namespace
            .values()
            .filter(|namespace| namespace.all.len() > most);
        let pods = namespaces.flat_map(|namespace| namespace.by_pod.values());
        let noisy = pods.filter(|pod| pod.len() > most).max_by_key(|&pod| rank(pod))?;
        let (_, root) = *noisy.first()?;
        Some(root)
    }

    /// All roots.
    pub(super) fn roots(&self) -> impl Iterator<Item = RootId> {
        let all = self.by_namespace.values().flat_map(|namespace| &namespace.all);
        all.map(|(_, root)| *root)
    }
}

fn rank(traces: &BTreeSet<(u64, RootId)>) -> (usize, Reverse<Option<&(u64, RootId)>>) {
    (traces.len(), Reverse(traces.first()))
}

/// The pod within its namespace: by name, which a pod that is made again keeps.
fn pod_of(trace: &TraceIndex) -> String {
    match &trace.sandbox {
        _ if !trace.pod.is_empty() => trace.pod.clone(),
        Some(SandboxId(sandbox)) => sandbox.clone(),
        None => String::new(),
    }
}
