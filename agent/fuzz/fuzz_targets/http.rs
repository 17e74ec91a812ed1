//! Requests to the agent's server, over a real connection.
#![no_main]

#[path = "../src/requests.rs"]
mod requests;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    requests::run(data);
});
