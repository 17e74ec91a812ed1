//! The recording format: a header line, then one event on each line, all JSON.
//!
//! Used by `sandglass record`, `sandglass replay` and the golden tests. Events stand in the order in which the reorder
//! stage received them, ticks and the runtime's responses included, so that a replay gives the same traces byte for
//! byte. A line that is longer than [`MAX_LINE`] or cannot be parsed is an error of that line alone.
//! Does not: open files; it turns lines into values and back.

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::masking::Arguments;
use crate::time::ClockAnchor;

/// Version of the format; a reader refuses a newer one and upgrades an older one.
pub const VERSION: u32 = 1;

/// What the first line calls itself.
const FORMAT: &str = "sandglass";

/// Longest line that is read, in bytes.
pub const MAX_LINE: usize = 1 << 20;

/// First line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Always `sandglass`; distinguishes a recording from any other file of JSON lines.
    pub recording: String,
    /// Version of the format.
    pub version: u32,
    /// Version of the agent that wrote it.
    pub agent: String,
    /// `Linux` or `Windows`.
    pub os: String,
    /// Kernel release or Windows build.
    pub kernel: String,
    /// Machine architecture, as `uname -m`.
    pub machine: String,
    /// Node name, for the resource of replayed spans.
    pub node: String,
    /// Boot id of the node: part of the hash behind every trace id.
    pub boot_id: String,
    /// Both clocks when the recording began.
    pub clock: ClockAnchor,
    /// What of the node it holds; older recordings do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Holds>,
}

impl Header {
    /// The header of a recording of the present format. The other facts of the node are empty, for the caller to fill in.
    #[must_use]
    pub fn new(agent: &str, boot_id: String, clock: ClockAnchor) -> Header {
        Header {
            recording: FORMAT.to_owned(),
            version: VERSION,
            agent: agent.to_owned(),
            os: String::new(),
            kernel: String::new(),
            machine: String::new(),
            node: String::new(),
            boot_id,
            clock,
            holds: None,
        }
    }
}

/// What of the node a recording holds. Secrets outside of arguments are masked in every recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// How arguments of processes became part of it.
    pub arguments: Arguments,
    /// Names and addresses were replaced ([`crate::anonymize`]); otherwise it holds those of pods, networks and DNS.
    pub anonymized: bool,
}

/// Why a line of a recording was refused.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not a recording at all.
    #[error("not a sandglass recording: the first line is not its header")]
    NotARecording,
    /// Made by a newer agent.
    #[error("recording has format version {found}, this agent reads up to {VERSION}")]
    TooNew {
        /// The version it has.
        found: u32,
    },
    /// The line is not an event.
    #[error("not an event: {0}")]
    NotAnEvent(#[source] serde_json::Error),
    /// Longer than [`MAX_LINE`].
    #[error("longer than {MAX_LINE} bytes")]
    TooLong,
}

/// Reads the first line.
pub fn decode_header(line: &str) -> Result<Header, LineError> {
    if line.len() > MAX_LINE {
        return Err(LineError::TooLong);
    }
    #[derive(Deserialize)]
    struct Probe {
        recording: String,
        version: u32,
    }
    let probe: Probe = serde_json::from_str(line).map_err(|_| LineError::NotARecording)?;
    if probe.recording != FORMAT {
        return Err(LineError::NotARecording);
    }
    if probe.version > VERSION {
        return Err(LineError::TooNew { found: probe.version });
    }
    serde_json::from_str(line).map_err(|_| LineError::NotARecording)
}

/// Reads any other line.
pub fn decode_event(line: &str) -> Result<Event, LineError> {
    if line.len() > MAX_LINE {
        return Err(LineError::TooLong);
    }
    serde_json::from_str(line).map_err(LineError::NotAnEvent)
}

/// Writes a header or an event as one line, without its line feed.
pub fn encode<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    serde_json::to_string(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Body, Exec, Exit, ExitStatus};
    use crate::id::ProcessKey;
    use crate::time::Timestamp;

    #[test]
    fn events_survive_a_line() {
        let process = ProcessKey { pid: 7, start_ticks: 3 };
        for body in [
            Body::Tick,
            Body::ProcessExited(Exit {
                process,
                how: ExitStatus::Signal(9),
            }),
            Body::ProcessExecuted(Box::new(Exec {
                process,
                parent: ProcessKey { pid: 1, start_ticks: 0 },
                parent_comm: "containerd".into(),
                path: "/opt/cni/bin/bridge".into(),
                args: ["bridge"].into_iter().collect(),
                args_truncated: false,
                env: [("CNI_COMMAND", "ADD")].into_iter().collect(),
                cgroup: String::new(),
                netns: 4_026_531_840,
                counted: None,
                running: false,
            })),
        ] {
            let event = Event { at: Timestamp(5), body };
            let line = encode(&event).unwrap();
            assert_eq!(decode_event(&line).unwrap(), event, "{line}");
        }
    }

    #[test]
    fn what_is_not_a_recording_is_refused_with_the_reason() {
        assert!(matches!(decode_header("{}"), Err(LineError::NotARecording)));
        assert!(matches!(decode_header("\u{0}"), Err(LineError::NotARecording)));
        assert!(matches!(
            decode_header(r#"{"recording":"sandglass","version":99}"#),
            Err(LineError::TooNew { found: 99 })
        ));
        assert!(matches!(decode_event("{\"at\":1}"), Err(LineError::NotAnEvent(_))));
        assert!(matches!(
            decode_event(&" ".repeat(MAX_LINE + 1)),
            Err(LineError::TooLong)
        ));
    }
}
