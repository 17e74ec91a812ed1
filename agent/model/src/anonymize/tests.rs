use proptest::prelude::*;

use super::*;
use crate::event::Exec;
use crate::id::ProcessKey;
use crate::network::{Question, Transport};
use crate::time::Timestamp;
use crate::waits::{TentativeAddress, TentativeSeen};

const ID: &str = "564237812ae0ef5d2db9c54e1b65d468b76ef7211cf92356a9d8417a5d5c5fa9";
const UUID: &str = "0a1b2c3d-1234-5678-9abc-def012345678";

fn exec() -> Exec {
    let netns = format!("/run/netns/cni-{UUID}");
    let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID={UUID}");
    Exec {
        process: ProcessKey { pid: 1, start_ticks: 2 },
        parent: ProcessKey { pid: 3, start_ticks: 4 },
        parent_comm: "containerd".into(),
        path: "/home/ada/cni/bin/bridge".into(),
        args: [
            "bridge",
            &ID[..12],
            "10.1.2.3:80",
            "cart-0.shop",
            "fd00:1::5/64",
            "tcp",
            "4096",
        ]
        .into_iter()
        .collect(),
        args_truncated: false,
        env: [
            ("CNI_CONTAINERID", ID),
            ("CNI_NETNS", &netns),
            ("CNI_ARGS", &args),
            ("CNI_IFNAME", "eth0"),
        ]
        .into_iter()
        .collect(),
        cgroup: format!(
            "/kubepods-pod{}.slice/cri-containerd-{ID}.scope",
            UUID.replace('-', "_")
        ),
        netns: 7,
        counted: None,
        running: false,
    }
}

fn anonymized(anonymizer: &mut Anonymizer, body: Body) -> Body {
    let mut event = Event { at: Timestamp(5), body };
    anonymizer.event(&mut event);
    event.body
}

#[test]
fn names_are_replaced_consistently_and_the_rest_stays() {
    let mut anonymizer = Anonymizer::default();
    let Body::ProcessExecuted(exec) = anonymized(&mut anonymizer, Body::ProcessExecuted(Box::new(exec()))) else {
        panic!()
    };
    let id = exec.env("CNI_CONTAINERID").unwrap().to_owned();
    assert!(id.len() == 64 && id != ID);
    let args: Vec<&str> = exec.args.iter().collect();
    assert_eq!(args[1], &id[..12]);
    assert_eq!(args[2..4], ["10.0.1.3:80", "pod-2.namespace-1"]);
    assert_eq!(args[4..], ["2001:db8:0:2::1/64", "tcp", "4096"]);
    assert_eq!(
        (exec.path.as_str(), exec.env("CNI_IFNAME")),
        ("/home/user/cni/bin/bridge", Some("eth0"))
    );
    let uuid = "00000000-0000-4000-8000-000000000001";
    assert_eq!(exec.env("CNI_NETNS").unwrap(), format!("/run/netns/cni-{uuid}"));
    assert_eq!(
        exec.env("CNI_ARGS").unwrap(),
        format!("K8S_POD_NAMESPACE=namespace-1;K8S_POD_NAME=pod-2;K8S_POD_UID={uuid}")
    );
    let slice = uuid.replace('-', "_");
    assert_eq!(
        exec.cgroup,
        format!("/kubepods-pod{slice}.slice/cri-containerd-{id}.scope")
    );

    let message = DnsMessage {
        netns: 7,
        socket: 1,
        transport: Transport::Udp,
        client: "10.1.2.3:5000".parse().unwrap(),
        server: "127.0.0.53:53".parse().unwrap(),
        initiator: None,
        id: 1,
        nth: 0,
        questions: vec![Question {
            name: "cart.shop.svc.cluster.local".into(),
            kind: 1,
        }],
        answer: None,
    };
    let Body::DnsSeen(message) = anonymized(&mut anonymizer, Body::DnsSeen(Box::new(message))) else {
        panic!()
    };
    assert_eq!(message.questions[0].name, "name-3.namespace-1.svc.cluster.local");
    assert_eq!(
        (message.client.to_string(), message.server.to_string()),
        ("10.0.1.3:5000".into(), "127.0.0.53:53".into())
    );
}

proptest! {
    #[test]
    fn any_text_is_anonymized_without_a_panic(text in "(\\PC|[-_:./]|[0-9a-f]{12}|/home/|fd00::1|10.0.0.1){0,30}") {
        let mut anonymizer = Anonymizer::default();
        anonymizer.names.insert("web", "pod");
        anonymizer.names.insert("ü-1", "pod-2");
        let once = anonymizer.text(&text);
        prop_assert_eq!(anonymizer.text(&text), once);
    }
}

/// A link-local address remains one: the correlator makes something else of it.
#[test]
fn tentative_addresses_keep_their_kind() {
    let mut anonymizer = Anonymizer::default();
    let tentative = |address: &str| TentativeAddress {
        address: address.parse().unwrap(),
        interface: "eth0".into(),
        duplicate: false,
    };
    let seen = TentativeSeen {
        process: ProcessKey { pid: 1, start_ticks: 2 },
        netns: 7,
        addresses: vec![tentative("fd00:1::5"), tentative("fe80::5cc3:90ff:fe3d:a9d3")],
    };
    let Body::TentativeSeen(seen) = anonymized(&mut anonymizer, Body::TentativeSeen(Box::new(seen))) else {
        panic!()
    };
    let texts: Vec<String> = seen.addresses.iter().map(|one| one.address.to_string()).collect();
    assert_eq!(texts, ["2001:db8:0:1::1", "fe80::2"]);
}
