//! Requests to the runtime to make a sandbox: where its CRI socket is, and events of the records about it.
//!
//! Used by the feed of the process probe. The programs (`probes/bpf/cri.h`) are attached while the agent runs: a request is the first
//! that happens for a sandbox. They compare sockets with the inodes that are found here, once a second, since a runtime that was
//! restarted has another one. The socket is not opened for that: nobody has to let the agent use it.
//! Does not: talk to the runtime (`crate::cri` does), or know which sandbox a request is for.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;

use prost::Message as _;
use sandglass_model::cri::{SandboxOutcome, SandboxRequest, SandboxResponse};
use sandglass_model::{Body, Event, PodIdentity, ProcessKey, SandboxId, Timestamp};
use sandglass_probes::wire::cri::{
    CriSockets, RESPONSE_FAILED, RESPONSE_MADE, SandboxRequestRecord, SandboxResponseRecord,
};

use crate::cri::messages::PodSandboxMetadata;
use crate::sources::linux::loader::maps::CriMaps;
use crate::sources::linux::process_root::{NODE_PIDS, metadata_in_root};

/// The sockets, and requests of which a part has arrived.
pub struct CriRequests {
    maps: CriMaps,
    /// Where a socket may be.
    paths: Vec<PathBuf>,
    /// As written last.
    sockets: CriSockets,
    assembly: Assembly,
}

impl CriRequests {
    /// Of the runtime that listens at one of `paths`, as the node or the agent sees them.
    pub fn new(maps: CriMaps, paths: &[PathBuf]) -> CriRequests {
        CriRequests {
            maps,
            paths: paths.to_vec(),
            sockets: CriSockets::default(),
            assembly: Assembly::default(),
        }
    }

    /// Looks where the sockets are now.
    pub fn find_sockets(&mut self) {
        let mut found = CriSockets::default();
        let inodes = self.paths.iter().filter_map(inode_of);
        for inode in inodes {
            if !found.inodes.contains(&inode)
                && let Some(free) = found.inodes.iter_mut().find(|place| **place == 0)
            {
                *free = inode;
            }
        }
        // One that cannot be written is tried again.
        if found != self.sockets && self.maps.set(&found) {
            self.sockets = found;
            let sockets = found.inodes.iter().filter(|inode| **inode != 0).count();
            tracing::info!(sockets, "CRI sockets on which requests to the runtime are seen");
        }
    }

    /// The event of a request; `None` while its metadata is not whole, or when it is none.
    pub fn on_request(&mut self, record: &SandboxRequestRecord) -> Option<Event> {
        self.assembly.add(record)
    }

    /// The event of a response.
    pub fn on_response(&mut self, record: &SandboxResponseRecord) -> Option<Event> {
        self.assembly.forget(record);
        Some(response(record))
    }
}

/// The inode of a socket, as the node sees the path, or else as the agent does, in whose container it may have another one.
fn inode_of(path: &PathBuf) -> Option<u64> {
    let on_node = || {
        let path = path.to_str()?;
        NODE_PIDS.iter().find_map(|pid| metadata_in_root(*pid, path))
    };
    let metadata = on_node().or_else(|| std::fs::metadata(path).ok())?;
    metadata.file_type().is_socket().then(|| metadata.ino())
}

/// Puts metadata together that was received in pieces. Bounded by [`PARTIAL_MAX`]; the oldest goes first.
#[derive(Debug, Default)]
pub struct Assembly(Vec<Partial>);

/// Metadata of which a part has arrived.
#[derive(Debug)]
struct Partial {
    requested_ns: u64,
    stream: u32,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Adds what a record has of a request's metadata. Returns the event when it is whole. Records that do not fit one another, and
    /// metadata that is none, make no event.
    pub fn add(&mut self, record: &SandboxRequestRecord) -> Option<Event> {
        let piece = record.metadata.get(..record.len as usize)?;
        if record.offset == 0 && record.len == record.metadata_len {
            return request(record, piece);
        }
        let is_same =
            |partial: &Partial| (partial.requested_ns, partial.stream) == (record.requested_ns, record.stream);
        let before = self.0.iter().position(is_same).map(|place| self.0.remove(place));
        let mut bytes = before.map_or_else(Vec::new, |partial| partial.bytes);
        if bytes.len() != record.offset as usize {
            return None;
        }
        bytes.extend_from_slice(piece);
        if bytes.len() >= record.metadata_len as usize {
            return request(record, bytes.get(..record.metadata_len as usize)?);
        }
        if self.0.len() >= PARTIAL_MAX {
            self.0.remove(0);
        }
        self.0.push(Partial {
            requested_ns: record.requested_ns,
            stream: record.stream,
            bytes,
        });
        None
    }

    /// The request has its response: what was missing does not come any more.
    fn forget(&mut self, record: &SandboxResponseRecord) {
        self.0
            .retain(|partial| (partial.requested_ns, partial.stream) != (record.requested_ns, record.stream));
    }
}

/// The event of a request with this metadata; `None` when that is no pod's. The kernel side knows a request by its shape, which
/// UpdateRuntimeConfigRequest has too.
fn request(record: &SandboxRequestRecord, metadata: &[u8]) -> Option<Event> {
    let metadata = PodSandboxMetadata::decode(metadata).ok()?;
    if metadata.name.is_empty() || metadata.uid.is_empty() || metadata.namespace.is_empty() {
        return None;
    }
    Some(Event {
        at: Timestamp(record.requested_ns),
        body: Body::SandboxRequested(Box::new(SandboxRequest {
            runtime: ProcessKey::new(record.header.pid, record.header.start_ns),
            stream: record.stream,
            pod: PodIdentity {
                namespace: metadata.namespace,
                name: metadata.name,
                uid: metadata.uid,
                labels: Vec::new(),
            },
            attempt: metadata.attempt,
        })),
    })
}

/// The event of a response.
pub fn response(record: &SandboxResponseRecord) -> Event {
    let id = record.id.get(..record.id_len as usize).unwrap_or_default();
    let id = std::str::from_utf8(id).ok().filter(|id| is_id(id));
    Event {
        at: Timestamp(record.header.at_ns),
        body: Body::SandboxResponded(Box::new(SandboxResponse {
            runtime: ProcessKey::new(record.header.pid, record.header.start_ns),
            stream: record.stream,
            requested: Timestamp(record.requested_ns),
            outcome: match record.outcome {
                RESPONSE_MADE => SandboxOutcome::Made,
                RESPONSE_FAILED => SandboxOutcome::Failed,
                _ => SandboxOutcome::Withdrawn,
            },
            sandbox: id.map(|id| SandboxId(id.to_owned())),
        })),
    }
}

/// An id as runtimes make them.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Name of the probe, in metrics and on the health page.
pub const PROBE: &str = "cri";
/// A read cuts one request at most, so that one for each connection is enough.
const PARTIAL_MAX: usize = 64;

#[cfg(test)]
mod tests;
