//! Which sandbox an object is of: endpoints, ports, namespaces, silos, jobs, compartments, containers.
//!
//! A key is learnt when it is named together with one that is known. Pairs of which neither is known wait.
//! Networks and operations join nothing: the first are shared, numbers of the second come again. Bounded.

use std::collections::BTreeMap;

use sandglass_model::Timestamp;
use sandglass_model::network::ConnectStep;
use sandglass_model::windows::{ObjectKey, SiloChange, SiloStep};

use super::Stage;
use crate::collections::bounded::{Bounded, Hashed};
use crate::collections::mix::mix;
use crate::correlator::Correlator;

/// Everything known.
#[derive(Debug)]
pub(crate) struct Keys {
    owners: Bounded<ObjectKey, u64>,
    /// The other way round: a sandbox that goes must not cost a walk through all that is known.
    owned: BTreeMap<u64, Vec<ObjectKey>>,
    /// Named together, by each of both.
    pairs: Bounded<(ObjectKey, ObjectKey), ()>,
    waiting: Vec<(ObjectKey, ObjectKey)>,
    /// Processes of sandboxes, seen by their lookups.
    processes: Bounded<u32, u64>,
}

/// Most objects known of one sandbox.
const MAX_OWNED: usize = 256;
/// Most pairs that wait.
const MAX_PAIRS: usize = 1_024;
/// The node's own compartment.
const NODE_COMPARTMENT: u32 = 1;

/// The key says whose something is.
pub(crate) fn tells(key: &ObjectKey) -> bool {
    match key {
        ObjectKey::Network(_) | ObjectKey::Operation(_) => false,
        ObjectKey::Compartment(number) => *number > NODE_COMPARTMENT,
        ObjectKey::Job(number) => *number != 0,
        ObjectKey::Namespace(id)
        | ObjectKey::Endpoint(id)
        | ObjectKey::Port(id)
        | ObjectKey::Container(id)
        | ObjectKey::Silo(id) => !id.is_empty() && id.bytes().any(|byte| byte != b'0' && byte != b'-'),
    }
}

impl Hashed for ObjectKey {
    fn hash(&self) -> u64 {
        match self {
            ObjectKey::Namespace(id) => mix(1, id.as_bytes()),
            ObjectKey::Endpoint(id) => mix(2, id.as_bytes()),
            ObjectKey::Port(id) => mix(3, id.as_bytes()),
            ObjectKey::Network(id) => mix(4, id.as_bytes()),
            ObjectKey::Container(id) => mix(5, id.as_bytes()),
            ObjectKey::Silo(id) => mix(6, id.as_bytes()),
            ObjectKey::Job(number) => mix(7, &number.to_le_bytes()),
            ObjectKey::Operation(number) => mix(8, &number.to_le_bytes()),
            ObjectKey::Compartment(number) => mix(9, &number.to_le_bytes()),
        }
    }
}

impl Hashed for (ObjectKey, ObjectKey) {
    fn hash(&self) -> u64 {
        mix(self.0.hash(), &self.1.hash().to_le_bytes())
    }
}

/// `kind=id`, as spans show it.
pub(crate) fn text(key: &ObjectKey) -> String {
    match key {
        ObjectKey::Namespace(id) => format!("namespace={id}"),
        ObjectKey::Endpoint(id) => format!("endpoint={id}"),
        ObjectKey::Port(id) => format!("port={id}"),
        ObjectKey::Network(id) => format!("network={id}"),
        ObjectKey::Container(id) => format!("container={id}"),
        ObjectKey::Silo(id) => format!("silo={id}"),
        ObjectKey::Job(number) => format!("job={number}"),
        ObjectKey::Operation(number) => format!("operation={number}"),
        ObjectKey::Compartment(number) => format!("compartment={number}"),
    }
}

impl Keys {
    pub(crate) fn new(max: usize) -> Keys {
        Keys {
            owners: Bounded::new(max.saturating_mul(4)),
            owned: BTreeMap::new(),
            pairs: Bounded::new(MAX_PAIRS),
            waiting: Vec::new(),
            processes: Bounded::new(max),
        }
    }

    pub(crate) fn owner(&self, key: &ObjectKey) -> Option<u64> {
        self.owners.get(key).copied()
    }

    /// The sandbox that one of the keys is of.
    pub(crate) fn owner_of(&self, keys: &[ObjectKey]) -> Option<u64> {
        keys.iter().find_map(|key| self.owner(key))
    }

    /// The sandbox is gone: others may get its compartment and its job.
    pub(crate) fn forget(&mut self, number: u64) {
        for key in self.owned.remove(&number).unwrap_or_default() {
            // Some may be another's by now.
            if self.owners.get(&key) == Some(&number) {
                self.owners.remove(&key);
            }
        }
    }

    /// The key was learnt by mistake.
    pub(crate) fn unlearn(&mut self, key: &ObjectKey) {
        self.owners.remove(key);
    }

    /// Enters a key; returns how many others were forgotten for it. `None` when the sandbox has too many.
    fn enter(&mut self, key: &ObjectKey, number: u64, at: Timestamp) -> Option<u64> {
        let owned = self.owned.entry(number).or_default();
        if owned.len() >= MAX_OWNED {
            return None;
        }
        owned.push(key.clone());
        Some(self.owners.insert(key.clone(), number, at))
    }

    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }
}

