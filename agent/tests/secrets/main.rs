//! Secrets that are planted where an agent reads do not leave it, and a recording can be made that names nobody.
//!
//! `planted` scans what the real binary writes and serves, and what the live probe of a node sends; `anonymized` holds every
//! recording of `agent/recordings` against its anonymized copy. DNS names are no place of secrets: they are shown as they are.
#![expect(clippy::unwrap_used, reason = "a test")]

mod anonymized;
#[path = "../collected/mod.rs"]
#[cfg(target_os = "linux")]
mod collected;
#[cfg(target_os = "linux")]
mod live;
#[allow(dead_code, reason = "the stories use the rest of it")]
#[path = "../windows_stories/node.rs"]
mod node;
mod planted;
mod written;
