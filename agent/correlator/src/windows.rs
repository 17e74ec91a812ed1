//! Windows nodes: what a plugin is called for is inferred from the runtime's words, since environments cannot be seen.
//!
//! The runtime says when it begins to make a sandbox and when that was done; programs it runs in between are plugins. A
//! sandbox has no id until the runtime names it: until then it goes by a stand-in made of its pod. From there on the
//! machinery of every system does the rest. Here stand the sandboxes and what the runtime says of them; `windows/` holds
//! processes, activities, object keys and lookups.
//! Does not: second-guess. What fits more than one sandbox is given to the likeliest and marked ambiguous.

mod activities;
mod calls;
mod keys;
mod library_calls;
mod lookups;
mod nests;
mod ongoing;
mod restarts;
mod running;
mod vnic;

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::trace::Trace;
use sandglass_model::windows::{ObjectKey, RuntimeSaid};
use sandglass_model::{CniCommand, PodIdentity, SandboxId, TextPairs, Timestamp};

use self::keys::Keys;
use self::lookups::Lookups;
use self::nests::Nests;
use self::ongoing::Activities;
use self::restarts::HnsProcesses;
use crate::correlator::{Config, Correlator, Output};
use crate::open::TraceKey;
use crate::plugins::invocation::Invocation;
use crate::plugins::operations::OperationRef;
use crate::sandboxes::CREATE;
use crate::traffic::Traffic;

/// Everything kept of a Windows node.
#[derive(Debug)]
pub(crate) struct Windows {
    /// By number, in the order they were heard of.
    pub(crate) sandboxes: BTreeMap<u64, Sandbox>,
    by_container: BTreeMap<String, u64>,
    by_stage: BTreeMap<Stage, BTreeSet<u64>>,
    /// What sandboxes went by before they were named.
    stand_ins: BTreeSet<String>,
    max_sandboxes: usize,
    serial: u64,
    pub(crate) activities: Activities,
    hns: HnsProcesses,
    pub(crate) nests: Nests,
    pub(crate) keys: Keys,
    pub(crate) lookups: Lookups,
    /// HNS endpoints that were made and not deleted since.
    endpoints: BTreeSet<String>,
    told_endpoints: (u64, u64),
}

/// A sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The runtime's id, or the stand-in.
    pub(crate) container: String,
    /// The stand-in, if it had one.
    stand_in: Option<String>,
    pub(crate) identity: PodIdentity,
    /// The trace of its creation, when that was seen to begin.
    pub(crate) trace: Option<TraceKey>,
    /// See [`Windows::set_stage`].
    pub(crate) stage: Stage,
    /// When the stage began.
    pub(crate) since: Timestamp,
    /// A plugin was run for it in this stage.
    pub(crate) called: bool,
    /// A shim was started for it: its network is set up.
    pub(crate) shimmed: bool,
    /// The HCN namespace, once known.
    pub(crate) namespace: String,
    pub(crate) endpoint: String,
    /// When an endpoint of it was last attached.
    pub(crate) attached: Option<Timestamp>,
    /// Its interface was seen.
    pub(crate) vnic: bool,
    pub(crate) compartment: Option<u32>,
}

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The runtime makes it.
    Asked,
    /// It is there.
    Created,
    /// The runtime removes it.
    Stopping,
    /// It is gone, or never came to be.
    Over,
}

/// Most endpoints counted.
const MAX_ENDPOINTS: usize = 16_384;
const UNNAMED: &str = "unnamed:";

/// The id is a stand-in for one that the runtime has not told yet.
pub(crate) fn is_unnamed(container: &str) -> bool {
    container.starts_with(UNNAMED)
}

/// A sandbox that never got an id has none.
pub(crate) fn unname(trace: &mut Trace) {
    if trace.sandbox.as_ref().is_some_and(|SandboxId(id)| is_unnamed(id)) {
        trace.sandbox = None;
    }
}

