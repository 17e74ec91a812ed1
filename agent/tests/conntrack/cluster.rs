//! A pod, a node it sends through, and a namespace of backends, with the rules that join them.
//!
//! Used by the tests of this folder. Does not: judge.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandglass::app::settings::default_source;
use sandglass::sources::linux::{FlowOptions, LinuxOptions};
use sandglass_model::Timestamp;
use sandglass_model::network::{Flow, FlowChange};

use crate::namespaces::{Namespace, Watch, flows};

/// The limit of the table is one for the whole machine, and so are its processors: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// A pod, a node it sends through, and a namespace of backends.
pub struct Cluster {
    pub pod: Namespace,
    pub node: Namespace,
    pub backends: Namespace,
    pub watch: Watch,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    pub fn start(test: &str, flows: FlowOptions) -> Option<Cluster> {
        let options = LinuxOptions {
            connect: false,
            stdio: false,
            flows,
            ..default_source().unwrap()
        };
        Cluster::with(test, options)
    }

    pub fn with(test: &str, options: LinuxOptions) -> Option<Cluster> {
        if let Err(error) = Command::new("conntrack").arg("--version").output() {
            eprintln!("SKIPPED {test}: conntrack: {error}");
            return None;
        }
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let (pod, node, backends) = (Namespace::make(test)?, Namespace::make(test)?, Namespace::make(test)?);
        pod.link(&node, 1);
        node.link(&backends, 2);
        node.run("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        pod.run("ip route add default via 10.77.1.2; ip -6 route add default via fd77:1::2");
        // Backends answer to the node, as its masquerading asks for; 10.77.2.2 is the first, .3 and .4 the others.
        backends.run(
            "ip addr add 10.77.2.3/24 dev v2b; ip addr add 10.77.2.4/24 dev v2b; ip route add default via 10.77.2.1",
        );
        let options = LinuxOptions {
            node_netns: Some(node.path().into()),
            ..options
        };
        let watch = Watch::start(test, &node, options)?;
        let status = watch.probe("conntrack");
        assert!(status.attached, "{status:?}");
        Some(Cluster {
            pod,
            node,
            backends,
            watch,
            _alone: alone,
        })
    }

    /// kube-proxy's way in its nftables mode: a map of services, chains picked at random, masquerading.
    pub fn serve_by_nft(&self, protocol: &str, port: u16) {
        self.node.run(&format!(
            "nft -f - <<'X'
            table ip kube-proxy {{
                map service-ips {{
                    type ipv4_addr . inet_proto . inet_service : verdict
                    elements = {{ {SERVICE} . {protocol} . {port} : goto service }}
                }}
                chain endpoint-1 {{ meta l4proto {protocol} dnat to 10.77.2.2:{port}; }}
                chain endpoint-2 {{ meta l4proto {protocol} dnat to 10.77.2.3:{port}; }}
                chain endpoint-3 {{ meta l4proto {protocol} dnat to 10.77.2.4:{port}; }}
                chain service {{
                    meta mark set mark or 0x4000
                    numgen random mod 3 vmap {{ 0 : goto endpoint-1, 1 : goto endpoint-2, 2 : goto endpoint-3 }}
                }}
                chain nat-prerouting {{
                    type nat hook prerouting priority -100
                    ip daddr . meta l4proto . th dport vmap @service-ips
                }}
                chain nat-postrouting {{
                    type nat hook postrouting priority 100
                    meta mark & 0x4000 == 0x4000 meta mark set mark xor 0x4000 masquerade fully-random
                }}
            }}
X"
        ));
    }

    /// The same by iptables, as kube-proxy's default mode does it.
    pub fn serve_by_iptables(&self, protocol: &str, port: u16) {
        let mut rules = "iptables -t nat -N KUBE-SVC; iptables -t nat -N KUBE-MARK;
            iptables -t nat -A KUBE-MARK -j MARK --or-mark 0x4000;
            iptables -t nat -A KUBE-SVC -j KUBE-MARK;"
            .to_owned();
        for (number, probability) in [(2, "0.33333"), (3, "0.5"), (4, "1")] {
            rules += &format!(
                "iptables -t nat -N KUBE-SEP-{number};
                 iptables -t nat -A KUBE-SEP-{number} -p {protocol} -j DNAT --to-destination 10.77.2.{number}:{port};
                 iptables -t nat -A KUBE-SVC -m statistic --mode random --probability {probability} -j KUBE-SEP-{number};"
            );
        }
        rules += &format!(
            "iptables -t nat -A PREROUTING -d {SERVICE} -p {protocol} --dport {port} -j KUBE-SVC;
             iptables -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully"
        );
        self.node.run(&rules);
    }

    /// Makes the node track flows without translating any.
    pub fn track(&self) {
        self.node.run("nft add table inet t; nft 'add chain inet t f { type filter hook forward priority 0; }'; nft add rule inet t f ct state invalid drop");
    }

    /// All events once the ends of `enough` flows came that `are_ours`: others of the node end too.
    pub fn wait_for_ends(&self, enough: usize, are_ours: impl Fn(&Flow) -> bool) -> Vec<(Timestamp, Flow)> {
        self.watch.wait(&format!("the ends of {enough} flows"), |events| {
            let all = flows(events);
            let ends = all
                .iter()
                .filter(|(_, flow)| flow.change == FlowChange::Destroyed && are_ours(flow));
            (ends.count() >= enough).then_some(all)
        })
    }

    pub fn counters(&self) -> BTreeMap<String, u64> {
        statistics(&self.node.run("conntrack -S"))
    }
}

/// Sums of `conntrack -S` over all processors.
pub fn statistics(text: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for pair in text.split_whitespace() {
        let Some((name, value)) = pair.split_once('=') else {
            continue;
        };
        *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
    }
    sums
}

/// The address of the service.
pub const SERVICE: &str = "10.96.0.10";
/// Its port, and the backends'.
pub const PORT: u16 = 4001;
