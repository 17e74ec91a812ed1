//! Stand-ins for ids of sandboxes: what a sandbox goes by until its runtime reports its id (Windows).

use sandglass_model::{SandboxId, Trace};

const PREFIX: &str = "unnamed:";

/// The stand-in made of this text, which must be unique on the node.
pub(crate) fn stand_in(text: &str) -> String {
    format!("{PREFIX}{text}")
}

pub(crate) fn is_stand_in(sandbox: &str) -> bool {
    sandbox.starts_with(PREFIX)
}

/// Removes a stand-in from a complete trace: a sandbox whose id was never reported has none.
pub(crate) fn remove_from(trace: &mut Trace) {
    if trace.sandbox.as_ref().is_some_and(|SandboxId(id)| is_stand_in(id)) {
        trace.sandbox = None;
    }
}