impl Windows {
    pub(crate) fn new(config: &Config) -> Windows {
        Windows {
            sandboxes: BTreeMap::new(),
            by_container: BTreeMap::new(),
            by_stage: BTreeMap::new(),
            stand_ins: BTreeSet::new(),
            max_sandboxes: config.max_remembered.max(1),
            serial: 0,
            activities: Activities::default(),
            hns: HnsProcesses::default(),
            nests: Nests::default(),
            keys: Keys::new(config.max_remembered),
            lookups: Lookups::new(config.traffic.max_lookups),
            endpoints: BTreeSet::new(),
            told_endpoints: (0, 0),
        }
    }

    /// How much is remembered, all in all.
    pub(crate) fn len(&self) -> usize {
        self.sandboxes.len() + self.activities.len() + self.nests.len() + self.keys.len() + self.lookups.len()
    }

    pub(crate) fn number_of(&self, container: &str) -> Option<u64> {
        self.by_container.get(container).copied()
    }

    /// Sandboxes in that stage, by number.
    pub(crate) fn in_stage(&self, stage: Stage) -> impl DoubleEndedIterator<Item = (u64, &Sandbox)> {
        let numbers = self.by_stage.get(&stage).into_iter().flatten();
        numbers.filter_map(|number| Some((*number, self.sandboxes.get(number)?)))
    }

    /// The sandbox is in that stage now.
    fn set_stage(&mut self, number: u64, stage: Stage, at: Timestamp) {
        if let Some(sandbox) = self.sandboxes.get_mut(&number) {
            let before = std::mem::replace(&mut sandbox.stage, stage);
            sandbox.since = at;
            self.by_stage.entry(before).or_default().remove(&number);
            self.by_stage.entry(stage).or_default().insert(number);
        }
    }

    /// Enters a sandbox; returns its number and how many others were forgotten for it.
    fn enter(&mut self, container: &str, identity: PodIdentity, stage: Stage, at: Timestamp) -> (u64, u64) {
        self.serial += 1;
        let number = self.serial;
        let sandbox = Sandbox {
            container: container.to_owned(),
            stand_in: is_unnamed(container).then(|| container.to_owned()),
            identity,
            trace: None,
            stage,
            since: at,
            called: false,
            shimmed: false,
            namespace: String::new(),
            endpoint: String::new(),
            attached: None,
            vnic: false,
            compartment: None,
        };
        if is_unnamed(container) {
            self.stand_ins.insert(container.to_owned());
        }
        self.sandboxes.insert(number, sandbox);
        self.by_stage.entry(stage).or_default().insert(number);
        self.by_container.insert(container.to_owned(), number);
        let mut forgotten = 0;
        while self.sandboxes.len() > self.max_sandboxes {
            // What is over goes before what is not.
            let over = self.in_stage(Stage::Over).map(|(number, _)| number).next();
            let oldest = over.or_else(|| self.sandboxes.keys().next().copied());
            let Some((oldest, gone)) = oldest.and_then(|oldest| self.sandboxes.remove_entry(&oldest)) else {
                break;
            };
            self.by_stage.entry(gone.stage).or_default().remove(&oldest);
            if let Some(stand_in) = &gone.stand_in {
                self.stand_ins.remove(stand_in);
            }
            self.keys.forget(oldest);
            // Another may go by the same id.
            if self.by_container.get(&gone.container) == Some(&oldest) {
                self.by_container.remove(&gone.container);
            }
            forgotten += 1;
        }
        (number, forgotten)
    }
}

/// A call of a plugin that nobody saw the parameters of. The interface is the runtime's default.
pub(crate) fn parameters(command: CniCommand, container: &str, identity: &PodIdentity, directory: &str) -> TextPairs {
    let mut env = TextPairs::default();
    env.push("CNI_COMMAND", command.as_str());
    env.push("CNI_CONTAINERID", container);
    env.push("CNI_IFNAME", "eth0");
    let PodIdentity {
        namespace, name, uid, ..
    } = identity;
    env.push(
        "CNI_ARGS",
        &format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}"),
    );
    env.push("CNI_PATH", directory);
    env
}

