//! DNS messages of the node's sockets, from the client's side: what leaves for a watched port, and what comes from one.
//!
//! Started by the Linux source. The kernel side sits on the root of the cgroup tree, which all sockets belong to whatever
//! network namespace they are in. A probe that cannot be attached says so in [`Health`]; nothing else stops for it.
//! Does not: join queries and answers (the correlator does).

pub mod decode;
pub mod message;
mod stream;

use aya::Btf;
use sandglass_probes::wire::dns::DNS_PORTS_MAX;

use self::decode::DnsDecoder;
use super::cgroups;
use super::follow::Follower;
use super::loader::traffic::{Hook, Loaded, Object};
use super::loader::{LoadError, ProgramTime};
use super::unavailable;
use crate::health::{Health, ProbeStatus};
use crate::sources::EventSender;

/// The attached probe. Detached when dropped, after what is in its ring buffer.
#[derive(Debug)]
pub struct Dns {
    loaded: Loaded,
    _follower: Follower,
}

/// Attaches the probe and starts to send events. `None` when that is not possible here, which [`Health`] tells.
pub fn start(types: &Btf, ports: &[u16], ring_bytes: u32, sender: &EventSender, health: &Health) -> Option<Dns> {
    match attach(types, ports, ring_bytes, sender, health) {
        Ok((dns, status)) => {
            health.set_probe(status);
            Some(dns)
        }
        Err(error) => {
            health.set_probe(unavailable(PROBE, CONSEQUENCE, HINT, &error));
            None
        }
    }
}

fn attach(
    types: &Btf,
    ports: &[u16],
    ring_bytes: u32,
    sender: &EventSender,
    health: &Health,
) -> Result<(Dns, ProbeStatus), LoadError> {
    let (root, whole) = cgroups::open_root().map_err(LoadError::Cgroup)?;
    let mut loaded = Loaded::load(OBJECT, types, ring_bytes, ports)?;
    // Receiving first: a query that is seen is then also seen answered.
    loaded.attach("on_receive", &Hook::Cgroup("ingress", &root))?;
    loaded.attach("on_send", &Hook::Cgroup("egress", &root))?;
    let channels = loaded.channels()?;
    let decoder = DnsDecoder::new(health.dns_malformed.clone());
    let follower =
        Follower::start(PROBE, channels, decoder, sender.clone(), health.clone()).map_err(LoadError::Thread)?;
    let dns = Dns {
        loaded,
        _follower: follower,
    };
    Ok((dns, status(whole, ports.len())))
}

impl Dns {
    /// Kernel time of each program.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.loaded.run_time()
    }
}

fn status(whole: bool, ports: usize) -> ProbeStatus {
    let mut status = ProbeStatus {
        probe: PROBE.to_owned(),
        hook: OBJECT.hook.to_owned(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    };
    if ports > DNS_PORTS_MAX {
        status.consequence = format!("only the first {DNS_PORTS_MAX} of {ports} ports are watched");
        status.hint = format!("name at most {DNS_PORTS_MAX} in dns.ports");
    }
    if !whole {
        status.consequence = "only lookups of the agent's own cgroup can be seen".to_owned();
        status.hint = "run the agent in the node's own cgroup namespace, with /sys/fs/cgroup of the node".to_owned();
    }
    status
}

/// Name of the probe.
pub const PROBE: &str = "dns";
const OBJECT: Object = Object {
    probe: PROBE,
    hook: "cgroup_skb",
    bytes: sandglass_probes::DNS_CGROUP_SKB,
};
const CONSEQUENCE: &str = "no lookups: when a sandbox's first name was answered, and why names are slow, is not known";
const HINT: &str = "needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and a cgroup v2 tree mounted in the agent's sight";
