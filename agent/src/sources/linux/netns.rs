//! Looks at the network namespace that a plugin is to work on: its inode number, and when its creation began.
//!
//! Used by the feed of the process probe, which requests a look at each ADD. A thread of its own, since looking at a path may
//! block; a request that finds the queue full is dropped, and its sandbox begins with its first plugin. All plugins of a
//! chain and their delegates work on the same namespace: only the first of them is looked at.
//! Looks go through `/proc/PID/root`, which takes CAP_SYS_PTRACE; without it a sandbox begins with its first plugin.
//! Does not: enter a namespace.

mod creation;
mod names;
pub mod older;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use sandglass_model::event::{Exec, Netns};
use sandglass_model::{Body, CniCommand, Event, SandboxId, Timestamp};

use self::creation::{begin, created_at};
use self::names::{NameStamps, NameWatch};
use super::known_namespaces::KnownNamespaces;
use super::process_root::{NODE_PIDS, metadata_in_root, open_in_root, path_in_root, sees_all_processes};
use super::runtime_times::RuntimeMeter;
use super::status::{attached, missing};
use crate::health::ProbeStatus;
use crate::scheduling;
use crate::sources::clock;
use crate::sources::queue::EventSender;

/// The sender of requests. Dropping it ends the thread.
#[derive(Debug)]
pub struct NetnsWatch {
    /// `None` while it is dropped.
    requests: Option<SyncSender<NamespaceRequest>>,
    thread: Option<JoinHandle<()>>,
    /// The newest request of each sandbox: its path, and when. At most [`REQUESTED_MAX`].
    requested: HashMap<String, (String, Timestamp)>,
    /// The watch of names, or why there is none: sandboxes then begin with the age of their namespace.
    names: io::Result<NameWatch>,
}

/// A look to be taken.
#[derive(Debug)]
struct NamespaceRequest {
    /// The caller of the plugin, then the plugin. When a process ends, the kernel frees every entry below `/proc/PID` that was
    /// looked up (kernel/exit.c, release_task), in the time of whoever waits for it; so the runtime, which stays, comes first.
    pids: [u32; 2],
    sandbox: SandboxId,
    /// The value of `CNI_NETNS`, as the runtime sees it.
    path: String,
    /// When the plugin was executed: an inode that is younger was made by a look.
    requested: Timestamp,
}

impl NetnsWatch {
    /// Starts the thread, which adds what it finds to `known`. Names that runtimes make and remove are sent as events. `directories` are those where runtimes may name namespaces;
    /// others are watched from the first namespace there on. At each name `meter` measures the runtime.
    ///
    /// # Errors
    /// When the node is out of threads.
    pub fn start(
        sender: EventSender,
        known: KnownNamespaces,
        directories: &[String],
        meter: Option<RuntimeMeter>,
    ) -> io::Result<NetnsWatch> {
        // In another pid namespace a runtime's plugins may be refused (`plugins.trust`): that none ran says nothing there.
        let reports = sees_all_processes().then(|| sender.clone());
        let watch = NameWatch::start(reports, meter);
        let names = watch.as_ref().ok().map(NameWatch::names);
        for directory in directories {
            watch_names(names.as_deref(), &NODE_PIDS, directory);
        }
        let (requests, queue) = sync_channel(QUEUE_MAX);
        let thread = Builder::new()
            .name("netns".to_owned())
            .spawn(move || serve(&queue, &sender, &known, names.as_deref()))?;
        Ok(NetnsWatch {
            requests: Some(requests),
            thread: Some(thread),
            requested: HashMap::new(),
            names: watch,
        })
    }

    /// Whether the agent may look at other processes' file systems, and watch names.
    pub fn status(&self) -> ProbeStatus {
        // Only the try shows it: ptrace's rules are those of the kernel and of a security module (ptrace(2), "Ptrace access
        // mode checking").
        let look = |pid| fs::metadata(path_in_root(pid, "/"));
        let refused = look(NODE_PIDS[0]).or_else(|_| look(NODE_PIDS[1])).err();
        status(refused.as_ref(), self.names.as_ref().err())
    }

