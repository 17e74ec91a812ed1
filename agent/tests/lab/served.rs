//! The real binary serving a recording on a free port of loopback, until it is dropped.
//!
//! Used by the tests of the command line and of dashboards, on any operating system. Does not: ask it anything.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An agent that serves a recording.
pub struct Served {
    pub address: SocketAddr,
    process: Child,
}

impl Served {
    pub fn start(recording: &Path) -> Served {
        let mut process = Command::new(env!("CARGO_BIN_EXE_sandglass"))
            .args(["replay", "--print", "nothing", "--serve", "--listen", "127.0.0.1:0"])
            .arg(recording)
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("{line:?} names no address"));
        Served {
            address: address.parse().unwrap(),
            process,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
