//! When a runtime began to make a network namespace: watches the directory of names (inotify(7)) and stamps each new one.
//!
//! A runtime makes an empty file, then the namespace, and mounts it there (containerd and podman: `newNS`; CRI-O: `pinns`;
//! `ip netns add`). In between, the kernel waits for all namespaces that others make and destroy (net/core/net_namespace.c,
//! pernet_ops_rwsem and rtnl): 20 ms with four made at once, and nothing else of the sandbox can be seen in that time.
//! Used by `netns`. A thread of its own: inotify has no timestamps, so its wake-up is the stamp, late when the processors are
//! busy and never early. Two wake-ups per sandbox: before its first plugin, and when it is gone.
//! Names in the form of a runtime's are sent as events too, made and removed: a sandbox for which no plugin runs shows nothing else.
//! Does not: know which names are namespaces, or see the first name in a directory that is not watched yet.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use sandglass_model::cni::runtime_of_netns;
use sandglass_model::{Body, Event, Timestamp};

use crate::sources::clock;
use crate::sources::linux::runtime_times::RuntimeMeter;
use crate::sources::queue::{EventSender, Stopped};

/// The thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct NameWatch {
    names: Arc<NameStamps>,
    /// An eventfd(2) that ends the thread.
    stop: Arc<OwnedFd>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

/// The names seen so far.
#[derive(Debug)]
pub struct NameStamps {
    /// One instance for all watches: a user has 128 of them (inotify(7), max_user_instances).
    inotify: OwnedFd,
    /// Locked for a lookup or an insertion, never while something blocks.
    seen: Mutex<StampTable>,
    /// Receives the names that have a runtime's form.
    sender: Option<EventSender>,
    /// Measures the runtime when it makes such a name.
    meter: Option<RuntimeMeter>,
}

/// The names behind the lock.
#[derive(Debug, Default)]
struct StampTable {
    /// Watched directories, as runtimes write them, with their watch descriptors.
    directories: HashMap<String, i32>,
    /// When each name of a watch was made.
    made: HashMap<(i32, Box<[u8]>), Timestamp>,
}

impl NameWatch {
    /// Starts the thread, without any watch. `sender` receives the names of runtimes' namespaces as events.
    ///
    /// # Errors
    /// When the user has too many inotify instances (fs.inotify.max_user_instances).
    pub fn start(sender: Option<EventSender>, meter: Option<RuntimeMeter>) -> io::Result<NameWatch> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let names = Arc::new(NameStamps {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            seen: Mutex::default(),
            sender,
            meter,
        });
        let (watched, stopped) = (Arc::clone(&names), Arc::clone(&stop));
        let thread = Builder::new()
            .name("netns-names".to_owned())
            .spawn(move || watched.follow(&stopped))?;
        Ok(NameWatch {
            names,
            stop,
            thread: Some(thread),
        })
    }

    /// The names that it sees.
    pub fn names(&self) -> Arc<NameStamps> {
        Arc::clone(&self.names)
    }
}

impl Drop for NameWatch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl NameStamps {
    /// Whether the directory is watched.
    pub fn watches(&self, directory: &str) -> bool {
        self.seen().directories.contains_key(directory)
    }

    /// Watches `directory`, which runtimes call `name`. The directory comes opened, because `name` may lead elsewhere in the
    /// agent's own file system. One that is watched already under another name gets the same watch descriptor (inotify(7)).
    ///
    /// # Errors
    /// When it is no directory, or there are too many watches.
    pub fn watch(&self, name: &str, directory: BorrowedFd<'_>) -> io::Result<()> {
        let mut seen = self.seen();
        if seen.directories.len() >= DIRECTORIES_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let watched = inotify::add_watch(&self.inotify, path, flags)?;
        seen.directories.insert(name.to_owned(), watched);
        Ok(())
    }

    /// When a name was made, if the watch saw it.
    pub fn made(&self, directory: &str, name: &str) -> Option<Timestamp> {
        let seen = self.seen();
        let watched = *seen.directories.get(directory)?;
        seen.made.get(&(watched, name.as_bytes().into())).copied()
    }