// === what the runtime says ===

impl Correlator {
    pub(crate) fn runtime_said(&mut self, at: Timestamp, said: RuntimeSaid) {
        match said {
            RuntimeSaid::RunBegan { identity, attempt } => self.run_began(at, identity, attempt),
            RuntimeSaid::RunReturned { identity, sandbox } => {
                if let Some(number) = self.asked_for(&identity) {
                    self.name_sandbox(number, &sandbox.0);
                    self.creation_over(at, number, None);
                } else {
                    self.there_is(at, &sandbox.0, identity);
                }
            }
            RuntimeSaid::RunFailed { identity, message } => match self.asked_for(&identity) {
                Some(number) => self.creation_over(at, number, Some(message)),
                None => self.orphan_of_runtime(),
            },
            RuntimeSaid::StopBegan { sandbox } => self.stop_began(at, &sandbox.0),
            RuntimeSaid::StopReturned { sandbox, .. } => self.stop_returned(at, &sandbox.0),
            RuntimeSaid::ContainerOf { sandbox, container } => {
                let number = self.there_is(at, &sandbox.0, PodIdentity::default());
                self.learn(at, number, ObjectKey::Container(container));
            }
            RuntimeSaid::NamespaceOf { sandbox, namespace } => {
                self.shim_of(&sandbox.0, false);
                let keys = [ObjectKey::Container(sandbox.0), ObjectKey::Namespace(namespace)];
                self.join_keys(at, &keys);
            }
            RuntimeSaid::EndpointOf { namespace, endpoint } => {
                let keys = [ObjectKey::Namespace(namespace), ObjectKey::Endpoint(endpoint)];
                self.join_keys(at, &keys);
            }
            RuntimeSaid::ShimLaunched { sandbox, .. } => self.shim_of(&sandbox.0, true),
            RuntimeSaid::Span(span) => self.runtime_span(at, *span),
        }
    }

    /// There is a sandbox of that id, even if its beginning was not seen.
    fn there_is(&mut self, at: Timestamp, id: &str, identity: PodIdentity) -> u64 {
        if let Some(number) = self.windows.number_of(id) {
            return number;
        }
        let (number, forgotten) = self.windows.enter(id, identity, Stage::Created, at);
        self.effects.counters.evicted_windows += forgotten;
        self.learn(at, number, ObjectKey::Container(id.to_owned()));
        number
    }

    fn orphan_of_runtime(&mut self) {
        self.effects.counters.orphan += 1;
    }

    fn run_began(&mut self, at: Timestamp, identity: PodIdentity, attempt: u32) {
        let PodIdentity {
            namespace, name, uid, ..
        } = &identity;
        let stand_in = format!("{UNNAMED}{namespace}/{name}/{uid}/{attempt}/{}", at.0);
        // Told twice; its ids are made of this, so that they would come twice too.
        if self.windows.stand_ins.contains(&stand_in) {
            return;
        }
        let env = parameters(CniCommand::Add, &stand_in, &identity, "");
        let Some(call) = Invocation::of(&env) else {
            return;
        };
        let key = self.open_creation(at, "containerd", &call);
        if let Some(creation) = self.traces.get_mut(key).and_then(|open| open.creation.as_mut()) {
            creation.told = true;
        }
        let (number, forgotten) = self.windows.enter(&stand_in, identity, Stage::Asked, at);
        self.effects.counters.evicted_windows += forgotten;
        if let Some(sandbox) = self.windows.sandboxes.get_mut(&number) {
            sandbox.trace = Some(key);
        }
        self.review(key);
        self.tell_endpoints();
    }

