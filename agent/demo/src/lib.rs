//! A Kubernetes node without the Kubernetes, made for one run: the demo shows it, tests and benchmarks run on it.
//!
//! Used by the binary `sandglass-demo`, by the end-to-end tests in `tests/`, and by `bench/`. Linux only: on other systems
//! this library is empty, and the binary shows a recording. Uses the agent as a library. Does not: go to nodes (no image
//! holds it), touch the node's own container runtime.

#[cfg(target_os = "linux")]
pub mod client;
#[cfg(target_os = "linux")]
pub mod containers;
#[cfg(target_os = "linux")]
pub mod dns;
#[cfg(target_os = "linux")]
pub mod image;
#[cfg(target_os = "linux")]
pub mod neighbours;
#[cfg(target_os = "linux")]
pub mod networks;
#[cfg(target_os = "linux")]
pub mod observability;
#[cfg(target_os = "linux")]
pub mod pods;
#[cfg(target_os = "linux")]
pub mod rig;
#[cfg(target_os = "linux")]
pub mod scenarios;
#[cfg(target_os = "linux")]
pub mod services;
#[cfg(target_os = "linux")]
pub mod shim;
#[cfg(target_os = "linux")]
pub mod show;
#[cfg(target_os = "linux")]
pub mod timing;
#[cfg(target_os = "linux")]
pub mod verify;

// Hand-made traces, shared with the agent's tests.
#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/samples/mod.rs"]
mod samples;
