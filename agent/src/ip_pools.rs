//! The node's pools of IP addresses: how full they are, and which addresses belong to containers that are gone.
//!
//! The app's watch (`app::pools`) reads the stores and reports here; `/metrics`, `/api/v1/health` and `doctor` show it. Part of
//! `Health`. Only host-local's pools are known: other IPAM plugins keep their state in a daemon or in the cluster.
//! Nothing is shown before the first report, so a replay has none of it. Does not: read files (`store.rs` does), or free an address.

pub mod store;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

/// The state, shared by those who report and those who show it; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct IpPools(Arc<Mutex<Option<Vec<IpPool>>>>);

/// One pool: the addresses of one network on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IpPool {
    /// Name of the network.
    pub network: String,
    /// Directory of the store.
    pub directory: String,
    /// Range sets of the configuration; each attachment takes one address of every set.
    pub sets: Vec<RangeSet>,
    /// Addresses in use that belong to no set: the configuration was changed since.
    pub outside: u64,
    /// Entries of the directory that are no address, or no regular file.
    pub skipped: u64,
    /// The directory holds more than is read.
    pub truncated: bool,
    /// Why the store cannot be read; `None` also where it does not exist yet, since nothing was allocated.
    pub unreadable: Option<String>,
    /// Why it cannot be decided which addresses are leaked; `None` where it is decided.
    pub leaks_unknown: Option<String>,
}

/// One range set of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RangeSet {
    /// Addresses that can be allocated, as text: there may be more than JavaScript's numbers are exact for.
    #[serde(serialize_with = "as_text")]
    pub addresses: u64,
    /// Addresses in use.
    pub used: u64,
    /// Addresses in use by containers that are gone; `None` where that cannot be decided.
    pub leaked: Option<u64>,
}

impl RangeSet {
    /// At least nine of ten addresses are in use: the next sandboxes may fail.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.addresses > 0 && u128::from(self.used) * 10 >= u128::from(self.addresses) * 9
    }
}

impl IpPool {
    /// A set is low.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.sets.iter().any(RangeSet::is_low)
    }

    /// The fill of each set in a sentence.
    #[must_use]
    pub fn summary(&self) -> String {
        let of_set = |set: &RangeSet| match set.leaked {
            Some(leaked) if leaked > 0 => {
                format!(
                    "{} of {} addresses used, {leaked} of them leaked",
                    set.used, set.addresses
                )
            }
            _ => format!("{} of {} addresses used", set.used, set.addresses),
        };
        let sets: Vec<String> = self.sets.iter().map(of_set).collect();
        match &sets[..] {
            [] => format!(
                "network {}: {} addresses used, of ranges that are not configured",
                self.network, self.outside
            ),
            sets => format!("network {}: {}", self.network, sets.join("; ")),
        }
    }
}

impl IpPools {
    /// The pools were read. Those that begin or cease to be low are logged.
    pub fn report(&self, pools: Vec<IpPool>) {
        let mut inner = self.lock();
        let before = inner.take().unwrap_or_default();
        let was_low = |pool: &IpPool| before.iter().any(|old| old.directory == pool.directory && old.is_low());
        for pool in &pools {
            match (was_low(pool), pool.is_low()) {
                (false, true) => tracing::warn!(
                    directory = pool.directory,
                    "IP pool nearly exhausted: {}",
                    pool.summary()
                ),
                (true, false) => tracing::info!(directory = pool.directory, "IP pool, room again: {}", pool.summary()),
                (true, true) | (false, false) => {}
            }
        }
        *inner = Some(pools);
    }

