//! What the fuzz target of recordings runs: lines, as the replay reads them, through pipeline and sinks.

use sandglass_correlator::CorrelatorConfig;
use sandglass_model::recording;

use super::replay::through;

/// Replays the lines; those that are no events are skipped.
pub fn run(data: &[u8]) {
    let mut lines = data
        .split(|byte| *byte == b'\n')
        .filter_map(|line| str::from_utf8(line).ok())
        .peekable();
    let header = lines.peek().and_then(|line| recording::decode_header(line).ok());
    let mut config = CorrelatorConfig::default();
    if let Some(header) = header {
        config.boot_id = header.boot_id;
        config.anchor = header.clock;
    }
    let mut events = lines.filter_map(|line| recording::decode_event(line).ok());
    through(config, || events.next());
}
