//! Looks at the network namespace a plugin was asked to work on: its inode number, and when it was created. The same of
//! a sandbox that is older than the agent, whose runtime tells where its namespace is.
//!
//! A thread of its own, because looking at a path may block; requests that find its queue full are passed over. Plugins of
//! one chain, and their delegates, are asked to work on the same namespace: it is looked at for the first of them.
//! Creation time is the change time of the namespace's inode in nsfs, which the kernel sets when the namespace is first
//! given a name (a bind mount or a look at `/proc/PID/ns/net`): for runtimes that is right after they create it. Where
//! that cannot be so (a path below `/proc`, or an inode made by this very look) no time is reported.
//! Does not: enter a namespace.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use sandglass_model::event::{Exec, Netns};
use sandglass_model::{Body, CniCommand, Event, SandboxId, Timestamp};

use super::conntrack::KnownNamespaces;
use crate::health::ProbeStatus;
use crate::scheduling;
use crate::sources::{EventSender, NamespaceLook, NamespacePlace, clock};

/// The thread's end for requests; the thread ends when it is dropped.
#[derive(Debug)]
pub struct NetnsWatch {
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
    /// Of each sandbox the path that was asked about last, and when.
    asked: HashMap<String, (String, Timestamp)>,
}

#[derive(Debug)]
struct Request {
    /// Who executed the plugin, and the plugin: whatever was looked up below `/proc/PID` the kernel puts away when that process
    /// ends, in the time of whoever waits for it, so the runtime, which stays, goes first.
    pids: [u32; 2],
    sandbox: SandboxId,
    path: String,
    asked: Timestamp,
}

impl NetnsWatch {
    /// Starts the thread. What it finds is also added to `known`.
    pub fn start(sender: EventSender, known: KnownNamespaces) -> io::Result<NetnsWatch> {
        let (requests, queue) = sync_channel(QUEUE_MAX);
        let thread = Builder::new()
            .name("netns".to_owned())
            .spawn(move || answer(&queue, &sender, &known))?;
        Ok(NetnsWatch {
            requests: Some(requests),
            thread: Some(thread),
            asked: HashMap::new(),
        })
    }

    /// Asks about the namespace of a plugin that was executed at `at`, if it is an ADD that names one and its chain's first.
    pub fn ask(&mut self, exec: &Exec, at: Timestamp) {
        let (Some(path), Some(sandbox)) = (exec.env("CNI_NETNS"), exec.env("CNI_CONTAINERID")) else {
            return;
        };
        let command = exec.env("CNI_COMMAND");
        if command == Some(CniCommand::Del.as_str()) {
            // Another may come to the same place.
            self.asked.remove(sandbox);
        }
        if command != Some(CniCommand::Add.as_str()) || path.is_empty() || sandbox.is_empty() {
            return;
        }
        let same = |(before, when): &(String, Timestamp)| before == path && at.since(*when) < AGAIN_AFTER_NS;
        if self.asked.get(sandbox).is_some_and(same) {
            return;
        }
        let request = Request {
            pids: [exec.parent.pid, exec.process.pid],
            sandbox: SandboxId(sandbox.to_owned()),
            path: path.to_owned(),
            asked: at,
        };
        let Some(requests) = &self.requests else { return };
        if requests.try_send(request).is_ok() {
            // Forgetting all merely lets a few be asked about twice.
            if self.asked.len() >= ASKED_MAX {
                self.asked.clear();
            }
            self.asked.insert(sandbox.to_owned(), (path.to_owned(), at));
        }
    }
}

