//! Stand-ins for ids of sandboxes: the name of a sandbox until its runtime reports the id (Windows).
//!
//! On Linux `CNI_CONTAINERID` names the sandbox from the first exec on. On Windows environments are not visible, and
//! containerd's log names the id only when `RunPodSandbox` has returned. Used by the rooms of Windows and of sandboxes.
//! The prefix cannot be part of an id that a runtime makes: containerd's are 64 hexadecimal digits. Never exported.

use sandglass_model::{SandboxId, Trace};

/// Begins every stand-in.
const PREFIX: &str = "unnamed:";

/// The stand-in made of this text, which must be unique on the node.
pub(crate) fn stand_in(text: &str) -> String {
    format!("{PREFIX}{text}")
}

pub(crate) fn is_stand_in(sandbox: &str) -> bool {
    sandbox.starts_with(PREFIX)
}

/// Removes a stand-in from a complete trace before it is emitted: a sandbox whose id was never reported has none.
pub(crate) fn remove_from(trace: &mut Trace) {
    if trace.sandbox.as_ref().is_some_and(|SandboxId(id)| is_stand_in(id)) {
        trace.sandbox = None;
    }
}
