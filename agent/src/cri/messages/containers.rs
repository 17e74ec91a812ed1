//! Messages about containers.
//!
//! Same source and rules as [`super`].

use prost::Enumeration;

use super::proto::messages;

messages! {
    /// Requests all containers; the filter (tag 1) is not used.
    #[derive(Copy)]
    message ListContainersRequest {}

    /// All containers.
    message ListContainersResponse {
        /// The containers.
        repeated Container containers = 1;
    }

    /// A container.
    message Container {
        /// Container id.
        string id = 1;
        /// Its sandbox.
        string pod_sandbox_id = 2;
        /// What names it.
        message ContainerMetadata metadata = 3;
        /// See [`ContainerState`].
        enumeration ContainerState state = 6;
        /// Creation, nanoseconds since 1970.
        int64 created_at = 7;
    }

    /// What names a container.
    message ContainerMetadata {
        /// Name in the pod's specification.
        string name = 1;
        /// Which attempt.
        uint32 attempt = 2;
    }
}

/// How far a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// Made, not started.
    ContainerCreated = 0,
    /// Running.
    ContainerRunning = 1,
    /// Over.
    ContainerExited = 2,
    /// The runtime does not know.
    ContainerUnknown = 3,
}
