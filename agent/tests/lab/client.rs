//! Programs that look names up: glibc's resolver, musl's, and a bare socket.
//!
//! Does not: check the answers; tests do.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

pub use super::query::query;
use super::{Lab, inside};

/// Resolves a name as glibc does, A and AAAA at once: `getent ahosts`. Returns its output.
pub fn glibc(lab: &Lab, name: &str) -> Output {
    lab.command(&lab.pod(), &["getent", "ahosts", name]).output().unwrap()
}

/// A program that resolves its arguments with musl's resolver; `None` when it cannot be built here.
pub fn musl(directory: &std::path::Path) -> Option<PathBuf> {
    let source = directory.join("resolve.rs");
    std::fs::write(
        &source,
        "use std::net::ToSocketAddrs;\n\
         fn main() { for name in std::env::args().skip(1) { println!(\"{:?}\", (name.as_str(), 0).to_socket_addrs().map(Vec::from_iter)); } }\n",
    )
    .unwrap();
    let program = directory.join("resolve");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let built = Command::new(rustc)
        .args(["--edition", "2021", "--target", "x86_64-unknown-linux-musl", "-o"])
        .args([&program, &source])
        .output();
    built.is_ok_and(|output| output.status.success()).then_some(program)
}

/// A socket of the pod, connected to a server.
pub fn socket(lab: &Lab, server: &str) -> UdpSocket {
    let server = server.to_owned();
    inside(&lab.pod(), move || {
        let any = if server.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect((server.as_str(), 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    })
}
