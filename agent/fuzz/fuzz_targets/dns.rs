//! DNS over UDP and TCP as the probe records it: segments in any order, lost, again, with any bytes in them.
#![no_main]

#[path = "../src/dns.rs"]
mod dns;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dns::run(data);
});
