//! A file of CNI configuration, judged as each loader judges it; seeds are the configurations of the tree.
#![no_main]

#[path = "../src/cni_conf.rs"]
mod cni_conf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    cni_conf::run(data);
});
