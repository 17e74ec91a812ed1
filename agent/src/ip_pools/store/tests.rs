//! Stores as host-local writes them, and as nobody should.

use std::fs::FileTimes;
use std::os::unix::fs::symlink;

use super::*;
use crate::cni_conf::{CniConf, CniOptions};

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Node {
        let node = Node(tempfile::tempdir().unwrap());
        for directory in ["conf", "var/lib/cni/networks/pods", "var/lib/cni/results", "run/netns"] {
            fs::create_dir_all(node.0.path().join(directory)).unwrap();
        }
        node
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// The pools of this `ipam` section.
    fn pools(&self, ipam: &str) -> Vec<HostLocal> {
        let list = format!(
            r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{"type": "bridge", "ipam": {{"type": "host-local", {ipam}}}}}]}}"#
        );
        fs::write(self.at("conf/10-pods.conflist"), list).unwrap();
        let options = CniOptions {
            conf_dir: Some(self.at("conf")),
            ..CniOptions::found_below(self.0.path())
        };
        CniConf::read(&options).pools()
    }

    /// An address is allocated, longer ago than an ADD takes.
    fn allocate(&self, address: &str, content: &str) {
        let path = self.at("var/lib/cni/networks/pods").join(address);
        fs::write(&path, content).unwrap();
        let long_ago = SystemTime::now() - 2 * SETTLED_AFTER;
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_times(FileTimes::new().set_modified(long_ago))
            .unwrap();
    }

    fn read(&self, pools: &[HostLocal], known: KnownContainers<'_>) -> IpPool {
        Stores::default().read(pools, known, self.0.path()).remove(0)
    }
}

const SUBNET: &str = r#""subnet": "10.1.0.0/29""#;

