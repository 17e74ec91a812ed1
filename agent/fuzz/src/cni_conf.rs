//! What the fuzz target of CNI configuration runs: a file, judged as each loader of each generation judges it.

use std::path::Path;

use sandglass::cni_conf::{Libcni, Loader, RuntimeKind, judge};

/// Judges the bytes as a list and as a single plugin.
pub fn run(data: &[u8]) {
    for runtime in [RuntimeKind::Containerd, RuntimeKind::Crio, RuntimeKind::Unknown] {
        for libcni in Libcni::ALL {
            let libcni = Some(libcni);
            for file in ["/nowhere/10-a.conflist", "/nowhere/10-a.conf"] {
                match judge(Path::new(file), data, Loader { runtime, libcni }) {
                    Ok(network) => {
                        assert!(!network.plugins.is_empty() && network.name.len() <= 256);
                        let all: usize = network.plugins.iter().map(|plugin| plugin.all().count()).sum();
                        assert!(all >= network.plugins.len());
                        let _ = (network.has_check(), network.has_status(), network.has_gc());
                    }
                    Err(error) => {
                        assert!(!error.to_string().is_empty());
                        let _ = (error.hint(), error.is_own_limit());
                    }
                }
            }
        }
    }
}