    /// The pools as read last; `None` before the first report.
    #[must_use]
    pub fn pools(&self) -> Option<Vec<IpPool>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<IpPool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for IpPools {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let inner = self.lock();
        let Some(pools) = inner.as_ref().filter(|pools| !pools.is_empty()) else {
            return Ok(());
        };
        let family = encoder.encode_descriptor(
            "ip_pool_addresses",
            "Addresses that host-local can allocate, per network and range set",
            None,
            MetricType::Gauge,
        )?;
        encode_sets(family, pools, |set| Some(set.addresses))?;
        let family = encoder.encode_descriptor(
            "ip_pool_used_addresses",
            "Addresses in use in host-local's store, per network and range set",
            None,
            MetricType::Gauge,
        )?;
        encode_sets(family, pools, |set| Some(set.used))?;
        let family = encoder.encode_descriptor(
            "ip_pool_leaked_addresses",
            "Addresses in use by containers that the runtime does not know; absent while that cannot be decided",
            None,
            MetricType::Gauge,
        )?;
        encode_sets(family, pools, |set| set.leaked)?;
        let mut family = encoder.encode_descriptor(
            "ip_pool_skipped_files",
            "Entries of host-local's store that are no address, per network",
            None,
            MetricType::Gauge,
        )?;
        for pool in pools {
            let labels = [("network", pool.network.as_str())];
            ConstGauge::new(pool.skipped as f64).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// One series for each range set that has the value. A store that cannot be read says nothing, not that it is empty.
fn encode_sets(
    mut family: MetricEncoder<'_>,
    pools: &[IpPool],
    value: impl Fn(&RangeSet) -> Option<u64>,
) -> Result<(), std::fmt::Error> {
    for pool in pools.iter().filter(|pool| pool.unreadable.is_none()) {
        for (index, set) in pool.sets.iter().enumerate() {
            let index = index.to_string();
            let labels = [("network", pool.network.as_str()), ("set", index.as_str())];
            if let Some(value) = value(set) {
                ConstGauge::new(value as f64).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn as_text<T: std::fmt::Display, S: serde::Serializer>(number: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn pool(addresses: u64, used: u64, leaked: Option<u64>) -> IpPool {
        IpPool {
            network: "pods".to_owned(),
            directory: "/var/lib/cni/networks/pods".to_owned(),
            sets: vec![RangeSet {
                addresses,
                used,
                leaked,
            }],
            skipped: 2,
            ..IpPool::default()
        }
    }

    fn shown(pools: &IpPools) -> String {
        let mut registry = Registry::with_prefix("sandglass");
        registry.register_collector(Box::new(pools.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn what_was_read_is_shown_and_what_is_not_known_is_left_out() {
        let pools = IpPools::default();
        assert_eq!((pools.pools(), shown(&pools).contains("ip_pool")), (None, false));
        pools.report(vec![pool(253, 250, Some(3))]);
        let text = shown(&pools);
        for line in [
            "sandglass_ip_pool_addresses{network=\"pods\",set=\"0\"} 253",
            "sandglass_ip_pool_used_addresses{network=\"pods\",set=\"0\"} 250",
            "sandglass_ip_pool_leaked_addresses{network=\"pods\",set=\"0\"} 3",
            "sandglass_ip_pool_skipped_files{network=\"pods\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        pools.report(vec![pool(253, 250, None)]);
        assert!(!shown(&pools).contains("leaked_addresses{"));
        let unreadable = IpPool {
            unreadable: Some("permission denied".to_owned()),
            ..pool(253, 0, None)
        };
        pools.report(vec![unreadable]);
        assert!(!shown(&pools).contains("used_addresses{"));
    }

    #[test]
    fn a_pool_is_low_before_it_is_empty() {
        for (addresses, used, low) in [
            (253, 227, false),
            (253, 228, true),
            (3, 2, false),
            (3, 3, true),
            (0, 0, false),
        ] {
            assert_eq!(pool(addresses, used, None).is_low(), low, "{used} of {addresses}");
        }
        assert!(!pool(u64::MAX, 1_000_000, None).is_low());
        assert_eq!(
            pool(253, 250, Some(3)).summary(),
            "network pods: 250 of 253 addresses used, 3 of them leaked"
        );
        let json = serde_json::to_value(pool(u64::MAX, 1, Some(0))).unwrap();
        assert_eq!(json["sets"][0]["addresses"], "18446744073709551615");
    }
}
