//! The pools of addresses that host-local allocates from, as a network's configuration gives them.
//!
//! Used by `network.rs`; `ip_pools` reads the stores. Source: containernetworking/plugins v1.6 `plugins/ipam/host-local`:
//! `LoadIPAMConfig` of `backend/allocator/config.go` (a `subnet` of the plugin itself is the first range set), `Canonicalize` of
//! `backend/allocator/range.go` (default begin, end and gateway), `Next` of `backend/allocator/allocator.go` (the gateway is
//! skipped), `defaultDataDir` of `backend/disk/backend.go`.
//! Does not: know ranges that a runtime passes with each ADD (capability `ipRanges`), or that flannel adds when it delegates.

use std::net::IpAddr;

use super::bounded::bounded;
use super::json::{Members, Value, folded};

/// The pool of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLocal {
    /// Name of the network, which is the last component of the store's directory.
    pub network: String,
    /// `dataDir`, or the default.
    pub data_dir: String,
    /// The range sets; each attachment gets one address of every set. Empty when the configuration names none.
    pub sets: Vec<Vec<AddressRange>>,
}

/// A range of addresses, as a family's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// First address.
    pub first: IpAddr,
    /// Last address.
    pub last: IpAddr,
    /// The address that is never allocated, within the range or not.
    pub gateway: IpAddr,
}

impl HostLocal {
    /// The directory with one file per address, as a path of the node.
    #[must_use]
    pub fn store(&self) -> String {
        format!("{}/{}", self.data_dir.trim_end_matches('/'), self.network)
    }

    /// How many addresses each set has, at most 2^64 - 1.
    pub fn capacities(&self) -> impl Iterator<Item = u64> {
        let add = |sum: u64, range: &AddressRange| sum.saturating_add(range.capacity());
        self.sets.iter().map(move |set| set.iter().fold(0, add))
    }

    /// The set that an address belongs to.
    #[must_use]
    pub fn set_of(&self, address: IpAddr) -> Option<usize> {
        self.sets
            .iter()
            .position(|set| set.iter().any(|range| range.holds(address)))
    }
}

impl AddressRange {
    /// As `Canonicalize` completes it; `None` for one that host-local refuses, whose ADD then fails.
    fn new(members: &Members) -> Option<AddressRange> {
        let text = |key: &str| {
            folded(members, key)
                .and_then(Value::as_text)
                .filter(|text| !text.is_empty())
        };
        let (address, length) = text("subnet")?.split_once('/')?;
        let (subnet, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
        let bits = bits(subnet);
        // Neither a network without host part, nor one of less than four addresses.
        let hosts = bits.checked_sub(length).filter(|hosts| *hosts >= 2)?;
        let mask = u128::MAX.checked_shl(hosts).unwrap_or(0);
        let (base, top) = (number(subnet), number(subnet) | !mask);
        if base & !mask != 0 {
            return None;
        }
        let top = if bits == 32 { top & u128::from(u32::MAX) } else { top };
        let within = |key: &str, default: u128| match text(key) {
            None => Some(default),
            Some(text) => {
                let address: IpAddr = text.parse().ok()?;
                let number = number(address);
                (address.is_ipv4() == subnet.is_ipv4() && (base..=top).contains(&number)).then_some(number)
            }
        };
        // The last IPv4 address is the broadcast address.
        let last = within("rangeEnd", if bits == 32 { top - 1 } else { top })?;
        let first = within("rangeStart", base + 1)?;
        let gateway = match text("gateway") {
            None => address_of(base + 1, subnet),
            Some(text) => text.parse().ok()?,
        };
        (first <= last).then(|| AddressRange {
            first: address_of(first, subnet),
            last: address_of(last, subnet),
            gateway,
        })
    }

    /// How many addresses can be allocated from it, at most 2^64 - 1.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        let count = (number(self.last) - number(self.first)).saturating_add(1);
        u64::try_from(count - u128::from(self.holds(self.gateway))).unwrap_or(u64::MAX)
    }

    /// The address lies in it.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && (number(self.first)..=number(self.last)).contains(&number(address))
    }
}

/// The pools of a plugin's configuration and of the plugins that it delegates to. `network` is the name that these get
/// unless they have one of their own.
pub(super) fn host_local(members: &Members, network: &str) -> Vec<HostLocal> {
    let mut pools = Vec::new();
    collect(members, network, MAX_DEPTH, &mut pools);
    pools
}

fn collect(members: &Members, network: &str, depth: usize, pools: &mut Vec<HostLocal>) {
    let own = folded(members, "name").and_then(Value::as_text).unwrap_or_default();
    let network = if own.is_empty() { network } else { own };
    let ipam = folded(members, "ipam").and_then(Value::as_object);
    if let Some(pool) = ipam.and_then(|ipam| pool(ipam, network))
        && pools.len() < MAX_POOLS
    {
        pools.push(pool);
    }
    if depth == 0 {
        return;
    }
    for key in ["delegate", "delegates", "plugins"] {
        let below = match folded(members, key) {
            Some(Value::Object(members)) => vec![members],
            Some(Value::List(values)) => values.iter().filter_map(Value::as_object).take(MAX_DELEGATES).collect(),
            _ => Vec::new(),
        };
        for members in below {
            collect(members, network, depth - 1, pools);
        }
    }
}