impl Drop for NetnsWatch {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(queue: &Receiver<Request>, sender: &EventSender, known: &KnownNamespaces) {
    scheduling::give_way();
    while let Ok(request) = queue.recv() {
        let Some(netns) = look(request) else { continue };
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

fn look(request: Request) -> Option<Netns> {
    let seen = request
        .pids
        .iter()
        .find_map(|pid| seen_by(*pid, &request.path))
        .or_else(|| fs::metadata(&request.path).ok())?;
    let created = creation(&seen, &request.path, request.asked);
    Some(Netns {
        sandbox: request.sandbox,
        path: request.path,
        inode: seen.ino(),
        created,
    })
}

/// Looks at namespaces of sandboxes that are older than the agent. What it finds is also added to `known`.
pub fn look_at_older(known: KnownNamespaces) -> NamespaceLook {
    NamespaceLook::new(move |place| {
        let netns = by_path(place).or_else(|| by_process(place))?;
        known.add(netns.inode, &netns.path);
        Some(netns)
    })
}

/// At the path, in the node's view of the file system. Where a namespace was, a file may be left.
fn by_path(place: &NamespacePlace) -> Option<Netns> {
    if place.path.is_empty() {
        return None;
    }
    let seen = NODE_PIDS.iter().find_map(|pid| seen_by(*pid, &place.path));
    let seen = seen.or_else(|| fs::metadata(&place.path).ok())?;
    let own = fs::metadata("/proc/self/ns/net").ok()?;
    (seen.dev() == own.dev()).then(|| Netns {
        sandbox: place.sandbox.clone(),
        path: place.path.clone(),
        inode: seen.ino(),
        created: creation(&seen, &place.path, clock::now()),
    })
}

/// That of its process. Its age cannot be told: this look may be what makes the inode.
fn by_process(place: &NamespacePlace) -> Option<Netns> {
    let path = format!("/proc/{}/ns/net", place.pid);
    let seen = (place.pid != 0).then(|| fs::metadata(&path).ok()).flatten()?;
    Some(Netns {
        sandbox: place.sandbox.clone(),
        path,
        inode: seen.ino(),
        created: None,
    })
}

/// When the namespace was created, where that can be trusted.
fn creation(seen: &fs::Metadata, path: &str, asked: Timestamp) -> Option<Timestamp> {
    let unix_ns = u64::try_from(seen.ctime()).ok()? * 1_000_000_000 + u64::try_from(seen.ctime_nsec()).ok()?;
    let created = clock::anchor().boot(unix_ns);
    (!path.starts_with("/proc/") && created < asked).then_some(created)
}

fn seen_by(pid: u32, path: &str) -> Option<fs::Metadata> {
    let root = in_root_of(pid, "/");
    let seen = below(Path::new(&root), path);
    // Before 5.6, and for links that only /proc has.
    seen.or_else(|_| fs::metadata(in_root_of(pid, path))).ok()
}

/// `path` with `root` as the root, which also counts for the links in it: `/var/run` leads to `/run`, and from inside a
/// container that would be the container's.
fn below(root: &Path, path: &str) -> io::Result<fs::Metadata> {
    let how = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, how | OFlags::DIRECTORY, Mode::empty())?;
    let file = rustix::fs::openat2(root, path, how, Mode::empty(), ResolveFlags::IN_ROOT)?;
    fs::File::from(file).metadata()
}

/// The first processes stand for the node: the kernel's own one, which no security module sets apart, and where there is
/// none (another pid namespace) the first of all.
const NODE_PIDS: [u32; 2] = [2, 1];

/// Whether other processes' view of the file system may be looked at.
#[must_use]
pub fn status() -> ProbeStatus {
    let look = |pid| fs::metadata(in_root_of(pid, "/"));
    let refused = look(NODE_PIDS[0]).or_else(|_| look(NODE_PIDS[1])).err();
    let mut status = ProbeStatus {
        probe: "netns".to_owned(),
        hook: "/proc/PID/root".to_owned(),
        attached: refused.is_none(),
        consequence: String::new(),
        hint: String::new(),
    };
    if let Some(error) = refused {
        status.hook = "none".to_owned();
        status.consequence = format!(
            "a sandbox begins with its first plugin, and plugins that run already are not picked up: cannot look at \
             /proc/PID/root: {error}"
        );
        status.hint = "needs CAP_SYS_PTRACE, and where AppArmor or SELinux confine containers a profile that allows it"
            .to_owned();
    }
    status
}

/// `path` as the process sees it.
pub fn in_root_of(pid: u32, path: &str) -> String {
    format!("/proc/{pid}/root/{}", path.trim_start_matches('/'))
}

const QUEUE_MAX: usize = 1024;
/// More than are in creation at once.
const ASKED_MAX: usize = 1024;
/// A chain's next plugin comes sooner, but for slow ones: those are looked at again, for there is time.
const AGAIN_AFTER_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use prometheus_client::metrics::gauge::Gauge;
    use sandglass_model::ProcessKey;

