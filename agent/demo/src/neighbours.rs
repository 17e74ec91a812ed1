//! What else runs on the node while some pods are made: a process that holds a lock which a plugin needs, loops that keep the
//! processor busy on which a plugin computes, and the daemon of a plugin that is a shim.
//!
//! Used by [`crate::scenarios`]. They belong to the rig's cgroup and end with it whatever becomes of their owner. Does not: touch
//! anything outside of the rig's directory.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::networks::{self, DAEMON, LOCK, LOCK_HOLDER, Network, SERVED_COMMAND, SOCKET};
use crate::pods::Pod;
use crate::rig::Rig;

/// The processes. Dropping it ends them.
#[derive(Debug, Default)]
pub struct Neighbours {
    processes: Vec<Child>,
    /// One of them is the daemon.
    daemon: bool,
}

impl Neighbours {
    /// Those that `pods` have; none for most. When this returns the lock is held, and the daemon listens.
    ///
    /// # Errors
    /// When a process cannot be started, or does not get the lock.
    pub fn of(pods: &[Pod], rig: &Rig) -> io::Result<Neighbours> {
        let mut neighbours = Neighbours::default();
        for pod in pods {
            match pod.network {
                Network::Locked => neighbours.hold_lock(rig, &pod.identity.uid)?,
                Network::Crowded => neighbours.keep_busy(rig)?,
                Network::Served => neighbours.serve(rig)?,
                Network::Plain | Network::Slow | Network::Failing | Network::Hanging | Network::Two => {}
            }
        }
        Ok(neighbours)
    }

    /// Holds the lock until a while after the pod's plugin has begun, which its note shows; without a note not for ever.
    fn hold_lock(&mut self, rig: &Rig, uid: &str) -> io::Result<()> {
        let lock = rig.dir().join(LOCK);
        let until = format!(
            "i=0; while [ ! -e '{}/clock/{uid}' ] && [ $i -lt 500 ]; do i=$((i+1)); sleep 0.02; done; sleep {HELD_S}",
            rig.dir().display()
        );
        let arguments = [lock.display().to_string(), "sh".to_owned(), "-c".to_owned(), until];
        let holder = rig.dir().join("libexec").join(LOCK_HOLDER);
        self.start(rig, &holder, &arguments)?;
        let file = File::create(&lock)?;
        let deadline = Instant::now() + Duration::from_secs(5);
        // Held by another as soon as it cannot be taken here.
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            flock(&file, FlockOperation::Unlock)?;
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the lock is not taken"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn keep_busy(&mut self, rig: &Rig) -> io::Result<()> {
        let processor = networks::busy_processor().to_string();
        let arguments = ["-c", &processor, "sh", "-c", "while :; do :; done"].map(str::to_owned);
        for _ in 0..LOOPS {
            self.start(rig, Path::new("taskset"), &arguments)?;
        }
        Ok(())
    }

    /// One daemon for all pods that it serves at this time.
    fn serve(&mut self, rig: &Rig) -> io::Result<()> {
        let socket = rig.dir().join(SOCKET);
        if self.daemon {
            return Ok(());
        }
        // An earlier daemon's.
        let _ = std::fs::remove_file(&socket);
        let below = |name: &str| rig.dir().join("libexec").join(name);
        let arguments = [&socket, &below(SERVED_COMMAND)].map(|path| path.display().to_string());
        self.start(rig, &below(DAEMON), &arguments)?;
        self.daemon = true;
        let deadline = Instant::now() + Duration::from_secs(5);
        while UnixStream::connect(&socket).is_err() {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon does not listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn start(&mut self, rig: &Rig, program: &Path, arguments: &[String]) -> io::Result<()> {
        let log = File::create(rig.dir().join("neighbours.log"))?;
        self.processes.push(rig.spawn_beside(program, arguments, log)?);
        Ok(())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.processes {
            // One that has ended by itself is no failure.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// For how long the lock is held once the plugin has begun, seconds: most of its operation.
const HELD_S: f32 = 0.8;
/// Loops on the one processor: the plugin gets about a fifth of it.
const LOOPS: usize = 4;
