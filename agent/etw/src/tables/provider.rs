//! The providers of the tables.
//!
//! Used by `tables` and its parser. Does not: hold schemas.

use std::sync::Arc;

use crate::guid::Guid;

/// How a provider describes its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderKind {
    /// Events that describe themselves.
    TraceLogging,
    /// Events described by a manifest.
    Manifest,
    /// Kernel logger and other classic events.
    Mof,
    /// Messages that only the symbol files of their vendor describe.
    Wpp,
    /// Unknown.
    Unknown,
}

/// A known provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// Its name.
    pub name: Arc<str>,
    /// Its GUID.
    pub guid: Guid,
    /// How it describes its events.
    pub kind: ProviderKind,
}
