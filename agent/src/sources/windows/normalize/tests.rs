//! Events as the providers log them, one fact each.

use std::sync::Arc;

use sandglass_etw::{EtwEvent, Field, FileTime, Guid, Value};
use sandglass_model::event::ExitStatus;
use sandglass_model::network::{ConnectFailure, Step};
use sandglass_model::windows::{ActivityChange, LookupChange, ObjectKey, RuntimeReport, SiloChange};
use sandglass_model::{Body, SandboxId};

use super::*;

fn event(provider: Guid, id: u16, opcode: u8, name: &str, fields: Vec<(&str, Value)>) -> EtwEvent {
    EtwEvent {
        provider,
        provider_name: None,
        id,
        version: 0,
        channel: 0,
        level: 4,
        opcode,
        task: 0,
        keyword: 0,
        name: (!name.is_empty()).then(|| Arc::from(name)),
        pid: 100,
        tid: 7,
        cpu: 0,
        at_ns: 5_000_000_000,
        activity: Guid::ZERO,
        related_activity: None,
        container_id: None,
        process_start_key: None,
        event_key: None,
        truncated: false,
        fields: fields
            .into_iter()
            .map(|(name, value)| Field {
                name: name.into(),
                value,
            })
            .collect(),
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn facts(events: &[EtwEvent]) -> Vec<Body> {
    let mut normalizer = Normalizer::new(ActivityNames::default());
    let mut facts = Vec::new();
    for event in events {
        normalizer.facts(event, &mut facts);
    }
    facts.into_iter().map(|fact| fact.body).collect()
}

#[test]
fn an_activity_has_its_result_and_the_objects_it_named() {
    let endpoint = "0a1b2c3d-0000-1111-2222-333344445555";
    let mut start = event(
        HNS,
        0,
        1,
        "EndpointAttachShared",
        vec![
            ("EndpointId", text("{0A1B2C3D-0000-1111-2222-333344445555}")),
            (
                "wilActivity",
                Value::Struct(vec![Field {
                    name: "threadId".into(),
                    value: Value::U64(9),
                }]),
            ),
        ],
    );
    start.activity = Guid(77);
    let wil = vec![
        Field {
            name: "hresult".into(),
            value: Value::I64(-2_143_617_001),
        },
        Field {
            name: "message".into(),
            value: text("endpoint in invalid state"),
        },
    ];
    let stop = event(
        HNS,
        0,
        2,
        "EndpointAttachShared",
        vec![("wilActivity", Value::Struct(wil))],
    );
    let noise = event(HNS, 0, 0, "Endpoint::GetStats", Vec::new());
    let found = facts(&[start, stop, noise]);
    let [Body::ActivitySeen(start), Body::ActivitySeen(stop)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (start.service, start.tid, &start.step),
        (Service::Hns, 9, &ActivityChange::Started)
    );
    assert_eq!(start.keys, [ObjectKey::Endpoint(endpoint.to_owned())]);
    assert!(start.activity.ends_with("04d") && stop.activity.is_empty());
    assert_eq!(
        stop.step,
        ActivityChange::Stopped {
            result: Some(0x803b_0017),
            message: "endpoint in invalid state".to_owned()
        }
    );
}

#[test]
fn a_process_keeps_its_key_from_start_to_end() {
    let start = |pid: u64, parent: u64, image: &str, line: &str| {
        event(
            KERNEL_LOGGER_PROCESS,
            0,
            1,
            "Process/Start",
            vec![
                ("ProcessId", Value::U64(pid)),
                ("ParentId", Value::U64(parent)),
                ("ImageFileName", text(image)),
                ("CommandLine", text(line)),
            ],
        )
    };
    let end = event(
        KERNEL_LOGGER_PROCESS,
        0,
        2,
        "Process/End",
        vec![("ProcessId", Value::U64(11)), ("ExitStatus", Value::I64(1))],
    );
    let found = facts(&[
        start(
            10,
            4,
            "containerd.exe",
            r#""C:\Program Files\containerd\containerd.exe""#,
        ),
        start(11, 10, "win-bridge.exe", r#""C:\cni\bin\win-bridge.exe" -x"#),
        end.clone(),
        end,
    ]);
    let [
        Body::ProcessExecuted(_),
        Body::ProcessExecuted(plugin),
        Body::ProcessExited(exit),
    ] = &found[..]
    else {
        panic!("{found:?}");
    };
    assert_eq!(plugin.path, "C:/cni/bin/win-bridge.exe");
    assert_eq!(
        (plugin.file_name(), plugin.parent_comm.as_str()),
        ("win-bridge.exe", "containerd.exe")
    );
    assert_eq!(plugin.args.len(), 2);
    assert_eq!((exit.process, exit.how), (plugin.process, ExitStatus::Code(1)));
}

#[test]
fn the_runtime_names_the_pod_of_a_sandbox() {
    let log = |message: &str| event(CONTAINERD, 0, 0, "LogrusEntry", vec![("Message", text(message))]);
    let shim = event(
        RUN_HCS,
        0,
        0,
        "ShimLaunched",
        vec![("Args", text("[shim.exe -namespace k8s.io -id abc serve --is-sandbox]"))],
    );
    let span = event(
        RUN_HCS,
        0,
        0,
        "LogrusEntry",
        vec![
            ("Message", text("Span")),
            ("name", text("HcsCreateComputeSystem")),
            ("cid", text("abc")),
            ("startTime", text("1970-01-01T00:00:02Z")),
            (
                "endTime",
                Value::FileTime(FileTime(116_444_736_000_000_000 + 40_000_000)),
            ),
        ],
    );
    let found = facts(&[
        log("RunPodSandbox for &PodSandboxMetadata{Name:web-0,Uid:u1,Namespace:shop,Attempt:0,}"),
        log(
            "RunPodSandbox for &PodSandboxMetadata{Name:web-0,Uid:u1,Namespace:shop,Attempt:0,} returns sandbox id \"abc\"",
        ),
        log("StopPodSandbox for \"abc\""),
        log("StopPodSandbox for \"abc\" returns successfully"),
        log("some other line"),
        log("CreateContainer within sandbox \"abc\" for container &ContainerMetadata{Name:web,Attempt:0,}"),
        log(
            "CreateContainer within sandbox \"abc\" for &ContainerMetadata{Name:web,Attempt:0,} returns container id \"D1E2\"",
        ),
        shim,
        span,
    ]);
    let mut reports: Vec<&RuntimeReport> = found
        .iter()
        .map(|body| match body {
            Body::RuntimeReported(reports) => &**reports,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(matches!(reports[0], RuntimeReport::RunBegan { identity, attempt: 0 } if identity.name == "web-0"));
    assert!(matches!(reports[1], RuntimeReport::RunReturned { sandbox, .. } if sandbox.0 == "abc"));
    assert!(matches!(reports[2], RuntimeReport::StopBegan { .. }));
    assert!(matches!(reports[3], RuntimeReport::StopReturned { message, .. } if message.is_empty()));
    let made = RuntimeReport::ContainerOf {
        sandbox: SandboxId("abc".to_owned()),
        container: "d1e2".to_owned(),
    };
    assert_eq!(reports.remove(4), &made);
    assert!(matches!(reports[4], RuntimeReport::ShimLaunched { sandbox, .. } if sandbox.0 == "abc"));
    let RuntimeReport::Span(span) = reports[5] else {
        panic!("{:?}", reports[5]);
    };
    assert_eq!((span.start.0, span.end.0), (2_000_000_000, 4_000_000_000));
}

#[test]
fn lookups_connections_and_silos() {
    let address = |text: &str| Value::SocketAddr(text.parse().unwrap());
    let mut query = event(
        DNS_CLIENT,
        3006,
        0,
        "",
        vec![("QueryName", text("API.shop.svc.")), ("QueryType", Value::U64(1))],
    );
    query.container_id = Some(Guid(5));
    let refused = event(
        TCPIP,
        1034,
        0,
        "",
        vec![
            ("LocalAddress", address("10.0.0.2:50000")),
            ("RemoteAddress", address("10.96.0.1:443")),
            ("Status", Value::U64(0xc000_0236)),
            ("Compartment", Value::U64(3)),
        ],
    );
    let callback = event(
        KERNEL_PROCESS,
        24,
        0,
        "",
        vec![
            ("ContainerID", Value::Guid(Guid(5))),
            ("JobID", Value::U64(8)),
            ("MonitorName", text("wcifs")),
            ("Status", Value::U64(0)),
        ],
    );
    let found = facts(&[query, refused, callback]);
    let [
        Body::LookupSeen(query),
        Body::ConnectSeen(refused),
        Body::SiloSeen(callback),
    ] = &found[..]
    else {
        panic!("{found:?}");
    };
    assert_eq!(
        (query.name.as_str(), &query.step),
        ("api.shop.svc", &LookupChange::Started)
    );
    assert_eq!(
        (refused.netns, refused.step),
        (3, Step::Failed(ConnectFailure::Refused))
    );
    assert_eq!(callback.silo, query.silo);
    assert!(matches!(&callback.step, SiloChange::CallbackStopped { monitor, status: 0 } if monitor == "wcifs"));
}

#[test]
fn a_table_of_names_can_be_added_and_says_which_line_is_wrong() {
    let mut names = ActivityNames::default();
    names.add("hns\tEndpoint::GetStats\tspan\n").unwrap();
    let noise = event(HNS, 0, 1, "Endpoint::GetStats", Vec::new());
    let mut facts = Vec::new();
    Normalizer::new(names.clone()).facts(&noise, &mut facts);
    assert_eq!(facts.len(), 1);
    for table in ["x\ty\tspan", "hns\t\tspan", "hns\tName\tkeep", "hns"] {
        let error = names.add(&format!("# first\n{table}\n")).unwrap_err();
        assert_eq!(error.line, 2, "{error}");
    }
}

#[test]
fn the_names_that_come_with_the_agent_can_be_read() {
    let mut names = ActivityNames::default();
    assert_eq!(names.add(include_str!("activities.tsv")), Ok(()));
    assert_eq!(names, ActivityNames::default());
}

#[test]
fn operations_on_compute_systems_have_a_begin_a_result_and_a_silo() {
    let hcs = |id: u16, fields: Vec<(&str, Value)>| {
        let mut all = vec![("SystemId", text("A1B2"))];
        all.extend(fields);
        event(HYPER_V_COMPUTE, id, 0, "", all)
    };
    let code = |code: u32| ("Result", Value::U64(u64::from(code)));
    let silo = "7B3319BD-AB0F-11F1-949C-F5A17F5A987E";
    let pending = 0xc037_0103;
    let found = facts(&[
        hcs(2010, vec![]),
        hcs(2000, vec![code(pending)]),
        hcs(2001, vec![code(pending)]),
        hcs(2022, vec![("SiloContainerId", text(silo))]),
        hcs(2500, vec![("Parameters", text("{}")), code(0x8007_06ba)]),
        // Twice, as seen: the first ends nothing, since the start was over.
        hcs(2003, vec![code(pending)]),
        hcs(2999, vec![code(0)]),
        event(HYPER_V_COMPUTE, 2001, 0, "", vec![]),
    ]);
    let seen: Vec<(&str, Option<Option<u32>>)> = found
        .iter()
        .map(|body| match body {
            Body::ActivitySeen(step) => {
                assert_eq!(step.keys[0], ObjectKey::Container("a1b2".into()));
                assert_eq!((step.activity.as_str(), step.pid), ("a1b2", 0));
                let ended = match &step.step {
                    ActivityChange::Stopped { result, .. } => Some(*result),
                    _ => None,
                };
                (step.name.as_str(), ended)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("create compute system", None),
            ("create compute system", Some(Some(pending))),
            ("start compute system", None),
            ("start compute system", Some(Some(0))),
            ("create process", None),
            ("create process", Some(Some(0x8007_06ba))),
            ("terminate compute system", None),
            ("terminate compute system", Some(Some(pending))),
        ]
    );
    let Body::ActivitySeen(started) = &found[3] else {
        panic!()
    };
    assert_eq!(started.keys[1], ObjectKey::Silo(silo.to_lowercase()));
}

#[test]
fn a_container_that_is_ended_while_it_starts_ends_its_start() {
    // As another build may call its fields.
    let hcs = |id: u16, code: u32| {
        let fields = vec![("Parameter0", text("a1b2")), ("HResult", Value::U64(u64::from(code)))];
        event(HYPER_V_COMPUTE, id, 0, "", fields)
    };
    let ended = |events: &[EtwEvent]| -> Vec<(String, Option<u32>)> {
        let steps = facts(events).into_iter().filter_map(|body| match body {
            Body::ActivitySeen(step) => match step.step {
                ActivityChange::Stopped { result, .. } => Some((step.name, result)),
                _ => None,
            },
            _ => None,
        });
        steps.collect()
    };
    let failed = ended(&[hcs(2001, 0x8037_0101)]);
    assert_eq!(failed, [("start compute system".to_owned(), Some(0x8037_0101))]);
    let killed = ended(&[hcs(2001, 0), hcs(2003, 0)]);
    assert_eq!(
        killed,
        [
            ("start compute system".to_owned(), None),
            ("terminate compute system".to_owned(), Some(0))
        ]
    );
    let mut names = ActivityNames::default();
    names.add("hcs\tterminate compute system\tignore").unwrap();
    let mut found = Vec::new();
    Normalizer::new(names).facts(&hcs(2003, 0), &mut found);
    assert_eq!(found, []);
}

/// As Windows Server 2022 logs it, but for the addresses.
fn vfp_flow(id: u16, changed: &[(&str, Value)]) -> EtwEvent {
    let number = |number: u64| Value::U64(number);
    let none = "TniAction=Ignore, VlanIdAction=Ignore, MssDeltaAction=Ignore, MacHeaderAction=Ignore, \
                IpHeaderAction=Ignore, TransportHeaderAction=Ignore";
    let mut fields = vec![
        ("PortId", number(3)),
        ("Direction", number(2)),
        ("IsMain", number(1)),
        ("IpProtocol", number(6)),
        ("SrcIpv4Addr", Value::Ip([10, 244, 1, 11].into())),
        ("DstIpv4Addr", Value::Ip([10, 96, 0, 1].into())),
        ("SrcPort", number(49_001)),
        ("DstPort", number(443)),
        ("IsTcpSyn", Value::Bool(true)),
        ("EncapTransposition0", text("NULL")),
        ("Transposition", text(none)),
        ("PortName", text("7D2CED1C-ED91-49F6-9FA0-0A2184B37676")),
        ("UnifiedFlow", number(0xffff_9b01_0000_2a28)),
        ("IsSecondary", number(0)),
        ("IsMirror", number(0)),
    ];
    for (name, value) in changed {
        fields.retain(|field| field.0 != *name);
        fields.push((name, value.clone()));
    }
    event(VFP, id, 0, "", fields)
}

#[test]
fn flows_of_the_virtual_switch() {
    use sandglass_model::network::{Flow, FlowChange};
    let flows = |events: &[EtwEvent]| -> Vec<Flow> {
        let flows = facts(events).into_iter().map(|body| match body {
            Body::FlowSeen(flow) => *flow,
            other => panic!("{other:?}"),
        });
        flows.collect()
    };
    let [new, gone] = &flows(&[vfp_flow(600, &[]), vfp_flow(608, &[])])[..] else {
        panic!()
    };
    assert_eq!((new.change, gone.change), (FlowChange::New, FlowChange::Destroyed));
    assert_eq!((new.id, new.netns, new.protocol), (gone.id, 1, 6));
    assert_eq!(
        (new.source.to_string(), new.destination.to_string()),
        ("10.244.1.11:49001".into(), "10.96.0.1:443".into())
    );
    assert!(!new.is_dnat() && !new.is_snat());

    let action = "MacHeaderAction=Modify (DstMac=00-15-5D-3A-31-08), IpHeaderAction=Modify (DstIp=10.244.1.9), \
                  TransportHeaderAction=Modify (DstPort=6443)";
    let [translated] = &flows(&[vfp_flow(600, &[("Transposition", text(action))])])[..] else {
        panic!()
    };
    assert!(translated.is_dnat() && !translated.is_snat());
    assert_eq!(translated.reply_source.to_string(), "10.244.1.9:6443");

    // Without a meaning in the layout: 10.244.190.81, as it came.
    let [plain] = &flows(&[vfp_flow(600, &[("SrcIpv4Addr", Value::U64(1_371_468_810))])])[..] else {
        panic!()
    };
    assert_eq!(plain.source.ip().to_string(), "10.244.190.81");

    for (field, value) in [
        ("IsMain", 0),
        ("IsMirror", 1),
        ("IsSecondary", 1),
        ("IpProtocol", 252),
        ("IpProtocol", 70_000),
        ("SrcIpv4Addr", u64::MAX),
    ] {
        assert_eq!(
            facts(&[vfp_flow(600, &[(field, Value::U64(value))])]),
            [],
            "{field} {value}"
        );
    }
    assert_eq!(facts(&[vfp_flow(110, &[])]), []);
}

#[test]
fn calls_of_the_socket_library() {
    let call = |id: u16, name: &str| {
        let fields = vec![
            ("NodeName", text(name)),
            ("Status", Value::U64(0)),
            ("Result", text("192.0.2.7;")),
        ];
        event(WINSOCK, id, 0, "", fields)
    };
    let found = facts(&[
        call(1000, "DB.shop."),
        call(1001, "db.shop"),
        call(1002, "db.shop"),
        call(1000, "192.0.2.7"),
        call(1000, ""),
    ]);
    let steps: Vec<(&str, &LookupChange)> = found
        .iter()
        .map(|body| match body {
            Body::LookupSeen(step) => (step.name.as_str(), &step.step),
            other => panic!("{other:?}"),
        })
        .collect();
    let returned = LookupChange::Returned {
        status: 0,
        addresses: vec![[192, 0, 2, 7].into()],
    };
    assert_eq!(steps, [("db.shop", &LookupChange::Called), ("db.shop", &returned)]);
}

#[test]
fn drivers_have_callbacks_at_a_silos_end_too() {
    let silo = |id: u16| {
        let fields = vec![
            ("ContainerID", Value::Guid(Guid(5))),
            ("JobID", Value::U64(4)),
            ("MonitorName", text("wcifs")),
        ];
        event(KERNEL_PROCESS, id, 0, "", fields)
    };
    let steps: Vec<SiloChange> = facts(&[silo(25), silo(26)])
        .into_iter()
        .map(|body| match body {
            Body::SiloSeen(step) => step.step,
            other => panic!("{other:?}"),
        })
        .collect();
    let monitor = "wcifs (end)".to_owned();
    let (started, stopped) = (
        SiloChange::CallbackStarted {
            monitor: monitor.clone(),
        },
        SiloChange::CallbackStopped { monitor, status: 0 },
    );
    assert_eq!(steps, [started, stopped]);
}