    /// The sandbox that the runtime makes for this pod: the oldest, should there be several.
    fn asked_for(&self, identity: &PodIdentity) -> Option<u64> {
        let same = |sandbox: &Sandbox| {
            let mine = &sandbox.identity;
            if identity.uid.is_empty() || mine.uid.is_empty() {
                (&mine.namespace, &mine.name) == (&identity.namespace, &identity.name)
            } else {
                mine.uid == identity.uid
            }
        };
        let mut asked = self.windows.in_stage(Stage::Asked);
        asked.find(|(_, sandbox)| same(sandbox)).map(|(number, _)| number)
    }

    /// The runtime's shim works for this sandbox. Its id tells which one only if no other can be meant.
    pub(crate) fn shim_of(&mut self, id: &str, launched: bool) {
        if let Some(number) = self.windows.number_of(id) {
            if let Some(sandbox) = self.windows.sandboxes.get_mut(&number) {
                sandbox.shimmed |= launched;
            }
            return;
        }
        let fits: Vec<u64> = self
            .windows
            .in_stage(Stage::Asked)
            .filter(|(_, sandbox)| is_unnamed(&sandbox.container) && sandbox.called)
            .filter(|(_, sandbox)| !self.is_busy(&sandbox.container))
            .map(|(number, _)| number)
            .collect();
        if let [number] = fits[..] {
            self.name_sandbox(number, id);
            if let Some(sandbox) = self.windows.sandboxes.get_mut(&number) {
                sandbox.shimmed |= launched;
            }
        }
    }

    /// A plugin runs for the sandbox now.
    pub(crate) fn is_busy(&self, container: &str) -> bool {
        self.attached.get(container).into_iter().flatten().any(|reference| {
            let open = self.traces.get(reference.trace);
            open.is_some_and(|open| open.operations[reference.operation].running > 0)
        })
    }

    /// The runtime calls the sandbox by this id, whatever it went by before.
    fn name_sandbox(&mut self, number: u64, id: &str) {
        let Some(sandbox) = self.windows.sandboxes.get_mut(&number) else {
            return;
        };
        if sandbox.container == id || id.is_empty() {
            return;
        }
        let before = std::mem::replace(&mut sandbox.container, id.to_owned());
        let (trace, compartment) = (sandbox.trace, sandbox.compartment);
        self.windows.by_container.remove(&before);
        self.windows.by_container.insert(id.to_owned(), number);
        self.windows.keys.unlearn(&ObjectKey::Container(before.clone()));
        if let Some(key) = self.creations.get(&before).copied() {
            self.creations.remove(&before);
            self.creations.insert(id, key);
        }
        if let Some(attached) = self.attached.get(&before).cloned() {
            self.attached.remove(&before);
            for reference in &attached {
                if let Some(open) = self.traces.get_mut(reference.trace) {
                    id.clone_into(&mut open.operations[reference.operation].container);
                }
            }
            self.attached.insert(id, attached);
        }
        if let Some(open) = trace.and_then(|key| self.traces.get_mut(key)) {
            open.trace.sandbox = Some(SandboxId(id.to_owned()));
            for operation in &mut open.operations {
                id.clone_into(&mut operation.container);
            }
            open.touch(&mut self.effects);
            if open.is_created() {
                self.effects.outputs.push(Output::Asked(SandboxId(id.to_owned())));
            }
        }
        if let Some(remembered) = self.memory.sandboxes.get(&before).cloned() {
            let pod = crate::sandboxes::memory::pod_key(&remembered.identity);
            let attempt = pod.and_then(|pod| self.memory.pods.get_mut(&pod));
            if let Some(attempt) = attempt.filter(|attempt| attempt.sandbox == before) {
                id.clone_into(&mut attempt.sandbox);
            }
            self.remember(id, remembered);
        }
        if let Some(compartment) = compartment {
            self.watch.owners.own(u64::from(compartment), id, self.now);
        }
        self.learn(self.now, number, ObjectKey::Container(id.to_owned()));
    }

