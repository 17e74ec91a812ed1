//! A collector's answers over HTTP and gRPC, and bytes that are no HTTP/2 at all.
#![no_main]

#[path = "../src/collector.rs"]
mod collector;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    collector::run(data);
});
