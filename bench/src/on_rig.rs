//! The demo's rig for a measurement: a private containerd, the distribution's CNI plugins and their configuration.
//!
//! Used by the parts that run plugins. The whole measurement has a higher priority than the machine's other processes, and runtime, plugins and
//! agents inherit it: on a node they have one too. Does not: measure.

use anyhow::Result;
use sandglass_demo::rig::{Rig, RigOptions};

use crate::agent::{Agent, Started};
use crate::processor::go_before_other_work;
use crate::report::{Figure, Outcome};

/// Measures on a rig, or skips with the reason that the machine does not allow a rig or an agent.
pub fn measure(figures: impl FnOnce(&Rig) -> Result<Vec<Figure>>) -> Result<Outcome> {
    if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
        return Ok(Outcome::Skipped(obstacle));
    }
    match Agent::start()? {
        Started::Ready(agent) => agent.stop()?,
        Started::Impossible(reason) => return Ok(Outcome::Skipped(reason)),
    }
    go_before_other_work();
    let rig = Rig::start(&RigOptions::default())?;
    let measured = figures(&rig).map(Outcome::Figures);
    rig.stop()?;
    measured
}
