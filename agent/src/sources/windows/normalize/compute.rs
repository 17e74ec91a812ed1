//! Operations of the Host Compute Service, from its event log (Microsoft-Windows-Hyper-V-Compute, events 2000 to 2500).
//!
//! Matched by event id. Most are single events at the service's response; two pairs form an operation: 2010 and 2000 (create
//! requested, responded), 2001 and 2022 (start responded, container running). Messages: microsoft/Windows-Containers#382,
//! microsoft/hcsshim#437. The layouts are inferred from these, so fields are found by type and name.
//! Does not: attribute a compute system to a sandbox.

use std::collections::BTreeSet;

use sandglass_etw::{EtwEvent, Guid, Value};
use sandglass_model::windows::{ActivityChange, ActivityStep, ObjectKey, Service, is_failure};
use sandglass_model::{Body, TextPairs};

use super::activities::ActivityNames;
use super::text::{bounded, guid_text, object_id};

/// Operations that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct ComputeSystems {
    /// By name of the operation and id of the compute system; at most [`MAX_BEGUN`].
    begun: BTreeSet<(&'static str, String)>,
}

impl ComputeSystems {
    /// The steps of operations in an event.
    pub(super) fn steps(&mut self, event: &EtwEvent, names: &ActivityNames) -> Vec<Body> {
        let Some(system) = system(event) else {
            return Vec::new();
        };
        let mut found = Steps {
            system,
            silo: None,
            steps: Vec::new(),
        };
        let result = result(event);
        match event.id {
            2010 => self.begin(&mut found, CREATE),
            2000 => self.end(&mut found, CREATE, result),
            // The container starts now; event 2022 reports its end.
            2001 if !result.is_some_and(is_failure) => self.begin(&mut found, START),
            2001 => self.end(&mut found, START, result),
            2022 => {
                found.silo = silo(event);
                self.end(&mut found, START, Some(0));
            }
            2003 => {
                if self.begun.contains(&(START, found.system.clone())) {
                    self.end(&mut found, START, None);
                }
                self.end(&mut found, "terminate compute system", result);
            }
            2500 => self.end(&mut found, "create process", result),
            _ => {}
        }
        found.steps.retain(|step| !names.is_ignored(Service::Hcs, &step.name));
        let steps = found.steps.into_iter();
        steps.map(|step| Body::ActivitySeen(Box::new(step))).collect()
    }

    /// Begins an operation, unless it runs already. A full table forgets an operation: its end then counts as one without a
    /// begin.
    fn begin(&mut self, found: &mut Steps, name: &'static str) {
        if self.begun.len() >= MAX_BEGUN {
            self.begun.pop_first();
        }
        if self.begun.insert((name, found.system.clone())) {
            found.step(name, ActivityChange::Started);
        }
    }

    /// Ends an operation. One without an observed begin gets both steps at once.
    fn end(&mut self, found: &mut Steps, name: &'static str, result: Option<u32>) {
        if !self.begun.remove(&(name, found.system.clone())) {
            found.step(name, ActivityChange::Started);
        }
        let message = String::new();
        found.step(name, ActivityChange::Stopped { result, message });
    }
}

/// The steps of one event.
struct Steps {
    /// Id of the compute system, which for a container of containerd is the container's id.
    system: String,
    /// GUID of its silo, where the event names one.
    silo: Option<String>,
    /// At most three: an operation that ends another one has its own begin and end.
    steps: Vec<ActivityStep>,
}

impl Steps {
    /// Adds a step of the operation `name`.
    fn step(&mut self, name: &str, step: ActivityChange) {
        let container = ObjectKey::Container(self.system.clone());
        self.steps.push(ActivityStep {
            service: Service::Hcs,
            name: name.to_owned(),
            // An operation's key is the system and the name.
            activity: self.system.clone(),
            related: String::new(),
            // The service's threads serve many systems in turn, so they identify nothing.
            pid: 0,
            tid: 0,
            step,
            keys: std::iter::once(container)
                .chain(self.silo.clone().map(ObjectKey::Silo))
                .collect(),
            fields: TextPairs::default(),
        });
    }
}

/// Id of the compute system: the first text, whatever the field's name.
fn system(event: &EtwEvent) -> Option<String> {
    let named = event.text("SystemId");
    let first = || event.fields.iter().find_map(|field| field.value.text());
    named
        .or_else(first)
        .filter(|id| !id.is_empty())
        .map(|id| bounded(id).to_lowercase())
}

/// The HRESULT of an event: by its usual name, else by any name that looks like one.
fn result(event: &EtwEvent) -> Option<u32> {
    event.code("Result").or_else(|| {
        let is_result = |name: &str| ["result", "errorcode", "status"].iter().any(|word| name.contains(word));
        let mut fields = event.fields.iter();
        let field = fields.find(|field| is_result(&field.name.to_ascii_lowercase()))?;
        event.code(&field.name)
    })
}

/// The silo of a container: a GUID, as such or as text.
fn silo(event: &EtwEvent) -> Option<String> {
    let guid = |value: &Value| match value {
        Value::Guid(guid) if !guid.is_zero() => Some(guid_text(*guid)),
        value => value.text().filter(|text| text.parse::<Guid>().is_ok()).map(object_id),
    };
    let mut fields = event.fields.iter().skip(1);
    let named = |name: &str| name.to_ascii_lowercase().contains("silo");
    let by_name = event.fields.iter().find(|field| named(&field.name));
    by_name
        .and_then(|field| guid(&field.value))
        .or_else(|| fields.find_map(|field| guid(&field.value)))
}

// Names of spans. The log has none for these pairs.
const CREATE: &str = "create compute system";
const START: &str = "start compute system";
/// Bound on begun operations; the smallest key is evicted.
const MAX_BEGUN: usize = 1_024;
