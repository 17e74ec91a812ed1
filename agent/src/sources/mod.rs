//! Where events enter: the kernel of this node, or a recording. The only place that chooses an operating system.
//!
//! A source sends events into one bounded queue ([`channel`]) that the pipeline empties.
//! Does not: interpret events; sources know neither the correlator nor the sinks (`agent/tests/layering.rs`).

pub mod clock;
#[cfg(target_os = "linux")]
pub mod linux;
mod namespace;
mod queue;
pub mod replay;
mod settings;
mod watermarks;
pub mod windows;

pub use self::namespace::{NamespaceLook, NamespacePlace};
pub use self::queue::{EventReceiver, EventSender, Stopped, channel};
pub use self::settings::{SourceSettings, TrustSettings};

/// What observes this node, by the same names on every operating system.
pub mod native {
    #[cfg(target_os = "linux")]
    pub use super::linux::{LinuxOptions as Options, LinuxSource as Source, LinuxStartError as StartError, start};
    #[cfg(windows)]
    pub use super::windows::live::{EtwOptions as Options, EtwStartError as StartError, Source, start};
}