    /// Waits for names until `stop` is readable. An error of poll(2) ends the thread: sandboxes then begin with the age of
    /// their namespace.
    fn follow(&self, stop: &OwnedFd) {
        let mut room = [MaybeUninit::uninit(); 4096];
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.inotify.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) if fds[1].revents().is_empty() => {
                    if self.read(&mut room, clock::now()).is_err() {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Stamps all names that are there with one time, that of the wake-up.
    /// An event that the kernel's queue had no room for (IN_Q_OVERFLOW) is a name without a stamp.
    fn read(&self, room: &mut [MaybeUninit<u8>], now: Timestamp) -> Result<(), Stopped> {
        let mut events = Reader::new(&self.inotify, room);
        // An error ends the loop like the end of the events: without stamps the age of the namespace is used.
        while let Ok(event) = events.next() {
            self.seen().take(event.wd(), event.events(), event.file_name(), now);
            let named = self.sender.as_ref().zip(event.file_name());
            if let Some((sender, body)) =
                named.and_then(|(sender, name)| Some((sender, of_runtime(name, event.events())?)))
            {
                let mut found = vec![Event { at: now, body }];
                if let Some(meter) = &self.meter {
                    meter.request();
                    meter.measure(&mut found);
                }
                sender.send_all(found.into_iter())?;
            }
        }
        Ok(())
    }

    /// The table; a panic while it was locked has left it whole.
    fn seen(&self) -> MutexGuard<'_, StampTable> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event about a name that has a runtime's form.
fn of_runtime(name: &CStr, what: ReadFlags) -> Option<Body> {
    let name = name.to_str().ok().filter(|name| runtime_of_netns(name).is_some())?;
    Some(Body::NetnsNamed {
        name: name.to_owned(),
        removed: what.contains(ReadFlags::DELETE),
    })
}

impl StampTable {
    /// Enters one event of inotify.
    fn take(&mut self, watched: i32, what: ReadFlags, name: Option<&CStr>, now: Timestamp) {
        if what.contains(ReadFlags::IGNORED) {
            // The directory is gone; another one may be made in its place.
            self.directories.retain(|_, other| *other != watched);
            self.made.retain(|(other, _), _| *other != watched);
        }
        if let Some(name) = name.filter(|_| what.contains(ReadFlags::CREATE)) {
            // Only the newest are looked up. A sandbox without a stamp begins when its namespace is there.
            if self.made.len() >= MADE_MAX {
                self.made.clear();
            }
            self.made.insert((watched, name.to_bytes().into()), now);
        }
    }
}

/// Runtimes use one or two directories. A plugin chooses the path, so that the bound is needed.
const DIRECTORIES_MAX: usize = 16;
/// More sandboxes than are in creation at once.
const MADE_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, Instant};

    use super::*;

    /// The stamp of a name, as soon as the thread has read the event.
    fn soon(names: &NameStamps, directory: &str, name: &str) -> Option<Timestamp> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let made = names.made(directory, name);
            if made.is_some() || Instant::now() > deadline {
                return made;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `/var/run` is a link to `/run` on most nodes: a runtime may write either, and both name one watch.
    #[test]
    fn a_name_is_stamped_by_every_name_of_its_directory() {
        let watch = NameWatch::start(None, None).unwrap();
        let names = watch.names();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("older"), "").unwrap();
        let opened = File::open(directory.path()).unwrap();
        names.watch("/run/netns", opened.as_fd()).unwrap();
        names.watch("/var/run/netns", opened.as_fd()).unwrap();
        let before = clock::now();
        fs::write(directory.path().join("cni-1"), "").unwrap();
        let made = soon(&names, "/run/netns", "cni-1").unwrap();
        assert!(before <= made && made <= clock::now());
        assert_eq!(names.made("/var/run/netns", "cni-1"), Some(made));
        for (directory, name) in [("/run/netns", "older"), ("/run/netns", "cni-2"), ("/other", "cni-1")] {
            assert_eq!(names.made(directory, name), None, "{directory}/{name}");
        }
    }

    /// The kernel drops the watch of a removed directory (IN_IGNORED); names of the old one must not stamp sandboxes of the
    /// new.
    #[test]
    fn a_directory_that_is_made_again_is_another() {
        let watch = NameWatch::start(None, None).unwrap();
        let names = watch.names();
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("netns");
        for _ in 0..2 {
            fs::create_dir(&directory).unwrap();
            names
                .watch("/run/netns", File::open(&directory).unwrap().as_fd())
                .unwrap();
            fs::write(directory.join("cni-1"), "").unwrap();
            assert!(soon(&names, "/run/netns", "cni-1").is_some());
            fs::remove_dir_all(&directory).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while names.watches("/run/netns") {
                assert!(Instant::now() < deadline, "a directory that is gone is watched");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(names.made("/run/netns", "cni-1"), None);
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut seen = StampTable::default();
        for number in 0..3 * MADE_MAX {
            let name = std::ffi::CString::new(format!("cni-{number}")).unwrap();
            seen.take(1, ReadFlags::CREATE, Some(&name), Timestamp(1));
            assert!(seen.made.len() <= MADE_MAX);
        }
        let watch = NameWatch::start(None, None).unwrap();
        let root = File::open("/").unwrap();
        for number in 0..2 * DIRECTORIES_MAX {
            let watched = watch.names.watch(&format!("/{number}"), root.as_fd());
            assert_eq!(watched.is_ok(), number < DIRECTORIES_MAX);
        }
    }
}
