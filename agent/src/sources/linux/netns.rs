//! Looks at the network namespace a plugin was asked to work on: its inode number, and when it was created. The same of
//! a sandbox that is older than the agent, whose runtime tells where its namespace is.
//!
//! A thread of its own, because looking at a path may block; requests that find its queue full are passed over. Plugins of
//! one chain, and their delegates, are asked to work on the same namespace: it is looked at for the first of them.
//! It began to be made when its name was ([`names`]). Where that was not seen, the change time of its inode in nsfs tells
//! when it was there: the kernel sets that when the namespace is first given a name (a bind mount or a look at
//! `/proc/PID/ns/net`), for runtimes right after they created it. Where that cannot be so (a path below `/proc`, or an
//! inode made by this very look) no time is reported.
//! Does not: enter a namespace.

mod names;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use sandglass_model::event::{Exec, Netns};
use sandglass_model::{Body, CniCommand, Event, SandboxId, Timestamp};

use self::names::{NameWatch, Names};
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
    names: io::Result<NameWatch>,
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
    /// Starts the thread. What it finds is also added to `known`; `directories` are those where runtimes may give names to
    /// namespaces, others become known by the first one there.
    pub fn start(sender: EventSender, known: KnownNamespaces, directories: &[String]) -> io::Result<NetnsWatch> {
        let watch = NameWatch::start();
        let names = watch.as_ref().ok().map(NameWatch::names);
        for directory in directories {
            watch_names(names.as_deref(), &NODE_PIDS, directory);
        }
        let (requests, queue) = sync_channel(QUEUE_MAX);
        let thread = Builder::new()
            .name("netns".to_owned())
            .spawn(move || answer(&queue, &sender, &known, names.as_deref()))?;
        Ok(NetnsWatch {
            requests: Some(requests),
            thread: Some(thread),
            asked: HashMap::new(),
            names: watch,
        })
    }

    /// Whether other processes' view of the file system may be looked at, and names be watched.
    pub fn status(&self) -> ProbeStatus {
        let look = |pid| fs::metadata(in_root_of(pid, "/"));
        let refused = look(NODE_PIDS[0]).or_else(|_| look(NODE_PIDS[1])).err();
        status(refused.as_ref(), self.names.as_ref().err())
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

fn answer(queue: &Receiver<Request>, sender: &EventSender, known: &KnownNamespaces, names: Option<&Names>) {
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

fn look(request: Request, names: Option<&Names>) -> Option<Netns> {
    let seen = request
        .pids
        .iter()
        .find_map(|pid| seen_by(*pid, &request.path))
        .or_else(|| fs::metadata(&request.path).ok())?;
    let there = creation(&seen, &request.path, request.asked);
    let begun = request.path.rsplit_once('/').and_then(|(directory, name)| {
        watch_names(names, &request.pids, directory);
        names?.made(directory, name)
    });
    let (created, there) = begin(begun, there, request.asked);
    Some(Netns {
        sandbox: request.sandbox,
        path: request.path,
        inode: seen.ino(),
        created,
        there,
    })
}

/// When the sandbox began, and when its namespace was there if that is told apart. A stamp from after the namespace was
/// there, or its first plugin ran, came late: then the inode's time has to do, which is up to a tick early.
fn begin(
    begun: Option<Timestamp>,
    there: Option<Timestamp>,
    first_plugin: Timestamp,
) -> (Option<Timestamp>, Option<Timestamp>) {
    match (begun, there) {
        (Some(begun), Some(there)) if begun < first_plugin && begun <= there.plus(INODE_TICK_NS) => {
            (Some(begun), Some(there.max(begun)))
        }
        _ => (there, None),
    }
}

/// Watches a directory, if it is there and not watched yet. Without that a sandbox begins a little later.
fn watch_names(names: Option<&Names>, pids: &[u32], directory: &str) {
    let Some(names) = names else { return };
    if !directory.is_empty() && !directory.starts_with("/proc/") && !names.watches(directory) {
        let opened = pids.iter().find_map(|pid| opened_by(*pid, directory).ok());
        let _ = opened.map(|opened| names.watch(directory, opened.as_fd()));
    }
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
        there: None,
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
        there: None,
    })
}

/// When the namespace was created, where that can be trusted.
fn creation(seen: &fs::Metadata, path: &str, asked: Timestamp) -> Option<Timestamp> {
    let unix_ns = u64::try_from(seen.ctime()).ok()? * 1_000_000_000 + u64::try_from(seen.ctime_nsec()).ok()?;
    let created = clock::anchor().boot(unix_ns);
    (!path.starts_with("/proc/") && created < asked).then_some(created)
}

fn seen_by(pid: u32, path: &str) -> Option<fs::Metadata> {
    let seen = opened_by(pid, path).and_then(|file| file.metadata());
    // Before 5.6, and for links that only /proc has.
    seen.or_else(|_| fs::metadata(in_root_of(pid, path))).ok()
}

fn opened_by(pid: u32, path: &str) -> io::Result<fs::File> {
    below(Path::new(&in_root_of(pid, "/")), path)
}