fn pool(ipam: &Members, network: &str) -> Option<HostLocal> {
    let is_host_local = folded(ipam, "type").and_then(Value::as_text) == Some("host-local");
    // The name becomes a part of a path.
    let is_name = !network.is_empty() && !network.contains('/') && network != "." && network != "..";
    if !is_host_local || !is_name || network.len() > MAX_NAME {
        return None;
    }
    let data_dir = folded(ipam, "dataDir").and_then(Value::as_text);
    let data_dir = data_dir.filter(|dir| !dir.is_empty()).unwrap_or(DEFAULT_DATA_DIR);
    let mut sets: Vec<Vec<AddressRange>> = Vec::new();
    sets.extend(AddressRange::new(ipam).map(|range| vec![range]));
    if let Some(Value::List(lists)) = folded(ipam, "ranges") {
        for list in lists.iter().take(MAX_SETS) {
            let Value::List(ranges) = list else { continue };
            let ranges = ranges.iter().filter_map(Value::as_object).take(MAX_RANGES);
            let set: Vec<AddressRange> = ranges.filter_map(AddressRange::new).collect();
            if !set.is_empty() {
                sets.push(set);
            }
        }
    }
    sets.truncate(MAX_SETS);
    Some(HostLocal {
        network: network.to_owned(),
        data_dir: bounded(data_dir),
        sets,
    })
}

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn address_of(number: u128, family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
        IpAddr::V6(_) => IpAddr::V6(number.into()),
    }
}

/// Where host-local keeps its stores (`backend/disk/backend.go`).
const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";
const MAX_NAME: usize = 128;
const MAX_SETS: usize = 8;
const MAX_RANGES: usize = 64;
const MAX_POOLS: usize = 32;
const MAX_DELEGATES: usize = 16;
const MAX_DEPTH: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(text: &str) -> Vec<HostLocal> {
        let value = Value::parse(text.as_bytes()).unwrap();
        host_local(value.as_object().unwrap(), "pods")
    }

    /// Capacity of each set of the only pool.
    fn capacities(ipam: &str) -> Vec<u64> {
        let pools = pools(&format!(
            r#"{{"type": "bridge", "ipam": {{"type": "host-local", {ipam}}}}}"#
        ));
        pools[0].capacities().collect()
    }

    #[test]
    fn capacity_is_what_host_local_can_allocate() {
        for (ipam, expected) in [
            // 256 addresses without network, broadcast and gateway.
            (r#""subnet": "10.1.0.0/24""#, &[253][..]),
            (r#""subnet": "10.1.0.0/30""#, &[1]),
            (
                r#""subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12""#,
                &[3],
            ),
            // A gateway within the range is skipped, one outside of it takes nothing.
            (
                r#""subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12", "gateway": "10.1.0.11""#,
                &[2],
            ),
            (r#""subnet": "10.1.0.0/24", "gateway": "10.9.0.1""#, &[254]),
            (
                r#""ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/29"}], [{"subnet": "fd00::/64"}]]"#,
                &[258, u64::MAX - 1],
            ),
            (r#""ranges": [[{"subnet": "fd00::/120"}]]"#, &[254]),
            (
                r#""subnet": "10.1.0.0/24", "ranges": [[{"subnet": "fd00::/126"}]]"#,
                &[253, 2],
            ),
            (r#""ranges": [[{"subnet": "::/0", "rangeStart": "::"}]]"#, &[u64::MAX]),
            (r#""subnet": "0.0.0.0/0""#, &[(1 << 32) - 3]),
        ] {
            assert_eq!(capacities(ipam), expected, "{ipam}");
        }
    }

    #[test]
    fn what_host_local_refuses_is_no_range() {
        for ipam in [
            r#""subnet": "10.1.0.1/24""#,
            r#""subnet": "10.1.0.0/31""#,
            r#""subnet": "10.1.0.0/33""#,
            r#""subnet": "10.1.0.0""#,
            r#""subnet": 7"#,
            r#""subnet": "fd00::/127""#,
            r#""subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1""#,
            r#""subnet": "10.1.0.0/24", "rangeEnd": "fd00::1""#,
            r#""subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8""#,
            r#""subnet": "10.1.0.0/24", "gateway": "x""#,
            r#""ranges": [7, [], [7], [{"subnet": ""}]]"#,
            r#""ranges": "10.1.0.0/24""#,
        ] {
            assert_eq!(capacities(ipam), Vec::<u64>::new(), "{ipam}");
        }
    }

    #[test]
    fn the_store_is_where_host_local_keeps_it() {
        let of = |text: &str| pools(text).iter().map(HostLocal::store).collect::<Vec<_>>();
        let ipam = r#""ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}"#;
        assert_eq!(of(&format!("{{{ipam}}}")), ["/var/lib/cni/networks/pods"]);
        let elsewhere = r#"{"ipam": {"TYPE": "host-local", "dataDir": "/run/ipam/"}}"#;
        assert_eq!(of(elsewhere), ["/run/ipam/pods"]);
        // Multus: a delegate has a name of its own, or its plugins get the network's.
        let delegates = format!(r#"{{"delegates": [{{"name": "a", {ipam}}}, {{"plugins": [{{{ipam}}}]}}]}}"#);
        assert_eq!(
            of(&delegates),
            ["/var/lib/cni/networks/a", "/var/lib/cni/networks/pods"]
        );
        for text in [
            r#"{"ipam": {"type": "dhcp"}}"#,
            r#"{"ipam": {}}"#,
            r#"{"ipam": "host-local"}"#,
            r#"{"name": "../etc", "ipam": {"type": "host-local"}}"#,
            r#"{"name": "..", "ipam": {"type": "host-local"}}"#,
            "{}",
        ] {
            assert_eq!(of(text), Vec::<String>::new(), "{text}");
        }
    }
}
