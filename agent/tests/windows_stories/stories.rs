//! The stories, one function a recording.

use sandglass_etw::Guid;
use sandglass_etw::event::Value;
use sandglass_etw::writer::Failure;

use crate::node::{AGENT, Node, PLUGINS, Pod};

/// Writes a file.
pub type Story = fn() -> Vec<u8>;

/// Folder and story.
pub const ALL: [(&str, Story); 7] = [
    ("windows-l2bridge", l2bridge),
    ("windows-agent-powershell", agent_powershell),
    ("windows-vnic-late", vnic_late),
    ("windows-attach-failed", attach_failed),
    ("windows-endpoint-leak", endpoint_leak),
    ("windows-dns-late", dns_late),
    ("windows-hns-restart", hns_restart),
];

const WEB: Pod = Pod {
    name: "web-0",
    uid: "5f1d0c1e-7a55-4a5b-9a51-000000000001",
    number: 1,
};
const CART: Pod = Pod {
    name: "cart-7d9f",
    uid: "5f1d0c1e-7a55-4a5b-9a51-000000000002",
    number: 2,
};

fn id(guid: Guid) -> Value {
    Value::Guid(guid)
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

/// The namespace of a sandbox is made.
fn namespace(node: &mut Node, from: u64, pod: Pod) {
    let fields = [("method", text("POST")), ("namespaceId", id(pod.namespace()))];
    node.hns(from, from + 20, "RequestHandler", None, &fields);
}

/// What a plugin requests of HNS: an endpoint, and that it be in the namespace.
fn endpoint(node: &mut Node, from: u64, pod: Pod) {
    let post = [("method", text("POST"))];
    let request = node.hns(from, from + 240, "RequestHandler", None, &post);
    let inner = [("endpointId", id(pod.endpoint()))];
    node.hns(from + 5, from + 220, "EndpointActivity", Some(request), &inner);
    let both = [("namespaceId", id(pod.namespace())), ("endpointId", id(pod.endpoint()))];
    node.hns(from + 242, from + 268, "HnsRpcV2_Modify", None, &both);
}

/// A whole ADD by the bridge plugin with its IPAM, 320 ms.
fn bridge_add(node: &mut Node, from: u64, pid: u32, pod: Pod) {
    node.plugin(from, from + 320, pid, "sdnbridge", 0);
    node.process(
        from + 10,
        from + 35,
        pid + 1,
        pid,
        &format!(r#""{PLUGINS}\host-local.exe""#),
        0,
    );
    endpoint(node, from + 45, pod);
}

fn attach(node: &mut Node, from: u64, to: u64, pod: Pod) {
    let fields = [("endpointId", id(pod.endpoint()))];
    let around = node.hns(from - 2, to + 2, "EndpointActivity", None, &fields);
    node.hns(from, to, "EndpointAttachShared", Some(around), &fields);
}

fn l2bridge() -> Vec<u8> {
    start_and_end(Node::new())
}

/// A pod's start as it should be, its first traffic, and its end.
pub fn start_and_end(mut node: Node) -> Vec<u8> {
    node.run(100, WEB);
    namespace(&mut node, 105, WEB);
    bridge_add(&mut node, 140, 4_100, WEB);
    node.shim(480, WEB);
    node.compute_system(480, WEB);
    node.hcs(625, 880, "ClientLib_BeginOperation", WEB);
    attach(&mut node, 910, 1_040, WEB);
    node.interface_added(1_050, 23);
    node.run_returned(1_120, WEB);
    node.container(1_150, WEB);
    node.getaddrinfo(1_497, 1_510, WEB, "kubernetes.default.svc.cluster.local", "10.96.0.1;");
    node.lookup(1_500, 9, WEB, "kubernetes.default.svc.cluster.local", 0, "10.96.0.1;");
    node.connect(1_512, 3, WEB, "10.96.0.1:443");
    node.stop(8_000, 8_400, WEB);
    node.plugin(8_060, 8_300, 4_200, "sdnbridge", 0);
    let gone = [("method", text("DELETE")), ("endpointId", id(WEB.endpoint()))];
    node.hns(8_080, 8_250, "RequestHandler", None, &gone);
    node.file()
}

/// The plugin waits for its agent, which waits for powershell.
fn agent_powershell() -> Vec<u8> {
    let mut node = Node::new();
    node.run(100, WEB);
    namespace(&mut node, 105, WEB);
    node.plugin(140, 5_240, 4_100, "antrea", 0);
    endpoint(&mut node, 170, WEB);
    let script = r#"powershell.exe -NoLogo -NoProfile -NonInteractive -Command "Get-NetAdapter -Name 'vEthernet (web-0-5f1d0c)' | Format-List""#;
    node.process(480, 5_120, 4_300, AGENT, script, 0);
    node.process(490, 5_119, 4_301, 4_300, r"C:\Windows\System32\conhost.exe 0x4", 0);
    node.shim(5_260, WEB);
    attach(&mut node, 5_690, 5_800, WEB);
    node.interface_added(5_810, 23);
    node.run_returned(5_900, WEB);
    node.lookup(6_300, 9, WEB, "kubernetes.default.svc.cluster.local", 0, "10.96.0.1;");
    node.connect(6_312, 3, WEB, "10.96.0.1:443");
    node.file()
}

/// ADD is done long before the interface is there; CHECK fails, comes again, and waits.
fn vnic_late() -> Vec<u8> {
    let mut node = Node::new();
    node.run(100, WEB);
    namespace(&mut node, 105, WEB);
    bridge_add(&mut node, 140, 4_100, WEB);
    node.shim(480, WEB);
    node.run_returned(1_120, WEB);
    node.plugin(1_300, 1_340, 4_110, "sdnbridge", 11);
    node.plugin(2_300, 2_340, 4_120, "sdnbridge", 11);
    node.plugin(3_300, 4_690, 4_130, "sdnbridge", 0);
    attach(&mut node, 4_500, 4_660, WEB);
    node.interface_added(4_670, 23);
    node.lookup(5_000, 9, WEB, "kubernetes.default.svc.cluster.local", 0, "10.96.0.1;");
    node.connect(5_012, 3, WEB, "10.96.0.1:443");
    node.file()
}

/// HNS refuses to attach the endpoint, the plugin gives up, the runtime cleans up.
fn attach_failed() -> Vec<u8> {
    let mut node = Node::new();
    node.run(100, WEB);
    namespace(&mut node, 105, WEB);
    node.plugin(140, 480, 4_100, "sdnbridge", 1);
    endpoint(&mut node, 170, WEB);
    let failure = Failure {
        hresult: 0x803b_0017,
        file: r"onecore\vm\dv\net\hns\service\network\endpoint.h",
        line: 512,
        module: "hostnetsvc.dll",
        message: "",
        call_context: r"\RequestHandler\EndpointActivity\EndpointAttachShared",
    };
    let fields = [("endpointId", id(WEB.endpoint()))];
    let post = [("method", text("POST"))];
    let request = node.hns_failed((440, 470), "RequestHandler", None, &post, failure);
    let activity = node.hns_failed((442, 468), "EndpointActivity", Some(request), &fields, failure);
    node.hns_failed((445, 465), "EndpointAttachShared", Some(activity), &fields, failure);
    node.plugin(490, 560, 4_110, "sdnbridge", 0);
    let gone = [("method", text("DELETE")), ("endpointId", id(WEB.endpoint()))];
    node.hns(500, 550, "RequestHandler", None, &gone);
    node.run_failed(
        580,
        WEB,
        "failed to setup network for sandbox: plugin type=\"sdnbridge\" name=\"l2bridge\" failed (add): \
         HcnAttachEndpoint failed in Win32: The endpoint is in an invalid state. (0x803b0017)",
    );
    node.file()
}

/// Sandboxes go and their endpoints stay.
fn endpoint_leak() -> Vec<u8> {
    let mut node = Node::new();
    for number in 1..=4_u8 {
        let pod = Pod { number, ..CART };
        let from = 100 + u64::from(number) * 10_000;
        node.run(from, pod);
        namespace(&mut node, from + 5, pod);
        bridge_add(&mut node, from + 40, 4_000 + u32::from(number) * 100, pod);
        node.shim(from + 380, pod);
        node.interface_added(from + 950, 20 + u32::from(number));
        node.run_returned(from + 1_020, pod);
        // The DEL does not get as far as HNS.
        node.stop(from + 5_000, from + 5_100, pod);
        node.plugin(
            from + 5_020,
            from + 5_060,
            4_050 + u32::from(number) * 100,
            "sdnbridge",
            0,
        );
    }
    node.file()
}

/// The pod's resolver sends queries before a server can answer, and again until one does.
fn dns_late() -> Vec<u8> {
    let mut node = Node::new();
    node.run(100, WEB);
    namespace(&mut node, 105, WEB);
    bridge_add(&mut node, 140, 4_100, WEB);
    node.shim(480, WEB);
    attach(&mut node, 910, 1_040, WEB);
    node.interface_added(1_050, 23);
    node.run_returned(1_120, WEB);
    node.lookup(1_300, 2_000, WEB, "db.shop.svc.cluster.local", 1460, "");
    node.lookup(3_400, 2_000, WEB, "db.shop.svc.cluster.local", 1460, "");
    node.lookup(5_500, 12, WEB, "db.shop.svc.cluster.local", 9002, "");
    node.lookup(6_000, 10, WEB, "db.shop.svc.cluster.local", 0, "10.96.0.77;");
    node.connect(6_015, 4, WEB, "10.96.0.77:5432");
    node.file()
}

/// HNS goes down while one sandbox is made: what it was at never ends, and the next call fails. Another pod comes after.
fn hns_restart() -> Vec<u8> {
    let mut node = Node::new();
    node.run(100, WEB);
    namespace(&mut node, 105, WEB);
    node.plugin(140, 2_400, 4_100, "sdnbridge", 1);
    node.hns_begun(180, "RequestHandler", &[("method", text("POST"))]);
    let down = Failure {
        hresult: 0x8007_06ba,
        module: "hostnetsvc.dll",
        ..Failure::default()
    };
    node.hns_failed(
        (2_100, 2_110),
        "HnsRpcV2_Open",
        None,
        &[("namespaceId", id(WEB.namespace()))],
        down,
    );
    node.hns_restarts(2_150, 4_300);
    node.plugin(2_410, 2_440, 4_110, "sdnbridge", 1);
    node.run_failed(
        2_500,
        WEB,
        "failed to setup network for sandbox: plugin type=\"sdnbridge\" failed (add): hnsCall failed in Win32: \
         The RPC server is unavailable. (0x6ba)",
    );
    node.run(12_600, WEB);
    namespace(&mut node, 12_605, WEB);
    bridge_add(&mut node, 12_640, 4_500, WEB);
    node.shim(12_980, WEB);
    node.interface_added(13_550, 24);
    node.run_returned(13_620, WEB);
    node.file()
}
