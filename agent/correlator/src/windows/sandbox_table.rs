//! The sandboxes of a Windows node, as its runtime reports them: by number, by id and by stage.
//!
//! Used by the files of this room. A sandbox has no id until the runtime reports it, and goes by a stand-in until then.
//! Numbers are given in the order of the first report and are never reused. Bounded by `max_remembered`: sandboxes that
//! are over are evicted first, then the oldest.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{PodIdentity, Timestamp};

use crate::keys::TraceKey;
use crate::stand_in::is_stand_in;
use crate::windows::stage::Stage;

/// The table and its indexes.
#[derive(Debug)]
pub(crate) struct SandboxTable {
    /// By number, in the order of the first report.
    by_number: BTreeMap<u64, RuntimeSandbox>,
    /// By the runtime's id or the stand-in.
    by_container: BTreeMap<String, u64>,
    /// Numbers by stage.
    by_stage: BTreeMap<Stage, BTreeSet<u64>>,
    /// Stand-ins that sandboxes in the table have or had.
    stand_ins: BTreeSet<String>,
    /// Bound on sandboxes.
    max: usize,
    /// The last number.
    serial: u64,
}

/// A sandbox as the runtime reports it.
#[derive(Debug)]
pub(crate) struct RuntimeSandbox {
    /// The runtime's id, or the stand-in.
    pub(crate) container: String,
    /// The stand-in that it had at first, if any.
    stand_in: Option<String>,
    /// Its pod; empty for a sandbox that was seen only when it was removed.
    pub(crate) identity: PodIdentity,
    /// The trace of its creation, when the begin of that was seen.
    pub(crate) trace: Option<TraceKey>,
    /// Its stage; changed only by [`SandboxTable::set_stage`], which keeps the index.
    pub(crate) stage: Stage,
    /// When the stage began.
    pub(crate) since: Timestamp,
    /// A plugin was executed for it in this stage.
    pub(crate) called: bool,
    /// A shim was started for it, so its network is set up: containerd runs the plugins first.
    pub(crate) shimmed: bool,
    /// The HCN namespace, once known.
    pub(crate) namespace: String,
    /// The HNS endpoint, once known.
    pub(crate) endpoint: String,
    /// When an endpoint of it was last attached.
    pub(crate) attached: Option<Timestamp>,
    /// Its interface appeared.
    pub(crate) vnic: bool,
    /// Its network compartment, once known.
    pub(crate) compartment: Option<u32>,
}

impl SandboxTable {
    pub(crate) fn new(max: usize) -> SandboxTable {
        SandboxTable {
            by_number: BTreeMap::new(),
            by_container: BTreeMap::new(),
            by_stage: BTreeMap::new(),
            stand_ins: BTreeSet::new(),
            max: max.max(1),
            serial: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// How many exist or are being created or removed.
    pub(crate) fn alive(&self) -> usize {
        self.len() - self.by_stage.get(&Stage::Over).map_or(0, BTreeSet::len)
    }

    /// The sandbox with this number; `None` once it was evicted.
    pub(crate) fn get(&self, number: u64) -> Option<&RuntimeSandbox> {
        self.by_number.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut RuntimeSandbox> {
        self.by_number.get_mut(&number)
    }

    /// The sandbox with this id or stand-in.
    pub(crate) fn number_of(&self, container: &str) -> Option<u64> {
        self.by_container.get(container).copied()
    }

    /// A sandbox of the table has or had this stand-in.
    pub(crate) fn had_stand_in(&self, stand_in: &str) -> bool {
        self.stand_ins.contains(stand_in)
    }

    /// Sandboxes in this stage, by number, so oldest first.
    pub(crate) fn in_stage(&self, stage: Stage) -> impl DoubleEndedIterator<Item = (u64, &RuntimeSandbox)> {
        let numbers = self.by_stage.get(&stage).into_iter().flatten();
        numbers.filter_map(|number| Some((*number, self.by_number.get(number)?)))
    }

    /// The sandbox that the runtime creates for this pod; of several the oldest. Compares uids, or namespace and name
    /// where a report has no uid.
    pub(crate) fn in_creation(&self, identity: &PodIdentity) -> Option<u64> {
        let same = |sandbox: &RuntimeSandbox| {
            let mine = &sandbox.identity;
            if identity.uid.is_empty() || mine.uid.is_empty() {
                (&mine.namespace, &mine.name) == (&identity.namespace, &identity.name)
            } else {
                mine.uid == identity.uid
            }
        };
        let mut creating = self.in_stage(Stage::Creating);
        creating.find(|(_, sandbox)| same(sandbox)).map(|(number, _)| number)
    }

    /// The sandbox enters a stage at this time.
    pub(crate) fn set_stage(&mut self, number: u64, stage: Stage, at: Timestamp) {
        if let Some(sandbox) = self.by_number.get_mut(&number) {
            let before = std::mem::replace(&mut sandbox.stage, stage);
            sandbox.since = at;
            self.by_stage.entry(before).or_default().remove(&number);
            self.by_stage.entry(stage).or_default().insert(number);
        }
    }

    /// The sandbox gets another id. Returns the earlier one, or `None` if nothing changed.
    pub(crate) fn rename(&mut self, number: u64, id: &str) -> Option<String> {
        let sandbox = self.by_number.get_mut(&number)?;
        if sandbox.container == id || id.is_empty() {
            return None;
        }
        let before = std::mem::replace(&mut sandbox.container, id.to_owned());
        self.by_container.remove(&before);
        self.by_container.insert(id.to_owned(), number);
        Some(before)
    }

    /// Inserts a sandbox. Returns its number and the numbers of those that were evicted.
    pub(crate) fn insert(
        &mut self,
        container: &str,
        identity: PodIdentity,
        stage: Stage,
        at: Timestamp,
    ) -> (u64, Vec<u64>) {
        self.serial += 1;
        let number = self.serial;
        let stand_in = is_stand_in(container).then(|| container.to_owned());
        self.stand_ins.extend(stand_in.clone());
        let sandbox = RuntimeSandbox {
            container: container.to_owned(),
            stand_in,
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
        self.by_number.insert(number, sandbox);
        self.by_stage.entry(stage).or_default().insert(number);
        self.by_container.insert(container.to_owned(), number);
        let mut evicted = Vec::new();
        while self.by_number.len() > self.max
            && let Some(oldest) = self.evict()
        {
            evicted.push(oldest);
        }
        (number, evicted)
    }

    /// Removes a sandbox that is over, else the oldest.
    fn evict(&mut self) -> Option<u64> {
        // One that is over is remembered only for late events.
        let over = self.in_stage(Stage::Over).map(|(number, _)| number).next();
        let oldest = over.or_else(|| self.by_number.keys().next().copied())?;
        let gone = self.by_number.remove(&oldest)?;
        self.by_stage.entry(gone.stage).or_default().remove(&oldest);
        if let Some(stand_in) = &gone.stand_in {
            self.stand_ins.remove(stand_in);
        }
        // Another sandbox may have the same id.
        if self.by_container.get(&gone.container) == Some(&oldest) {
            self.by_container.remove(&gone.container);
        }
        Some(oldest)
    }
}
