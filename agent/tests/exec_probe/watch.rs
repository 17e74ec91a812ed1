//! A running process probe and everything it has sent, and the calls of plugins that a test makes.
//!
//! Used by every test beside it. Does not: judge.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::gauge::Gauge;
use sandglass::app::settings::default_source;
use sandglass::health::Health;
use sandglass::sources;
use sandglass::sources::linux::{LinuxOptions, LinuxSource};
use sandglass_model::event::{Exec, Exit, Netns, PluginIo};
use sandglass_model::{Body, Event, ProcessKey, Timestamp};
use tempfile::TempDir;

use crate::collected::{Collected, started};

/// Held by a test whose own process answers plugins, since what a daemon starts is followed whoever starts it, and by tests whose
/// processes claim falsely to be plugins.
static ANSWERS: Mutex<()> = Mutex::new(());

/// Waits for the turn of such a test.
pub fn answering() -> MutexGuard<'static, ()> {
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running source and everything it has sent.
pub struct Watch {
    pub source: Option<LinuxSource>,
    events: Collected,
    pub health: Health,
    pub directory: TempDir,
}

impl Watch {
    /// Starts the source; prints `SKIPPED` and returns `None` where that is not possible.
    pub fn start(test: &str) -> Option<Watch> {
        Watch::with(test, default_source().unwrap())
    }

    pub fn with(test: &str, options: LinuxOptions) -> Option<Watch> {
        let health = Health::default();
        let began = Instant::now();
        let (sender, receiver) = sources::channel(64, Gauge::default());
        let source = started(test, sources::linux::start(options, sender, health.clone()))?;
        eprintln!("{test}: attached in {:?}", began.elapsed());
        let watch = Watch {
            source: Some(source),
            events: Collected::from(receiver),
            health,
            directory: tempfile::tempdir().unwrap(),
        };
        // The ring thread runs once it has sent the first clock anchor.
        watch.wait("the first anchor", |events| {
            events
                .iter()
                .find(|event| matches!(event.body, Body::ClockAnchored { .. }))
                .map(|_| ())
        });
        Some(watch)
    }

    /// Waits until `find` finds something among the events.
    pub fn wait<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        self.events.wait(what, find)
    }

    pub fn exec_of(&self, pid: u32) -> (Timestamp, Exec) {
        self.wait(&format!("exec of {pid}"), |events| {
            execs(events).find(|(_, exec)| exec.process.pid == pid)
        })
    }

    pub fn exit_of(&self, process: ProcessKey) -> (Timestamp, Exit) {
        self.wait(&format!("exit of {process:?}"), |events| {
            events.iter().find_map(|event| match &event.body {
                Body::ProcessExited(exit) if exit.process == process => Some((event.at, *exit)),
                _ => None,
            })
        })
    }

    pub fn reads_pipes(&self, test: &str) -> bool {
        let stdio = self
            .health
            .probes()
            .into_iter()
            .find(|probe| probe.probe == "stdio")
            .unwrap();
        if !stdio.attached {
            eprintln!("SKIPPED {test}: {}", stdio.consequence);
        }
        stdio.attached
    }

    pub fn netns_of(&self, sandbox: &str) -> Netns {
        self.wait(&format!("netns of {sandbox}"), |events| {
            events.iter().find_map(|event| match &event.body {
                Body::NetnsObserved(netns) if netns.sandbox.0 == sandbox => Some(Netns::clone(netns)),
                _ => None,
            })
        })
    }

    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Stops the source and returns all it sent.
    pub fn finish(mut self) -> Vec<Event> {
        self.source.take().unwrap().stop();
        self.events.all()
    }
}

pub fn execs(events: &[Event]) -> impl Iterator<Item = (Timestamp, Exec)> {
    events.iter().filter_map(|event| match &event.body {
        Body::ProcessExecuted(exec) => Some((event.at, (**exec).clone())),
        _ => None,
    })
}

/// A plugin call as a runtime makes it, for sandbox `id`.
pub fn plugin(path: &Path, id: &str) -> Command {
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", id)
        .env("CNI_NETNS", "/var/run/netns/none")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

pub fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')')
        .next()
        .unwrap()
        .split_ascii_whitespace()
        .nth(19)
        .unwrap()
        .parse()
        .unwrap()
}

pub fn wait_for(mut child: Child) {
    child.wait().unwrap();
}

/// Runs a plugin as libcni does: the configuration through a pipe, the answer read while it runs.
pub fn converse(mut command: Command, stdin: &str) -> (u32, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut answer = String::new();
    let mut stdout = child.stdout.take().unwrap();
    let mut into = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = into.write_all(stdin.as_bytes());
        });
        stdout.read_to_string(&mut answer).unwrap();
    });
    wait_for(child);
    (pid, answer)
}

pub fn spoken(events: &[Event], pid: u32) -> Option<(Timestamp, PluginIo)> {
    events.iter().find_map(|event| match &event.body {
        Body::PluginIoRead(spoken) if spoken.process.pid == pid => Some((event.at, PluginIo::clone(spoken))),
        _ => None,
    })
}
