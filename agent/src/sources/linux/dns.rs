//! DNS messages of the node's sockets, from the client's side: what leaves for a watched port, and what comes from one.
//!
//! Started by the Linux source. The kernel side sits on the root of the cgroup tree, which all sockets belong to whatever
//! network namespace they are in. A probe that cannot be attached reports it in [`Health`]; nothing else stops for it.
//! Each message is seen once by the socket that sends it and once by the one that receives it; the kernel side reports it at
//! the client's socket only, by the watched port of the other end. Addresses are those that the client uses, a service's
//! before its translation for example.
//! Does not: join queries and answers (the correlator does).

pub mod decode;
pub mod message;
mod stream;

use sandglass_probes::wire::dns::DNS_PORTS_MAX;

use self::decode::DnsDecoder;
use super::cgroups;
use super::feed::decoded::DecodedFeed;
use super::feed::{Follower, Outlet};
use super::loader::error::LoadError;
use super::loader::family::{Family, Object, ProbeLoader};
use super::loader::run_time::ProgramTime;
use super::status::{attached, switched_off, unavailable};
use crate::health::{Health, ProbeStatus};
use crate::sources::queue::EventSender;

/// The attached probe. Dropping it detaches it.
#[derive(Debug)]
pub struct DnsProbe {
    // Dropped first: the thread drains the ring once more.
    _follower: Follower,
    family: Family,
}

impl DnsProbe {
    /// Attaches the probe, if it is wanted and there is a port to watch, and reports in `health` what came of it.
    /// `ring_bytes` is the size of its ring buffer, rounded up to a power of two of pages.
    #[must_use]
    pub fn start(
        wanted: bool,
        ports: &[u16],
        ring_bytes: u32,
        loader: &mut ProbeLoader<'_>,
        (sender, health): (&EventSender, &Health),
    ) -> Option<DnsProbe> {
        if !wanted || ports.is_empty() {
            health.set_probe(switched_off(PROBE, CONSEQUENCE, "probes.dns"));
            return None;
        }
        let mut attach = |object| attach(object, ring_bytes, loader, sender, health);
        // Where both fail it is for the same reason, and the error of the better object is the one to show.
        let outcome = attach(TYPED_TASK).or_else(|error| attach(OLD_TASK).map_err(|_| error));
        let (probe, status) = match outcome {
            Ok((probe, whole)) => (Some(probe), status(whole, ports.len())),
            Err(error) => (None, unavailable(PROBE, CONSEQUENCE, HINT, &error)),
        };
        health.set_probe(status);
        probe
    }

    /// Detaches the programs, or attaches them again; they stay loaded.
    ///
    /// # Errors
    /// When the kernel rejects a program.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        self.family.set_hooked(hooked)
    }

    /// Kernel time of each program so far: one for each direction.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.family.run_time()
    }
}

/// Loads one object, attaches both directions and starts the thread. The second value is whether the node's whole cgroup tree
/// is in sight: below a cgroup namespace only the sockets of that part of the tree are seen.
///
/// # Errors
/// When no cgroup v2 tree is mounted, the kernel rejects the object, or the node is out of threads. Nothing stays attached
/// then.
fn attach(
    object: Object,
    ring_bytes: u32,
    loader: &mut ProbeLoader<'_>,
    sender: &EventSender,
    health: &Health,
) -> Result<(DnsProbe, bool), LoadError> {
    let (root, whole) = cgroups::open_root().map_err(LoadError::Cgroup)?;
    let mut family = Family::load(object, ring_bytes, loader)?;
    let stream = family.stream()?;
    // Receiving first: the answer to the first query that is seen is then seen too.
    family.attach_to_cgroup("on_receive", "ingress", &root, loader)?;
    family.attach_to_cgroup("on_send", "egress", &root, loader)?;
    let outlet = Outlet::new(PROBE, sender.clone(), health.clone());
    let feed = DecodedFeed::new(stream, outlet, DnsDecoder::default());
    let probe = DnsProbe {
        _follower: Follower::start(PROBE, feed).map_err(LoadError::Thread)?,
        family,
    };
    Ok((probe, whole))
}

/// The status of the attached probe: first what hides most lookups.
fn status(whole: bool, ports: usize) -> ProbeStatus {
    let mut status = attached(PROBE, TYPED_TASK.hook);
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

/// Name of the probe, in metrics (`probe="dns"`), on the health page and in `sandglass doctor`.
pub const PROBE: &str = "dns";
/// The better object reads the sending process through bpf_get_current_task_btf(), which these programs may call on newer
/// kernels only.
const TYPED_TASK: Object = Object {
    probe: PROBE,
    hook: "cgroup_skb",
    bytes: sandglass_probes::DNS_CGROUP_SKB,
};
/// The other object copies the same fields with one helper call each. Both see the same, so the status is that of the first.
const OLD_TASK: Object = Object {
    bytes: sandglass_probes::DNS_OLD_TASK,
    ..TYPED_TASK
};
const CONSEQUENCE: &str = "no lookups: when a sandbox's first name was answered, and why names are slow, is not known";
const HINT: &str = "needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and a cgroup v2 tree mounted in the agent's sight";

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::sources::channel;
    use crate::sources::linux::loader::family::with_kernel_types;

    /// The second object is for kernels older than most that tests run on; newer ones take it too.
    #[test]
    fn the_object_for_old_kernels_is_taken() {
        let test = "the_object_for_old_kernels_is_taken";
        let (sender, _receiver) = channel(1024, Gauge::default());
        let health = Health::default();
        match with_kernel_types(&[53], |loader| attach(OLD_TASK, 1 << 16, loader, &sender, &health)).flatten() {
            Ok((probe, _)) => assert_eq!(probe.run_time().len(), 2),
            Err(error) => {
                let not_here = matches!(error, LoadError::Cgroup(_) | LoadError::Btf(_))
                    || matches!(error.os_error(), Some(libc::EPERM | libc::EACCES));
                assert!(not_here, "{error}: {:?}", std::error::Error::source(&error));
                eprintln!("SKIPPED {test}: {error}");
            }
        }
    }

    #[test]
    fn what_is_not_seen_is_reported() {
        assert_eq!(status(true, 1).consequence, "");
        assert!(status(false, 1).hint.contains("cgroup namespace"));
        assert!(status(true, 9).consequence.contains("first 8 of 9"));
    }
}
