//! Snapshots of the open traces for display: which of them changed, and on Windows copies with the activities that run.
//!
//! Used by the pipeline, which passes them to the sinks a few times a second. On a Windows node activities of HNS and
//! HCS are attributed only when they end; while they run, copies of the open traces show them where they likely belong.
//! A trace therefore changes for display also when such an activity begins or ends.
//! A pipeline calls `observe` with every event, `is_stale` as often as it likes, and `take` when it shows what changed.
//! Cost: a copy of each open trace that has running activities, for each snapshot; nothing on Linux.
//! Does not: change the correlator's traces; what is only likely never gets into a trace that is exported.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{Body, RootId, Trace, TraceId};

use crate::Correlator;

/// What the last snapshot showed besides the open traces themselves.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// Copies of open traces, with the activities that ran. By root, because several open traces may share an id
    /// (`TRACEPARENT`). Empty on Linux.
    running: BTreeMap<RootId, Trace>,
    /// An activity began or ended since the last snapshot. Set by the event and not by its effect, which may be none.
    stale: bool,
}

impl Snapshots {
    /// Notes an event that the correlator handles. Only activities matter: every other change marks its trace.
    pub fn observe(&mut self, body: &Body) {
        self.stale |= matches!(body, Body::ActivitySeen(_) | Body::SiloSeen(_));
    }

    /// Whether the next snapshot may differ from the last. `false` saves the pipeline the copies.
    #[must_use]
    pub fn is_stale(&self, correlator: &Correlator) -> bool {
        self.stale || correlator.has_changed()
    }

    /// The ids of the traces that changed since the last call, and all open traces, oldest first. When several open traces
    /// have one id, at least one of them changed. A trace with running activities is shown by its copy.
    pub fn take<'a>(
        &'a mut self,
        correlator: &'a mut Correlator,
    ) -> (BTreeSet<TraceId>, impl Iterator<Item = &'a Trace>) {
        self.stale = false;
        let mut changed = correlator.take_changed();
        let running = correlator.with_running();
        let running = running.into_iter().map(|trace| (trace.root_id(), trace)).collect();
        let before = std::mem::replace(&mut self.running, running);
        // A copy that is equal to the last one has been shown; comparing costs less than sending it again.
        let differs = |(root, trace): &(&RootId, &Trace)| self.running.get(root) != Some(trace);
        // A trace that lost its copy is shown as it is again, which is a change too.
        let ended = before.iter().filter(differs).map(|(root, _)| root);
        // Those that had a copy before are covered by `differs`.
        let began = self.running.keys().filter(|root| !before.contains_key(root));
        changed.extend(ended.chain(began).map(|root| root.trace));
        // Borrowed, not copied: of most traces the sinks keep what they have.
        let (running, open) = (&self.running, correlator.open());
        (
            changed,
            open.map(|trace| running.get(&trace.root_id()).unwrap_or(trace)),
        )
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::event::Exec;
    use sandglass_model::windows::{ActivityChange, ActivityStep, RuntimeReport, Service};
    use sandglass_model::{Event, PodIdentity, ProcessKey, Timestamp, text};

    use super::*;
    use crate::CorrelatorConfig;

    /// The runtime runs a plugin to take an interface away.
    fn del(pid: u32, ifname: &str, traceparent: &str) -> Body {
        let env = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "sb"),
            ("CNI_IFNAME", ifname),
            ("TRACEPARENT", traceparent),
        ];
        Body::ProcessExecuted(Box::new(Exec {
            process: ProcessKey::new(pid, 0),
            parent: ProcessKey::new(1, 0),
            parent_comm: "containerd".into(),
            path: "/opt/cni/bin/bridge".into(),
            args: Default::default(),
            args_truncated: false,
            env: env.into_iter().collect(),
            cgroup: String::new(),
            netns: 0,
            counted: None,
            running: false,
        }))
    }

    fn activity(service: Service, name: &str, step: ActivityChange) -> Body {
        Body::ActivitySeen(Box::new(ActivityStep {
            service,
            name: name.into(),
            activity: "a".into(),
            related: String::new(),
            pid: 1,
            tid: 2,
            step,
            keys: Vec::new(),
            fields: Default::default(),
        }))
    }

    /// The traces that changed since the last call, each as a tree.
    fn shown(snapshots: &mut Snapshots, correlator: &mut Correlator) -> Vec<String> {
        let (changed, open) = snapshots.take(correlator);
        let changed = open.filter(|trace| changed.contains(&trace.id));
        changed.map(|trace| text::tree(trace, Timestamp(0))).collect()
    }

    fn handle(snapshots: &mut Snapshots, correlator: &mut Correlator, at: u64, body: Body) {
        snapshots.observe(&body);
        let at = Timestamp(at);
        correlator.handle(Event { at, body });
    }

    #[test]
    fn open_operations_of_one_trace_are_shown_each() {
        let (mut snapshots, mut correlator) = (Snapshots::default(), Correlator::new(CorrelatorConfig::default()));
        let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let bodies = [
            del(10, "lo", caller),
            del(11, "eth0", caller),
            activity(Service::Hns, "Delete", ActivityChange::Started),
            Body::Tick,
        ];
        for (at, body) in (1..).zip(bodies) {
            handle(&mut snapshots, &mut correlator, at * 1_000_000, body);
        }
        let shown = shown(&mut snapshots, &mut correlator);
        let all = shown.join("");
        assert_eq!(shown.len(), 2, "{all}");
        // What HNS does for one of them does not hide the other.
        for part in ["[sb, lo,", "[sb, eth0,", "hns Delete"] {
            assert_eq!(all.matches(part).count(), 1, "{part}: {all}");
        }
    }

    #[test]
    fn what_hcs_does_is_shown_when_it_begins_and_when_it_ends() {
        let config = CorrelatorConfig {
            windows: true,
            ..CorrelatorConfig::default()
        };
        let (mut snapshots, mut correlator) = (Snapshots::default(), Correlator::new(config));
        let mut at = 0;
        let mut after = |body: Body| {
            at += 1_000_000;
            handle(&mut snapshots, &mut correlator, at, body);
            handle(&mut snapshots, &mut correlator, at + 1, Body::Tick);
            shown(&mut snapshots, &mut correlator).join("")
        };
        let identity = PodIdentity {
            name: "web".into(),
            ..PodIdentity::default()
        };
        let created = after(Body::RuntimeReported(Box::new(RuntimeReport::RunBegan {
            identity,
            attempt: 0,
        })));
        assert!(
            created.contains("sandbox.create") && !created.contains("hcs"),
            "{created}"
        );
        let begun = after(activity(Service::Hcs, "Create", ActivityChange::Started));
        assert!(begun.contains("hcs Create"), "{begun}");
        assert_eq!(after(Body::Tick), "", "nothing has changed");
        let (result, message) = (Some(0), String::new());
        let stopped = ActivityChange::Stopped { result, message };
        let ended = after(activity(Service::Hcs, "Create", stopped));
        assert_eq!(ended.matches("hcs Create").count(), 1, "{ended}");
        assert_eq!(after(Body::Tick), "");
        assert!(snapshots.running.is_empty());
    }
}
