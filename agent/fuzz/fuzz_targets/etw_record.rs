//! One record of any kind, as a live session gives it.
#![no_main]

#[path = "../src/bodies.rs"]
#[expect(dead_code, reason = "each target runs one of them")]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::record(data);
});
