//! What the Host Compute Service says of its operations (Microsoft-Windows-Hyper-V-Compute, events 2000 to 2500).
//!
//! Matched by id. Most are single events, said when the service has answered; two pairs are an operation: 2010 and 2000
//! (create asked, and answered), 2001 and 2022 (start answered, and the container running). Messages: microsoft/
//! Windows-Containers#382, microsoft/hcsshim#437; the layouts are inferred, so that fields are found by what they are.
//! Does not: tell whose a compute system is.

use std::collections::BTreeSet;

use sandglass_etw::{EtwEvent, Guid, Value};
use sandglass_model::windows::{ActivityChange, ActivityStep, ObjectKey, Service, is_failure};
use sandglass_model::{Body, TextPairs};

use super::activities::ActivityNames;
use super::{bounded, guid_text, object_id};

/// Operations that have begun and not ended, as far as was told.
#[derive(Debug, Default)]
pub(super) struct ComputeSystems {
    begun: BTreeSet<(&'static str, String)>,
}

impl ComputeSystems {
    /// The steps of operations that an event is.
    pub(super) fn steps(&mut self, event: &EtwEvent, names: &ActivityNames) -> Vec<Body> {
        let Some(system) = system(event) else {
            return Vec::new();
        };
        let mut said = Said {
            system,
            silo: None,
            steps: Vec::new(),
        };
        let result = result(event);
        match event.id {
            2010 => self.begin(&mut said, CREATE),
            2000 => self.end(&mut said, CREATE, result),
            // From here on the container comes up; that is said apart.
            2001 if !result.is_some_and(is_failure) => self.begin(&mut said, START),
            2001 => self.end(&mut said, START, result),
            2022 => {
                said.silo = silo(event);
                self.end(&mut said, START, Some(0));
            }
            2003 => {
                if self.begun.contains(&(START, said.system.clone())) {
                    self.end(&mut said, START, None);
                }
                self.end(&mut said, "terminate compute system", result);
            }
            2500 => self.end(&mut said, "create process", result),
            _ => {}
        }
        said.steps.retain(|step| !names.is_ignored(Service::Hcs, &step.name));
        let steps = said.steps.into_iter();
        steps.map(|step| Body::ActivitySeen(Box::new(step))).collect()
    }

    fn begin(&mut self, said: &mut Said, name: &'static str) {
        if self.begun.len() >= MAX_BEGUN {
            self.begun.pop_first();
        }
        if self.begun.insert((name, said.system.clone())) {
            said.step(name, ActivityChange::Started);
        }
    }

    /// One whose begin was not told began when it ended.
    fn end(&mut self, said: &mut Said, name: &'static str, result: Option<u32>) {
        if !self.begun.remove(&(name, said.system.clone())) {
            said.step(name, ActivityChange::Started);
        }
        let message = String::new();
        said.step(name, ActivityChange::Stopped { result, message });
    }
}

/// What one event says.
struct Said {
    system: String,
    silo: Option<String>,
    steps: Vec<ActivityStep>,
}

impl Said {
    fn step(&mut self, name: &str, step: ActivityChange) {
        let container = ObjectKey::Container(self.system.clone());
        self.steps.push(ActivityStep {
            service: Service::Hcs,
            name: name.to_owned(),
            // Its operations are told apart by system and name.
            activity: self.system.clone(),
            related: String::new(),
            // The service's threads work on many systems in turn: they join nothing.
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

/// The compute system: the first text, whatever the field is called.
fn system(event: &EtwEvent) -> Option<String> {
    let named = event.text("SystemId");
    let first = || event.fields.iter().find_map(|field| field.value.text());
    named
        .or_else(first)
        .filter(|id| !id.is_empty())
        .map(|id| bounded(id).to_lowercase())
}

fn result(event: &EtwEvent) -> Option<u32> {
    event.code("Result").or_else(|| {
        let is_result = |name: &str| ["result", "errorcode", "status"].iter().any(|word| name.contains(word));
        let mut fields = event.fields.iter();
        let field = fields.find(|field| is_result(&field.name.to_ascii_lowercase()))?;
        event.code(&field.name)
    })
}

/// The silo that a container became: a GUID, as such or in text.
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

const CREATE: &str = "create compute system";
const START: &str = "start compute system";
const MAX_BEGUN: usize = 1_024;
