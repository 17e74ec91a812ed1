//! Details of the spans that only Windows has.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::windows::Service;

/// One activity of HNS, HCS or a silo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityDetail {
    /// Whose.
    pub service: Service,
    /// As the provider names it; shared, there are some dozens of names.
    pub name: Arc<str>,
    /// HRESULT or NTSTATUS of its end; `None` while it runs or when it ended without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<u32>,
    /// The namespace, endpoint, port and so on that it named, as `kind=id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
    /// More than one sandbox fitted: it was given to the likeliest.
    #[serde(default)]
    pub ambiguous: bool,
}

/// From the end of ADD to the sandbox's interface being there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicWaitDetail {
    /// The endpoint, where known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// What showed that it is there: `endpoint attached`, `interface added`, ...
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evidence: String,
}
