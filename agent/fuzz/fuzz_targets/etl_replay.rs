//! A whole replay: reader, normalizer, correlator, sinks; seeds are the stories of the agent's recordings.
#![no_main]

#[path = "../src/replay.rs"]
mod replay;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    replay::replay(data);
});