    /// The runtime has made the sandbox, or given up.
    fn creation_over(&mut self, at: Timestamp, number: u64, failure: Option<String>) {
        let stage = if failure.is_some() { Stage::Over } else { Stage::Created };
        self.windows.set_stage(number, stage, at);
        let Some(sandbox) = self.windows.sandboxes.get_mut(&number) else {
            return;
        };
        sandbox.called = false;
        let (trace, container) = (sandbox.trace, sandbox.container.clone());
        let failed = failure.is_some();
        let over: Vec<OperationRef> = self.attached.get(&container).cloned().unwrap_or_default();
        for reference in over {
            let idle = |open: &crate::open::OpenTrace| open.operations[reference.operation].is_idle();
            if self.traces.get(reference.trace).is_some_and(idle) {
                self.close_operation(reference);
            }
        }
        if let Some(open) = trace
            .and_then(|key| self.traces.get_mut(key))
            .filter(|open| !open.is_created())
        {
            let key = open.key;
            if open.is_open(CREATE) {
                open.states[CREATE].latest = open.states[CREATE].latest.max(at);
            }
            if let Some(creation) = &mut open.creation {
                creation.started = failure.is_none();
                creation.failed_step = failure.map(|message| {
                    if message.is_empty() {
                        "the runtime could not make the sandbox".to_owned()
                    } else {
                        message
                    }
                });
            }
            open.touch(&mut self.effects);
            self.review(key);
        }
        if failed {
            // The next attempt may get the same objects.
            self.windows.keys.forget(number);
        }
        self.tell_endpoints();
    }

    fn stop_began(&mut self, at: Timestamp, id: &str) {
        let number = match self.windows.number_of(id) {
            Some(number) => number,
            None => {
                let (number, forgotten) = self.windows.enter(id, PodIdentity::default(), Stage::Stopping, at);
                self.effects.counters.evicted_windows += forgotten;
                number
            }
        };
        self.windows.set_stage(number, Stage::Stopping, at);
        if let Some(sandbox) = self.windows.sandboxes.get_mut(&number) {
            sandbox.called = false;
        }
        self.learn(at, number, ObjectKey::Container(id.to_owned()));
    }

    fn stop_returned(&mut self, at: Timestamp, id: &str) {
        let Some(number) = self.windows.number_of(id) else {
            return self.orphan_of_runtime();
        };
        self.windows.set_stage(number, Stage::Over, at);
        self.windows.keys.forget(number);
        self.tell_endpoints();
    }

    /// An endpoint was made, or deleted.
    pub(crate) fn count_endpoint(&mut self, endpoint: &str, made: bool) {
        if !made {
            self.windows.endpoints.remove(endpoint);
        } else if self.windows.endpoints.len() < MAX_ENDPOINTS {
            self.windows.endpoints.insert(endpoint.to_owned());
        }
        self.tell_endpoints();
    }

    fn tell_endpoints(&mut self) {
        let over = self.windows.by_stage.get(&Stage::Over).map_or(0, BTreeSet::len);
        let sandboxes = (self.windows.sandboxes.len() - over) as u64;
        let now = (self.windows.endpoints.len() as u64, sandboxes);
        if now != self.windows.told_endpoints {
            self.windows.told_endpoints = now;
            let (endpoints, sandboxes) = now;
            self.effects
                .outputs
                .push(Output::Traffic(Traffic::Endpoints { endpoints, sandboxes }));
        }
    }

    /// The end of the input.
    pub(crate) fn finish_windows(&mut self) {
        self.finish_lookups();
    }

    /// The creation of a sandbox, or its trace, is about to be over.
    pub(crate) fn windows_closing(&mut self, key: TraceKey) {
        if !self.config.windows {
            return;
        }
        self.place_unfinished(key);
        self.place_likeliest(key);
        self.settle_vnic(key);
    }
}
