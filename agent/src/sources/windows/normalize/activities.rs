//! Activities of HNS, HCS and the container library: start and stop events of the Windows Implementation Libraries (WIL).
//!
//! Their shape is that of microsoft/wil `include/wil/Tracelogging.h`: opcode 1 starts, opcode 2 stops with a result. Their
//! names vary by Windows build and are undocumented, so the code matches the shape only; a table of names, to which a user can
//! add, says which activities to ignore. Does not: know what an activity does.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sandglass_etw::{EtwEvent, Value};
use sandglass_model::windows::{ActivityChange, ActivityStep, ObjectKey, Service};
use sandglass_model::{Body, TextPairs};

use super::text::{bounded, guid_text, masked, object_id};
use crate::failure::{Advice, ExitReason};

/// Activity names to ignore, from a table of three columns: service, name, and `span` or `ignore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityNames {
    /// By service and name; `false` for a name that is to be shown although an earlier table ignores it.
    ignored: BTreeMap<(Service, String), bool>,
}

/// A malformed line of a table of activity names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct NamesError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: &'static str,
}

/// Why a user's table of activity names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NamesFileError {
    /// It cannot be read.
    #[error("cannot read the activity names in {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line is malformed.
    #[error("activity names in {}: {source}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// The line, and what is wrong with it.
        #[source]
        source: NamesError,
    },
}

impl Advice for NamesFileError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            NamesFileError::Read { .. } => "windows.activities gives the path of a text file of three columns",
            NamesFileError::Line { .. } => "write `hns<TAB>Name<TAB>span` or `hns<TAB>Name<TAB>ignore`",
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        ExitReason::Usage
    }
}

impl Default for ActivityNames {
    /// The built-in names.
    fn default() -> ActivityNames {
        let mut names = ActivityNames {
            ignored: BTreeMap::new(),
        };
        // The table is part of the agent; a test parses it.
        let _ = names.add(include_str!("activities.tsv"));
        names
    }
}

impl ActivityNames {
    /// The built-in names and those of a user's file.
    ///
    /// # Errors
    ///
    /// [`NamesFileError`] if the file cannot be read, is larger than 1 MiB, or has a malformed line.
    pub fn with_file(path: Option<&Path>) -> Result<ActivityNames, NamesFileError> {
        let mut names = ActivityNames::default();
        if let Some(path) = path {
            let read = |source| NamesFileError::Read {
                path: path.to_owned(),
                source,
            };
            let mut table = String::new();
            File::open(path)
                .and_then(|file| file.take(MAX_TABLE_BYTES + 1).read_to_string(&mut table))
                .map_err(read)?;
            if table.len() as u64 > MAX_TABLE_BYTES {
                return Err(read(std::io::Error::other(format!(
                    "more than {MAX_TABLE_BYTES} bytes are no table of names"
                ))));
            }
            names.add(&table).map_err(|source| NamesFileError::Line {
                path: path.to_owned(),
                source,
            })?;
        }
        Ok(names)
    }

    /// Adds a table; its lines replace earlier ones of the same name. Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    ///
    /// [`NamesError`] for the first malformed line. The lines before it have been added.
    pub fn add(&mut self, table: &str) -> Result<(), NamesError> {
        // Editors on Windows begin a file with a byte order mark.
        let table = table.strip_prefix('\u{feff}').unwrap_or(table);
        for (index, line) in table.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |reason| NamesError {
                line: index + 1,
                reason,
            };
            let mut columns = line.split('\t');
            let service = match columns.next() {
                Some("hns") => Service::Hns,
                Some("hcs") => Service::Hcs,
                Some("silo") => Service::Silo,
                _ => return Err(bad("the first column is not hns, hcs or silo")),
            };
            let name = columns.next().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| bad("the second column, the name, is empty"))?;
            let ignore = match columns.next() {
                Some("span") => false,
                Some("ignore") => true,
                _ => return Err(bad("the third column is not span or ignore")),
            };
            self.ignored.insert((service, name.to_owned()), ignore);
        }
        Ok(())
    }

    /// Whether the table says to ignore the name. A name that no table has is shown: a new activity of a Windows build is
    /// what a user looks for.
    pub(super) fn is_ignored(&self, service: Service, name: &str) -> bool {
        self.ignored.get(&(service, name.to_owned())).copied().unwrap_or(false)
    }
}

