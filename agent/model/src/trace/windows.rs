//! Details of the spans that only Windows has.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::windows::Service;

/// One activity of HNS, HCS or a silo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityDetail {
    /// The service that logged it.
    pub service: Service,
    /// The provider's name for it; shared, since there are some dozens of names.
    pub name: Arc<str>,
    /// HRESULT or NTSTATUS of its end; `None` while it runs or when it ended without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<u32>,
    /// Objects that it named (namespace, endpoint, port and others), as `kind=id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
    /// More than one sandbox fitted: it is attributed to the likeliest.
    #[serde(default)]
    pub ambiguous: bool,
}

/// The time from the end of ADD until the sandbox's interface exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicWaitDetail {
    /// The endpoint, where known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// What showed the interface: `endpoint attached`, `interface added`, ...
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evidence: String,
}
