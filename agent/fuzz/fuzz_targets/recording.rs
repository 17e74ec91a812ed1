//! The lines of a recording, through pipeline and sinks; seeds are the recordings of the tree.
#![no_main]

#[path = "../src/recorded.rs"]
mod recorded;
#[path = "../src/replay.rs"]
#[expect(dead_code, reason = "files of Windows have a target of their own")]
mod replay;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    recorded::run(data);
});
