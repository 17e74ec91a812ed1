//! Where events enter: the kernel of this node, or a recording. The only place that chooses an operating system.
//!
//! A source sends into one bounded channel and blocks when it is full: that pushes back to the kernel's ring buffer,
//! the one place that buffers and counts what it loses.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sandglass_model::event::Netns;
use sandglass_model::{Event, SandboxId};

pub mod clock;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod replay;
pub mod windows;

/// What observes this node: the same names on every system.
pub mod native {
    #[cfg(target_os = "linux")]
    pub use super::linux::{LinuxSource as Source, Options, StartError, start};
    #[cfg(windows)]
    pub use super::windows::live::{Options, Source, StartError, start};
}

/// What the configuration selects for the source of this node; each operating system takes what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// Linux: size of the kernel's ring buffer in bytes; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Linux: read the standard output of plugins.
    pub stdio: bool,
    /// Linux: observe DNS messages.
    pub dns: bool,
    /// Linux: observe the establishment of TCP connections.
    pub connect: bool,
    /// Linux: observe conntrack's flows and counters.
    pub conntrack: bool,
    /// Linux: observe dropped DNS packets and SYNs.
    pub drops: bool,
    /// Linux: ports of DNS servers.
    pub dns_ports: Vec<u16>,
    /// Linux: the node's network namespace, where it is not that of process 1.
    pub node_netns: Option<PathBuf>,
    /// Linux: further directories in which a runtime names network namespaces.
    pub netns_directories: Vec<String>,
    /// Windows: how long from the start flows of the virtual switch are recorded.
    pub vfp: Duration,
    /// Windows: a table of activity names, added to the agent's own.
    pub activities: Option<PathBuf>,
}

/// The sources' end of the channel to the pipeline; cheap to clone.
#[derive(Clone, Debug)]
pub struct EventSender {
    channel: SyncSender<Event>,
    depth: Gauge,
}

/// The pipeline's end.
#[derive(Debug)]
pub struct EventReceiver {
    channel: Receiver<Event>,
    capacity: usize,
    depth: Gauge,
}

/// The pipeline has stopped; a source that sees this stops too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pipeline has stopped")]
pub struct Stopped;

/// Where the network namespace of a sandbox is that is older than the agent, as its runtime tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacePlace {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Path of the namespace; empty when not told.
    pub path: String,
    /// A process in it; 0 when not told.
    pub pid: u32,
}

/// Looks at such a namespace: which one it is. May block. The source on a system that has them gives this.
#[derive(Clone)]
pub struct NamespaceLook(Arc<Look>);

type Look = dyn Fn(&NamespacePlace) -> Option<Netns> + Send + Sync;

impl NamespaceLook {
    /// Looks as `look` does.
    pub fn new(look: impl Fn(&NamespacePlace) -> Option<Netns> + Send + Sync + 'static) -> NamespaceLook {
        NamespaceLook(Arc::new(look))
    }

    /// `None` when it cannot be seen, or is gone.
    #[must_use]
    pub fn at(&self, place: &NamespacePlace) -> Option<Netns> {
        (self.0)(place)
    }
}

impl fmt::Debug for NamespaceLook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("NamespaceLook")
    }
}

/// Makes the channel. `depth` shows how many events wait in it.
#[must_use]
pub fn channel(capacity: usize, depth: Gauge) -> (EventSender, EventReceiver) {
    let (sender, receiver) = sync_channel(capacity);
    (
        EventSender {
            channel: sender,
            depth: depth.clone(),
        },
        EventReceiver {
            channel: receiver,
            capacity,
            depth,
        },
    )
}

impl EventSender {
    /// Sends one event; blocks while the channel is full.
    pub fn send(&self, event: Event) -> Result<(), Stopped> {
        self.depth.inc();
        self.channel.send(event).map_err(|_| Stopped)
    }
}

impl EventReceiver {
    /// Takes the next event. `Ok(None)` when `wait` passed without one, `Err` when every sender is gone.
    pub fn receive(&self, wait: Duration) -> Result<Option<Event>, Stopped> {
        match self.channel.recv_timeout(wait) {
            Ok(event) => {
                self.depth.dec();
                Ok(Some(event))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Stopped),
        }
    }

    /// Takes what waits in the channel now, at most as much as it holds.
    pub fn waiting(&self) -> impl Iterator<Item = Event> {
        std::iter::from_fn(|| self.receive(Duration::ZERO).ok().flatten()).take(self.capacity)
    }

    /// How many events may wait.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}