    /// Requests a look for a plugin that was executed at `at`, if it is an ADD that names a namespace, and the first of its
    /// chain. Never blocks: it is called between two records of the process probe.
    pub fn request(&mut self, exec: &Exec, at: Timestamp) {
        let (Some(path), Some(sandbox)) = (exec.env("CNI_NETNS"), exec.env("CNI_CONTAINERID")) else {
            return;
        };
        let command = exec.env("CNI_COMMAND");
        if command == Some(CniCommand::Del.as_str()) {
            // The next namespace may have the same path.
            self.requested.remove(sandbox);
        }
        if command != Some(CniCommand::Add.as_str()) || path.is_empty() || sandbox.is_empty() {
            return;
        }
        let same = |(before, when): &(String, Timestamp)| before == path && at.since(*when) < AGAIN_AFTER_NS;
        if self.requested.get(sandbox).is_some_and(same) {
            return;
        }
        let request = NamespaceRequest {
            pids: [exec.parent.pid, exec.process.pid],
            sandbox: SandboxId(sandbox.to_owned()),
            path: path.to_owned(),
            requested: at,
        };
        let Some(requests) = &self.requests else { return };
        if requests.try_send(request).is_ok() {
            // Without the entries a few namespaces are looked at twice.
            if self.requested.len() >= REQUESTED_MAX {
                self.requested.clear();
            }
            self.requested.insert(sandbox.to_owned(), (path.to_owned(), at));
        }
    }
}

impl Drop for NetnsWatch {
    fn drop(&mut self) {
        // The thread ends when the queue is empty and its sender gone.
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread: one look after another until the sender is dropped. It gives way to the plugins that it observes.
fn serve(
    queue: &Receiver<NamespaceRequest>,
    sender: &EventSender,
    known: &KnownNamespaces,
    names: Option<&NameStamps>,
) {
    scheduling::give_way();
    while let Ok(request) = queue.recv() {
        let Some(netns) = look(request, names) else { continue };
        known.add(netns.inode, &netns.path);
        let event = Event {
            at: clock::now(),
            body: Body::NetnsObserved(Box::new(netns)),
        };
        if sender.send(event).is_err() {
            return;
        }
    }
}

/// Inode and begin of a namespace; `None` when its path leads nowhere any more. The path is resolved within the root of the
/// caller or the plugin: a runtime may run in a mount namespace of its own.
fn look(request: NamespaceRequest, names: Option<&NameStamps>) -> Option<Netns> {
    let seen = request
        .pids
        .iter()
        .find_map(|pid| metadata_in_root(*pid, &request.path))
        .or_else(|| fs::metadata(&request.path).ok())?;
    let there = created_at(&seen, &request.path, request.requested);
    let begun = request.path.rsplit_once('/').and_then(|(directory, name)| {
        watch_names(names, &request.pids, directory);
        names?.made(directory, name)
    });
    let (created, there) = begin(begun, there, request.requested);
    Some(Netns {
        sandbox: request.sandbox,
        path: request.path,
        inode: seen.ino(),
        created,
        there,
    })
}

/// Watches a directory, if it exists and is not watched yet. Without the watch a sandbox begins when its namespace is there.
fn watch_names(names: Option<&NameStamps>, pids: &[u32], directory: &str) {
    let Some(names) = names else { return };
    if !directory.is_empty() && !directory.starts_with("/proc/") && !names.watches(directory) {
        let opened = pids.iter().find_map(|pid| open_in_root(*pid, directory).ok());
        let _ = opened.map(|opened| names.watch(directory, opened.as_fd()));
    }
}

/// What does not work is reported with its effect on traces, the graver one alone.
fn status(refused: Option<&io::Error>, unwatched: Option<&io::Error>) -> ProbeStatus {
    if let Some(error) = refused {
        let consequence = format!(
            "a sandbox begins with its first plugin, and plugins that run already are not picked up: cannot look at \
             /proc/PID/root: {error}"
        );
        let hint = "needs CAP_SYS_PTRACE, and where AppArmor or SELinux confine containers a profile that allows it";
        return missing(PROBE, consequence, hint);
    }
    let Some(error) = unwatched else {
        return attached(PROBE, "/proc/PID/root, inotify");
    };
    ProbeStatus {
        consequence: format!(
            "a sandbox begins when its network namespace is there, not when the runtime begins to make it: cannot watch \
             its directory: {error}"
        ),
        hint: "the node's users have used up inotify: raise fs.inotify.max_user_instances".to_owned(),
        ..attached(PROBE, "/proc/PID/root")
    }
}

/// Name of the probe, on the health page and in `sandglass doctor`.
const PROBE: &str = "netns";
/// Looks that may be pending: more sandboxes than are in creation at once.
const QUEUE_MAX: usize = 1024;
/// More sandboxes than are in creation at once. A DEL removes its entry, so it fills only with sandboxes that never see one;
/// then it is cleared.
const REQUESTED_MAX: usize = 1024;
/// The next plugin of a chain comes sooner; where it does not, there is time for another look.
const AGAIN_AFTER_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests;
