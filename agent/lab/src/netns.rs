//! Network namespaces of a test's own, and work in them.
//!
//! Used by the traffic tests and by the demo. Where making one fails the functions report it; what a test runs in one must
//! succeed, or they panic. Does not: touch a namespace that it did not make.
#![expect(clippy::unwrap_used, reason = "test code")]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::skip::{has, skipped};

/// Runs `work` on a thread of its own in the network namespace at `path`, and waits for it. Sockets that it opens stay in
/// that namespace, and so do the threads that it starts. A panic of `work` goes on in the caller.
///
/// # Errors
/// When the namespace cannot be opened or entered.
pub fn within<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            // Open, it would keep the namespace alive.
            drop(namespace);
            Ok(work())
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Runs `ip` (iproute2).
///
/// # Errors
/// What it printed when it failed.
pub fn ip(arguments: &[&str]) -> Result<(), String> {
    succeeded(Command::new("ip").args(arguments)).map(|_| ())
}

/// Runs a program to its end.
///
/// # Errors
/// When it cannot be started or fails, with what it printed.
pub fn succeeded(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{command:?}: {}", words.trim())),
    }
}

/// Makes the namespace of this name, with its loopback up, and without the delay for duplicate address detection (RFC 4862,
/// section 5.4) on interfaces to come.
///
/// # Errors
/// When it exists, or cannot be made.
pub fn add(name: &str) -> Result<(), String> {
    ip(&["netns", "add", name])?;
    ip(&["-n", name, "link", "set", "lo", "up"])?;
    for which in ["all", "default"] {
        let write = format!("echo 0 > /proc/sys/net/ipv6/conf/{which}/accept_dad");
        succeeded(&mut command(name, &["sh", "-c", &write]))?;
    }
    Ok(())
}

/// A program to be run in the namespace of this name.
#[must_use]
pub fn command(namespace: &str, program: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).args(program);
    command
}

/// A network namespace of a test's own, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    /// Its name in `/run/netns`.
    pub name: String,
    /// Its inode in nsfs.
    pub inode: u64,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Namespace {
    /// A new one, named after this process; `None`, with a `SKIPPED` line, where this machine does not allow it.
    #[must_use]
    pub fn make(test: &str) -> Option<Namespace> {
        if !["ip", "nft"].iter().all(|tool| has(test, tool)) {
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sg{}-{number}", std::process::id());
        if let Err(why) = add(&name) {
            skipped(test, &format!("no network namespace can be made: {why}"));
            return None;
        }
        let inode = std::fs::metadata(format!("/run/netns/{name}")).unwrap().ino();
        Some(Namespace { name, inode })
    }

    /// Where it is bound.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Runs a shell command in it, which must succeed; returns what it printed.
    pub fn run(&self, shell: &str) -> String {
        let output = succeeded(&mut self.command(shell)).unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A shell command to be run in it.
    #[must_use]
    pub fn command(&self, shell: &str) -> Command {
        // No `exec`: some of what is started is a pipeline.
        command(&self.name, &["sh", "-ec", shell])
    }

    /// Runs `work` on a thread of its own that is in the namespace, and so are the threads it starts.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        within(self.path().as_ref(), work).unwrap()
    }

    /// A link to another namespace: devices `v<net>a` here and `v<net>b` there, addresses `10.77.net.1` and `.2` (and
    /// `fd77:net::1`, `::2`).
    pub fn link(&self, other: &Namespace, net: u8) {
        let (device, peer) = (format!("v{net}a"), format!("v{net}b"));
        self.run(&format!(
            "ip link add {device} type veth peer name {peer} netns {}",
            other.name
        ));
        for (namespace, device, host) in [(self, &device, 1), (other, &peer, 2)] {
            namespace.run(&format!(
                "ip addr add 10.77.{net}.{host}/24 dev {device}; \
                 ip addr add fd77:{net}::{host}/64 dev {device} nodad; ip link set {device} up"
            ));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = ip(&["netns", "del", &self.name]);
    }
}
