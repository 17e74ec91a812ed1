//! What processes are connected with: the address or the daemon that a wait for an answer is for.
//!
//! Used by the room of waits. From the connects that a process began, and from the sockets that a look found open. A wait is named
//! only where the process has one peer of the kind: which of several sockets it sleeps on is not known.
//! Bounded: [`CONNECTS_MAX`] addresses of a process, which go with it.
//! Does not: know what was sent.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use sandglass_model::waits::SocketSeen;
use sandglass_model::{ProcessKey, SmolStr, Timestamp};

/// Peers by process.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    sockets: BTreeMap<ProcessKey, Vec<SocketSeen>>,
    /// Connects, oldest first.
    connects: BTreeMap<ProcessKey, Vec<(Timestamp, SocketAddr)>>,
    pub(crate) api_server: Option<SocketAddr>,
}

/// Connects of one process that are remembered, the newest.
const CONNECTS_MAX: usize = 16;

impl Peers {
    /// The sockets that the newest look found.
    pub(crate) fn on_sockets<'s>(&mut self, sockets: impl Iterator<Item = &'s SocketSeen>) {
        self.sockets.clear();
        for socket in sockets {
            self.sockets.entry(socket.process).or_default().push(socket.clone());
        }
    }

    /// A process began to connect.
    pub(crate) fn on_connect(&mut self, at: Timestamp, process: ProcessKey, remote: SocketAddr) {
        let connects = self.connects.entry(process).or_default();
        if connects.len() >= CONNECTS_MAX {
            connects.remove(0);
        }
        connects.push((at, remote));
    }

    /// A process has ended.
    pub(crate) fn forget(&mut self, process: ProcessKey) {
        self.sockets.remove(&process);
        self.connects.remove(&process);
    }

    /// Adds the address to what a wait for the network since `since` was for: `connection` or nothing.
    pub(crate) fn name_remote(&self, what: &mut String, process: ProcessKey, since: Timestamp) {
        // connect(2) sleeps right after it has sent the SYN.
        let begun = |connects: &Vec<(Timestamp, SocketAddr)>| {
            let before = connects
                .iter()
                .rev()
                .find(|(at, _)| *at <= since.plus(CONNECT_REACH_NS));
            before.map(|(_, remote)| *remote)
        };
        let remote = if what.as_str() == CONNECTION {
            self.connects
                .get(&process)
                .and_then(begun)
                .map(|remote| self.text(remote))
        } else {
            None
        };
        let Some(remote) = remote.or_else(|| self.only_remote(process)) else {
            return;
        };
        *what = match what.as_str() {
            "" => remote,
            kind => format!("{kind} to {remote}"),
        };
    }

    /// The only address that the process has connected to, by TCP or UDP; `None` where there are several, or unix sockets too.
    pub(crate) fn only_remote(&self, process: ProcessKey) -> Option<String> {
        let sockets = self.sockets.get(&process).map(Vec::as_slice).unwrap_or_default();
        if sockets.iter().any(|socket| socket.remote.is_none()) {
            return None;
        }
        let open = sockets.iter().filter_map(|socket| socket.remote);
        let begun = self.connects.get(&process).map(Vec::as_slice).unwrap_or_default();
        // Sockets that are open now count more than connects that may be over.
        let remote = only(open).or_else(|| match sockets {
            [] => only(begun.iter().map(|(_, remote)| *remote)),
            _ => None,
        })?;
        Some(self.text(remote))
    }

    /// Puts the path of the only unix socket that the process is connected with in the place of `what`, and returns who listens
    /// there.
    pub(crate) fn name_listener(&self, what: &mut String, process: ProcessKey) -> SmolStr {
        let sockets = self.sockets.get(&process).into_iter().flatten();
        let mut peers = sockets.filter(|socket| socket.remote.is_none());
        let Some(first) = peers.next() else {
            return SmolStr::default();
        };
        if peers.any(|other| other.path != first.path || other.listener != first.listener) {
            return SmolStr::default();
        }
        what.clone_from(&first.path);
        first.listener_name.clone()
    }

    /// `10.96.0.1:443`, and that it is the API server.
    fn text(&self, remote: SocketAddr) -> String {
        if self.api_server == Some(remote) {
            format!("{remote}, the API server")
        } else {
            remote.to_string()
        }
    }
}

/// The only different one.
fn only(mut addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let first = addresses.next()?;
    addresses.all(|other| other == first).then_some(first)
}

/// What the table calls a wait in connect(2).
const CONNECTION: &str = "connection";
/// How much later than its sleep a connect's record may be: both are of the same system call.
const CONNECT_REACH_NS: u64 = sandglass_model::time::MILLISECOND;