/// `path` with `root` as the root, which also counts for the links in it: `/var/run` leads to `/run`, and from inside a
/// container that would be the container's.
fn below(root: &Path, path: &str) -> io::Result<fs::File> {
    let how = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, how | OFlags::DIRECTORY, Mode::empty())?;
    let file = rustix::fs::openat2(root, path, how, Mode::empty(), ResolveFlags::IN_ROOT)?;
    Ok(fs::File::from(file))
}

/// The first processes stand for the node: the kernel's own one, which no security module sets apart, and where there is
/// none (another pid namespace) the first of all.
const NODE_PIDS: [u32; 2] = [2, 1];

fn status(refused: Option<&io::Error>, unwatched: Option<&io::Error>) -> ProbeStatus {
    let mut status = ProbeStatus {
        probe: "netns".to_owned(),
        hook: "/proc/PID/root, inotify".to_owned(),
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
    } else if let Some(error) = unwatched {
        status.hook = "/proc/PID/root".to_owned();
        status.consequence = format!(
            "a sandbox begins when its network namespace is there, not when the runtime begins to make it: cannot watch \
             its directory: {error}"
        );
        status.hint = "the node's users have used up inotify: raise fs.inotify.max_user_instances".to_owned();
    }
    status
}

/// `path` as the process sees it.
pub fn in_root_of(pid: u32, path: &str) -> String {
    format!("/proc/{pid}/root/{}", path.trim_start_matches('/'))
}

/// Inodes keep time in steps of a tick: 10 ms at most (100 Hz).
const INODE_TICK_NS: u64 = 10_000_000;
const QUEUE_MAX: usize = 1024;
/// More than are in creation at once.
const ASKED_MAX: usize = 1024;
/// A chain's next plugin comes sooner, but for slow ones: those are looked at again, for there is time.
const AGAIN_AFTER_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
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
        let mut watch = NetnsWatch::start(sender, KnownNamespaces::default(), &[]).unwrap();
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
    fn a_stamp_that_came_late_is_not_believed() {
        let at = |ms: u64| Timestamp(1_000_000 * ms);
        let told = |begun: Option<u64>, there: Option<u64>, first_plugin| {
            let (created, there) = begin(begun.map(at), there.map(at), at(first_plugin));
            let ms = |at: Timestamp| at.0 / 1_000_000;
            (created.map(ms), there.map(ms))
        };
        assert_eq!(told(Some(80), Some(100), 120), (Some(80), Some(100)));
        // Within the inode's tick the stamp is the better one, until a plugin ran.
        assert_eq!(told(Some(110), Some(100), 120), (Some(110), Some(110)));
        assert_eq!(told(Some(111), Some(100), 120), (Some(100), None));
        assert_eq!(told(Some(105), Some(100), 103), (Some(100), None));
        assert_eq!(told(None, Some(100), 103), (Some(100), None));
        assert_eq!(told(Some(80), None, 103), (None, None));
    }

    #[test]
    fn the_first_name_in_a_directory_makes_it_known() {
        let watch = NameWatch::start().unwrap();
        let names = watch.names();
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name);
        let created = |name| {
            let request = Request {
                pids: [std::process::id(); 2],
                sandbox: SandboxId("sb".to_owned()),
                path: at(name).to_string_lossy().into_owned(),
                asked: clock::now(),
            };
            let netns = look(request, Some(&*names)).unwrap();
            (netns.created.unwrap(), netns.there)
        };
        // What the runtime does: the name, and later what is mounted there.
        let make = |name| {
            fs::write(at(name), "").unwrap();
            std::thread::sleep(Duration::from_millis(100));
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o600)).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        };
        make("cni-1");
        assert_eq!(created("cni-1").1, None);
        make("cni-2");
        let (created, there) = created("cni-2");
        assert!(created.plus(50_000_000) < there.unwrap());
    }

    #[test]
    fn links_lead_to_where_the_process_sees_them() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/netns")).unwrap();
        fs::create_dir(root.path().join("var")).unwrap();
        symlink("/run", root.path().join("var/run")).unwrap();
        fs::write(root.path().join("run/netns/cni-1"), "").unwrap();
        let wanted = fs::metadata(root.path().join("run/netns/cni-1")).unwrap().ino();
        let inode = |path| below(root.path(), path).unwrap().metadata().unwrap().ino();
        assert_eq!(inode("/var/run/netns/cni-1"), wanted);
        assert_eq!(inode("/../../run/netns/cni-1"), wanted);
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
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        let best = status(None, None);
        assert!(best.attached && best.consequence.is_empty() && best.hint.is_empty());
        for (refused, unwatched, attached, lost) in [
            (None, Some(&error), true, "when its network namespace is there"),
            (Some(&error), None, false, "begins with its first plugin"),
            (Some(&error), Some(&error), false, "begins with its first plugin"),
        ] {
            let status = status(refused, unwatched);
            assert_eq!(status.attached, attached);
            assert!(
                status.consequence.contains(lost) && !status.hint.is_empty(),
                "{status:?}"
            );
            assert_ne!(status.hook, best.hook);
        }
    }
}
