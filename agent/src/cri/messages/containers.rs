//! Messages about containers.
//!
//! Same source and rules as [`super`].

use prost::{Enumeration, Message};

/// Asks for all containers; the filter (tag 1) is not used.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListContainersRequest {}

/// All containers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListContainersResponse {
    /// The containers.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Container {
    /// Container id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its sandbox.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// What names it.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    /// See [`ContainerState`].
    #[prost(enumeration = "ContainerState", tag = "6")]
    pub state: i32,
    /// Creation, nanoseconds since 1970.
    #[prost(int64, tag = "7")]
    pub created_at: i64,
}

/// What names a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerMetadata {
    /// Name in the pod's specification.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Which attempt.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
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