    use super::*;
    use crate::sources::channel;

    fn plugin(command: &str, sandbox: &str, path: &str) -> Exec {
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", sandbox),
            ("CNI_NETNS", path),
        ];
        Exec {
            process: ProcessKey::new(std::process::id(), 0),
            parent: ProcessKey::new(1, 0),
            parent_comm: "containerd".into(),
            path: "/opt/cni/bin/bridge".into(),
            args: Default::default(),
            args_truncated: false,
            env: env.into_iter().collect(),
            cgroup: String::new(),
            netns: 0,
            running: false,
        }
    }

    #[test]
    fn a_namespace_is_looked_at_once_for_a_chain_and_again_after_a_del() {
        let (sender, receiver) = channel(16, Gauge::default());
        let mut watch = NetnsWatch::start(sender, KnownNamespaces::default()).unwrap();
        let second = 1_000_000_000;
        let [one, other] = ["/proc/self/ns/net", "/proc/thread-self/ns/net"];
        for (command, sandbox, path, at) in [
            ("ADD", "a", one, 1),
            ("ADD", "a", one, 2),
            ("ADD", "b", one, 2),
            ("ADD", "b", other, 2),
            // A slow chain.
            ("ADD", "a", one, 6),
            ("DEL", "a", one, 7),
            ("ADD", "a", one, 8),
            ("ADD", "a", "", 8),
            ("CHECK", "c", one, 8),
        ] {
            watch.ask(&plugin(command, sandbox, path), Timestamp(at * second));
        }
        drop(watch);
        let mut told = Vec::new();
        while let Ok(Some(event)) = receiver.receive(Duration::ZERO) {
            if let Body::NetnsObserved(netns) = event.body {
                told.push((netns.sandbox.0, netns.path));
            }
        }
        let told: Vec<_> = told.iter().map(|(id, path)| (id.as_str(), path.as_str())).collect();
        assert_eq!(told, [("a", one), ("b", one), ("b", other), ("a", one), ("a", one)]);
    }

    #[test]
    fn links_lead_to_where_the_process_sees_them() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/netns")).unwrap();
        fs::create_dir(root.path().join("var")).unwrap();
        symlink("/run", root.path().join("var/run")).unwrap();
        fs::write(root.path().join("run/netns/cni-1"), "").unwrap();
        let wanted = fs::metadata(root.path().join("run/netns/cni-1")).unwrap().ino();
        assert_eq!(below(root.path(), "/var/run/netns/cni-1").unwrap().ino(), wanted);
        assert_eq!(below(root.path(), "/../../run/netns/cni-1").unwrap().ino(), wanted);
        assert!(below(root.path(), "/var/run/netns/none").is_err());
    }

    #[test]
    fn an_older_sandbox_is_found_by_its_path_or_else_by_its_process() {
        let known = KnownNamespaces::default();
        let look = look_at_older(known.clone());
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join("cni-1");
        fs::write(&left, "").unwrap();
        let place = |path: &str, pid| NamespacePlace {
            sandbox: SandboxId("sb".to_owned()),
            path: path.to_owned(),
            pid,
        };
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let pid = std::process::id();
        let found = look.at(&place(&format!("/proc/{pid}/ns/net"), 0)).unwrap();
        assert_eq!((found.inode, found.created), (own, None));
        // A file where the namespace was mounted is none.
        let left = left.to_string_lossy().into_owned();
        assert_eq!(look.at(&place(&left, 0)), None);
        assert_eq!(look.at(&place(&left, pid)).map(|netns| netns.inode), Some(own));
        assert_eq!(look.at(&place("", 0)), None);
    }

    #[test]
    fn the_status_says_what_is_lost() {
        let status = status();
        let any = [1, 2]
            .iter()
            .any(|pid| fs::metadata(format!("/proc/{pid}/root/")).is_ok());
        assert_eq!(status.attached, any);
        assert_eq!(status.attached, status.consequence.is_empty() && status.hint.is_empty());
    }
}