fn known(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn addresses_of_containers_that_are_gone_are_leaked() {
    let node = Node::new();
    let pools = node.pools(SUBNET);
    node.allocate("10.1.0.2", "alive\r\neth0");
    node.allocate("10.1.0.3", "gone\r\neth0");
    node.allocate("10.1.0.4", "of-podman\r\neth0");
    node.allocate("10.1.0.5", "old-format");
    fs::write(node.at("var/lib/cni/networks/pods/lock"), "").unwrap();
    fs::write(node.at("var/lib/cni/networks/pods/last_reserved_ip.0"), "10.1.0.5").unwrap();
    // libcni's cache names a namespace that exists, and one that does not.
    let cached = |id: &str, name: &str| {
        let text = format!(r#"{{"kind": "cniCacheV1", "containerId": "{id}", "netns": "/run/netns/{name}"}}"#);
        fs::write(node.at("var/lib/cni/results").join(format!("pods-{id}-eth0")), text).unwrap();
    };
    cached("of-podman", "netns-1");
    cached("gone", "cni-1");
    fs::write(node.at("run/netns/netns-1"), "").unwrap();
    let pool = node.read(&pools, Ok(&known(&["alive"])));
    let set = RangeSet {
        addresses: 5,
        used: 4,
        leaked: Some(2),
    };
    assert_eq!((pool.sets, pool.skipped, pool.outside), (vec![set], 0, 0));
    // An address that was just allocated: the runtime lists a sandbox only when its network is complete.
    fs::write(node.at("var/lib/cni/networks/pods/10.1.0.6"), "new\r\neth0").unwrap();
    let pool = node.read(&pools, Ok(&known(&["alive"])));
    assert_eq!(
        pool.sets[0],
        RangeSet {
            addresses: 5,
            used: 5,
            leaked: Some(2)
        }
    );
    assert!(pool.is_low());
    // Nobody knows which containers exist.
    let pool = node.read(&pools, Err("no CRI socket"));
    assert_eq!(
        (pool.sets[0].leaked, pool.leaks_unknown.as_deref()),
        (None, Some("no CRI socket"))
    );
}

#[test]
fn a_change_is_noticed_and_an_address_that_moved_on_is_read_again() {
    let node = Node::new();
    let pools = node.pools(SUBNET);
    let pool = node.read(&pools, Err("the runtime was not asked yet"));
    assert_eq!((pool.sets[0].leaked, pool.leaks_unknown), (Some(0), None));
    let (root, mut stores) = (node.0.path(), Stores::default());
    let nobody = known(&[]);
    assert!(!stores.has_addresses());
    node.allocate("10.1.0.2", "gone\r\neth0");
    let read =
        |stores: &mut Stores, known: &BTreeSet<String>| stores.read(&pools, Ok(known), root).remove(0).sets[0].clone();
    assert_eq!(
        read(&mut stores, &nobody),
        RangeSet {
            addresses: 5,
            used: 1,
            leaked: Some(1)
        }
    );
    assert!(stores.has_addresses());
    // The same address, given to another container meanwhile: what was remembered does not count.
    node.allocate("10.1.0.2", "alive\r\neth0");
    assert_eq!(read(&mut stores, &known(&["alive"])).leaked, Some(0));
    fs::remove_file(node.at("var/lib/cni/networks/pods/10.1.0.2")).unwrap();
    assert_eq!(
        read(&mut stores, &nobody),
        RangeSet {
            addresses: 5,
            used: 0,
            leaked: Some(0)
        }
    );
}

#[test]
fn addresses_count_for_their_range_set() {
    let node = Node::new();
    let pools = node.pools(r#""ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "fd00::/64"}]]"#);
    for address in ["10.1.0.2", "10.1.0.3", "fd00::2", "192.168.0.1"] {
        node.allocate(address, "alive\r\neth0");
    }
    let pool = node.read(&pools, Ok(&known(&[])));
    let used: Vec<u64> = pool.sets.iter().map(|set| set.used).collect();
    assert_eq!((used, pool.outside), (vec![2, 1], 1));
    assert_eq!(pool.sets[1].addresses, u64::MAX - 1);
    assert_eq!(pool.sets[1].leaked, Some(1));
}

#[test]
fn whatever_lies_in_a_store_is_counted_and_skipped() {
    let node = Node::new();
    let pools = node.pools(SUBNET);
    let store = node.at("var/lib/cni/networks/pods");
    node.allocate("10.1.0.2", "");
    fs::write(store.join("10.1.0.3"), [0xff, 0xfe, 0]).unwrap();
    fs::write(store.join("10.1.0.4"), "x".repeat(100_000)).unwrap();
    for name in ["README", "10.1.0.300", ".10.1.0.2.swp", "10.1.0.0"] {
        fs::write(store.join(name), "gone\r\neth0").unwrap();
    }
    fs::create_dir(store.join("10.1.0.5")).unwrap();
    symlink("/etc/shadow", store.join("10.1.0.6")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, store.join("10.1.0.1"), rustix::fs::Mode::RUSR).unwrap();
    let pool = node.read(&pools, Ok(&known(&[])));
    // Files without an id are in use, and nobody knows by whom; the network's own address is no part of a range.
    assert_eq!(
        pool.sets[0],
        RangeSet {
            addresses: 5,
            used: 3,
            leaked: Some(0)
        }
    );
    assert_eq!((pool.skipped, pool.outside, pool.unreadable), (6, 1, None));
}

#[test]
fn a_store_that_is_not_there_or_no_directory_says_so() {
    let node = Node::new();
    let pools = node.pools(SUBNET);
    let store = node.at("var/lib/cni/networks/pods");
    fs::remove_dir(&store).unwrap();
    // Nothing was allocated yet.
    let pool = node.read(&pools, Ok(&known(&[])));
    assert_eq!((pool.sets[0].used, pool.unreadable), (0, None));
    fs::write(&store, "no directory").unwrap();
    assert!(node.read(&pools, Ok(&known(&[]))).unreadable.is_some());
    fs::remove_dir_all(node.at("var/lib/cni")).unwrap();
    let pool = node.read(&pools, Ok(&known(&[])));
    assert_eq!(
        pool.unreadable.as_deref(),
        Some("there is none yet, or it is not mounted here")
    );
}

#[test]
fn a_hundred_thousand_files_are_counted_within_bounds() {
    let node = Node::new();
    let pools = node.pools(r#""subnet": "10.0.0.0/8""#);
    let store = node.at("var/lib/cni/networks/pods");
    for number in 0..100_000_u32 {
        File::create(store.join(std::net::Ipv4Addr::from(0x0a01_0000 + number).to_string())).unwrap();
    }
    let mut stores = Stores::default();
    let pool = stores.read(&pools, Ok(&known(&[])), node.0.path()).remove(0);
    assert_eq!((pool.sets[0].used, pool.truncated), (100_000, true));
    let kept: usize = stores.known.values().map(|listing| listing.holders.len()).sum();
    assert_eq!(kept, HOLDERS_MAX);
}
