//! Losses: what is marked when records are missing, by accident or on purpose.
//!
//! Used by `correlator.rs`, since a loss concerns every room. Lost means that a probe found no room for a record, limited that
//! it left one out because its owner has too many; only the first makes traces of others incomplete.
//! Does not: count losses; the source does, in the health page and the metrics.

use std::net::IpAddr;

use sandglass_model::time::SECOND;
use sandglass_model::{Timestamp, registry};

use crate::correlator::Correlator;

/// How long after a loss was noticed traces that begin count as incomplete: the kernel side counts a lost record at
/// once, and the source reads the counter only at the next poll of the ring buffer.
const LOSS_REACH_NS: u64 = SECOND;
/// Name of the probe whose records are about waits, as `sandglass_probe_info` has it.
const WAITS_PROBE: &str = "waits";
/// What it calls those about threads of daemons.
const DAEMONS_PROBE: &str = "daemon_threads";
/// Names of the probes whose records are about traffic, likewise. A loss of any other probe concerns processes.
const TRAFFIC_PROBES: [&str; 4] = ["dns", "connect", "conntrack", "drops"];

impl Correlator {
    /// Records of one owner were left out on purpose: only what is that owner's may miss some. Of waits, only the reasons of what
    /// runs, or of what a daemon does for it.
    pub(super) fn on_limited(&mut self, at: Timestamp, probe: &str, netns: u64, source: Option<IpAddr>) {
        match probe {
            WAITS_PROBE => return self.on_waits_lost(at),
            DAEMONS_PROBE => return self.on_daemons_limited(at),
            _ => {}
        }
        let attributes = [(registry::LOST_PROBE, probe.to_owned())];
        let owner = match netns {
            0 => None,
            netns => Some(self.traffic.owner_of_limited(netns, source)),
        };
        self.traffic.on_limited(owner.as_ref());
        self.sandboxes
            .on_limited(&mut self.ctx, at, owner.as_ref(), &attributes);
    }

    /// The path of operations that run is unknown where no wait was recorded lately.
    fn on_waits_lost(&mut self, at: Timestamp) {
        let since = self.waits.on_loss(at);
        self.plugins.on_waits_lost(&mut self.ctx, since);
    }

    /// What a daemon does is its time as a whole where no wait of its threads was recorded lately.
    fn on_daemons_limited(&mut self, at: Timestamp) {
        let since = self.waits.on_daemons_limited(at);
        self.daemons.on_threads_lost(&mut self.ctx, since);
    }

    /// Records of a probe were lost: marks everything open that may miss them, and what begins within `LOSS_REACH_NS`.
    pub(super) fn on_loss(&mut self, at: Timestamp, probe: &str, count: u64) {
        let until = Some(at.plus(LOSS_REACH_NS));
        let of_traffic = TRAFFIC_PROBES.contains(&probe);
        let losses = &mut self.ctx.losses;
        if of_traffic {
            losses.traffic = losses.traffic.max(until);
            self.traffic.on_loss();
            // A lost DNS record may have been the answer of any open query.
            if probe == "dns" {
                self.traffic.on_dns_loss(at);
            }
        } else {
            losses.processes = losses.processes.max(until);
            self.on_waits_lost(at);
            self.on_daemons_limited(at);
        }
        let attributes = [
            (registry::LOST_PROBE, probe.to_owned()),
            (registry::LOST_COUNT, count.to_string()),
        ];
        self.sandboxes.on_loss(&mut self.ctx, at, of_traffic, &attributes);
    }
}
