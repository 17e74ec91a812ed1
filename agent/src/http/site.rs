//! What one listener serves: page or metrics alone, under which host names, to whom.
//!
//! Used by `listener`, which makes requests of connections, and by `routes`, which answers them.

use std::sync::Arc;

use super::access::Access;
use super::server::Server;

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Metrics and health.
    Metrics,
    /// Page and API, and the above too.
    Page,
}

/// What one listener serves.
pub struct Site {
    pub role: Role,
    /// Host names that requests may send.
    pub host_names: Vec<String>,
    pub access: Access,
    /// The state that both listeners share.
    pub server: Arc<Server>,
}
