//! A whole `.etl` file; seeds are the samples of the etw crate.
#![no_main]

#[path = "../src/bodies.rs"]
#[expect(dead_code, reason = "each target runs one of them")]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::etl(data);
});
