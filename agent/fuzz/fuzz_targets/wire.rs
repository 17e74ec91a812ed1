//! Records of the process and connect probes, as the kernel side writes them.
#![no_main]

#[path = "../src/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    wire::run(data);
});