impl Correlator {
    /// The keys are of one object, or of objects of one sandbox.
    pub(crate) fn join_keys(&mut self, at: Timestamp, keys: &[ObjectKey]) {
        match self.windows.keys.owner_of(keys) {
            Some(number) => {
                for key in keys {
                    self.learn(at, number, key.clone());
                }
            }
            None => {
                for (one, other) in keys.iter().zip(keys.iter().skip(1)) {
                    if tells(one) && tells(other) {
                        let pair = (one.clone(), other.clone());
                        self.effects.counters.evicted_windows += self.windows.keys.pairs.insert(pair.clone(), (), at);
                        let keys = &mut self.windows.keys;
                        keys.waiting
                            .retain(|waiting| *waiting != pair && keys.pairs.get(waiting).is_some());
                        keys.waiting.push(pair);
                    }
                }
            }
        }
    }

    /// The key is of this sandbox, and so is what waits for it.
    pub(crate) fn learn(&mut self, at: Timestamp, number: u64, key: ObjectKey) {
        let mut learnt = vec![key];
        while let Some(key) = learnt.pop() {
            if !tells(&key) || self.windows.keys.owner(&key).is_some() || !self.windows.sandboxes.contains_key(&number)
            {
                continue;
            }
            let Some(forgotten) = self.windows.keys.enter(&key, number, at) else {
                self.effects.counters.evicted_windows += 1;
                continue;
            };
            self.effects.counters.evicted_windows += forgotten;
            self.note_key(number, &key);
            let keys = &mut self.windows.keys;
            let pairs = &mut keys.pairs;
            keys.waiting.retain(|pair| {
                let other = match pair {
                    (one, other) if *one == key => other,
                    (other, one) if *one == key => other,
                    _ => return true,
                };
                learnt.push(other.clone());
                pairs.remove(pair);
                false
            });
            learnt.extend(self.place_waiting(&key, number));
        }
    }

    /// What a key says besides whose it is.
    fn note_key(&mut self, number: u64, key: &ObjectKey) {
        let Some(sandbox) = self.windows.sandboxes.get_mut(&number) else {
            return;
        };
        let (trace, container) = (sandbox.trace, sandbox.container.clone());
        let mut known = false;
        match key {
            ObjectKey::Namespace(id) => {
                if sandbox.namespace.is_empty() {
                    sandbox.namespace.clone_from(id);
                }
            }
            ObjectKey::Endpoint(id) => {
                if sandbox.endpoint.is_empty() {
                    sandbox.endpoint.clone_from(id);
                }
            }
            ObjectKey::Compartment(compartment) => {
                sandbox.compartment = Some(*compartment);
                known = true;
                self.watch.owners.own(u64::from(*compartment), &container, self.now);
            }
            ObjectKey::Silo(_) => known = true,
            ObjectKey::Port(_)
            | ObjectKey::Network(_)
            | ObjectKey::Container(_)
            | ObjectKey::Job(_)
            | ObjectKey::Operation(_) => {}
        }
        let Some(open) = trace.and_then(|key| self.traces.get_mut(key)) else {
            return;
        };
        if let Some(creation) = open.creation.as_mut().filter(|_| known) {
            creation.readiness.known = true;
        }
        if let ObjectKey::Namespace(id) = key {
            for operation in 0..open.operations.len() {
                if let Some(detail) = open
                    .operation_detail_mut(operation)
                    .filter(|detail| detail.netns.is_empty())
                {
                    detail.netns.clone_from(id);
                }
            }
        }
    }

    /// A process of a silo asked for a name: what else it does is its sandbox's too.
    pub(crate) fn process_of_silo(&mut self, at: Timestamp, pid: u32, silo: &str) {
        if let Some(number) = self.windows.keys.owner(&ObjectKey::Silo(silo.to_owned())) {
            self.windows.keys.processes.insert(pid, number, at);
        }
    }

    /// A connection tells its compartment, and its process may tell whose that is.
    pub(crate) fn compartment_of(&mut self, at: Timestamp, step: &ConnectStep) {
        let (Ok(compartment), Some(asker)) = (u32::try_from(step.netns), &step.asker) else {
            return;
        };
        if self.config.windows
            && let Some(number) = self.windows.keys.processes.get(&asker.process.pid).copied()
        {
            self.learn(at, number, ObjectKey::Compartment(compartment));
        }
    }

    pub(crate) fn silo_seen(&mut self, at: Timestamp, step: &SiloStep) {
        let keys = [ObjectKey::Silo(step.silo.clone()), ObjectKey::Job(step.job)];
        if step.step == SiloChange::Terminated {
            return;
        }
        self.join_keys(at, &keys);
        if self.windows.keys.owner_of(&keys).is_none() && step.step == SiloChange::Started {
            // A silo is made for a container. The only sandbox that waits for its own is likely meant.
            let waits = self
                .windows
                .in_stage(Stage::Asked)
                .filter(|(_, sandbox)| sandbox.called);
            let waits: Vec<u64> = waits.map(|(number, _)| number).collect();
            if let [number] = waits[..] {
                self.learn(at, number, keys[0].clone());
                self.learn(at, number, keys[1].clone());
            }
        }
        self.silo_callback(at, step);
    }
}