/// The step of an activity.
pub(super) fn activity(service: Service, event: &EtwEvent, names: &ActivityNames) -> Option<Body> {
    let name = event.name.as_deref()?;
    if names.is_ignored(service, name) {
        return None;
    }
    // WIL names it `hresult`; the container library and HCS have their own names for the same.
    let result = ["hresult", "result", "resultCode"]
        .iter()
        .find_map(|field| event.code(field));
    let message = event.text("message").map(masked).unwrap_or_default();
    // Opcodes WINEVENT_OPCODE_START, .._STOP and .._INFO (winmeta.h).
    let step = match event.opcode {
        1 => ActivityChange::Started,
        // The activity object was destroyed without a result.
        2 if name == "ActivityStoppedAutomatically" => ActivityChange::Stopped { result: None, message },
        2 => ActivityChange::Stopped {
            result: Some(result.unwrap_or(0)),
            message,
        },
        _ => ActivityChange::Noted { result, message },
    };
    let activity = if event.activity.is_zero() {
        String::new()
    } else {
        guid_text(event.activity)
    };
    Some(Body::ActivitySeen(Box::new(ActivityStep {
        service,
        name: bounded(name),
        activity,
        related: event
            .related_activity
            .filter(|related| !related.is_zero())
            .map(guid_text)
            .unwrap_or_default(),
        pid: event.pid,
        tid: event.u32("threadId").unwrap_or(event.tid),
        step,
        keys: keys(event),
        fields: fields(event),
    })))
}

/// Ids of objects in an event, found by the names of its fields, case aside: the same object has different field names in HNS,
/// HCS and the container library. An IPv6 address space of HNS has its network's id with `_v6` behind it.
fn keys(event: &EtwEvent) -> Vec<ObjectKey> {
    let mut keys = Vec::new();
    for field in &event.fields {
        let name = field.name.to_ascii_lowercase();
        let text = || match &field.value {
            Value::Guid(guid) if !guid.is_zero() => Some(guid_text(*guid)),
            value => value.text().filter(|text| !text.is_empty()).map(object_id),
        };
        let number = || field.value.u64();
        let key = match name.as_str() {
            "namespaceid" | "namespaceguid" | "hostcomputenamespace" => text().map(ObjectKey::Namespace),
            "endpointid" | "endpoint" => text().map(ObjectKey::Endpoint),
            "portid" | "portname" => text().map(ObjectKey::Port),
            "networkid" | "spaceid" => text().map(|id| ObjectKey::Network(id.trim_end_matches("_v6").to_owned())),
            "computesystemid" | "containerid" | "systemid" => text().map(ObjectKey::Container),
            "containertelemetryid" | "siloid" => text().map(ObjectKey::Silo),
            "jobid" => number().and_then(|id| id.try_into().ok()).map(ObjectKey::Job),
            "operationid" => number().map(ObjectKey::Operation),
            "compartmentid" | "compartment" => number().and_then(|id| id.try_into().ok()).map(ObjectKey::Compartment),
            _ => None,
        };
        keys.extend(key);
    }
    keys.truncate(MAX_KEYS);
    keys
}

/// Fields shown as attributes of an activity: those that distinguish two activities of one name. Other fields are left out:
/// they are many, undocumented, and may hold anything.
fn fields(event: &EtwEvent) -> TextPairs {
    let mut pairs = TextPairs::default();
    for name in [
        "method",
        "apiName",
        "callContext",
        "module",
        "function",
        "type",
        "layerId",
    ] {
        match event.get(name) {
            Some(Value::Text(text)) => pairs.push(name, &masked(text)),
            Some(value) => {
                if let Some(number) = value.u64() {
                    pairs.push(name, &number.to_string());
                }
            }
            None => {}
        }
    }
    pairs
}

/// Activities name at most a handful of objects; the rest of a longer list would be repetitions.
const MAX_KEYS: usize = 8;
/// A file is given by path, and may be anything.
const MAX_TABLE_BYTES: u64 = 1 << 20;
