//! Any events of a Windows node, soup of Linux among them: nothing breaks.

use proptest::collection::vec;
use proptest::prelude::*;
use sandglass_correlator::CorrelatorConfig;
use sandglass_model::cni::PodIdentity;
use sandglass_model::network::{ConnectFailure, ConnectStep, Initiator, Step};
use sandglass_model::time::SECOND;
use sandglass_model::windows::{
    ActivityChange, ActivityStep, InterfaceStep, LookupChange, LookupStep, ObjectKey, RuntimeReport, RuntimeSpan,
    Service, SiloChange, SiloStep,
};
use sandglass_model::{Body, Event, ProcessKey, SandboxId, Timestamp};

use crate::bodies::exec;
use crate::play::{config, play};
use crate::soup::{soup_body, soup_process};

fn guid() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a-1", "b-2", "c-3", "00-00"]).prop_map(str::to_owned)
}

fn object() -> impl Strategy<Value = ObjectKey> {
    (guid(), 0u32..4, 0u8..9).prop_map(|(id, number, kind)| match kind {
        0 => ObjectKey::Namespace(id),
        1 => ObjectKey::Endpoint(id),
        2 => ObjectKey::Port(id),
        3 => ObjectKey::Network(id),
        4 => ObjectKey::Container(["a", "b", "x"][number as usize % 3].to_owned()),
        5 => ObjectKey::Silo(id),
        6 => ObjectKey::Job(number),
        7 => ObjectKey::Operation(u64::from(number)),
        _ => ObjectKey::Compartment(number),
    })
}

fn activity_step() -> impl Strategy<Value = Body> {
    let name = prop::sample::select(vec![
        "RequestHandler",
        "EndpointAttachShared",
        "Entity",
        "ActivityStoppedAutomatically",
    ]);
    let service = prop::sample::select(vec![Service::Hns, Service::Hcs, Service::Silo]);
    let result = prop::option::of(prop::sample::select(vec![0u32, 0x803b_0017, 0xc037_0103]));
    (
        service,
        name,
        guid(),
        guid(),
        0u32..3,
        0u8..5,
        result,
        vec(object(), 0..3),
    )
        .prop_map(|(service, name, activity, related, tid, step, result, keys)| {
            let message = String::new();
            Body::ActivitySeen(Box::new(ActivityStep {
                service,
                name: name.to_owned(),
                activity,
                related,
                pid: 9,
                tid,
                step: match step {
                    0 | 1 => ActivityChange::Started,
                    2 | 3 => ActivityChange::Stopped { result, message },
                    _ => ActivityChange::Noted { result, message },
                },
                keys,
                fields: [("method", "POST")].into_iter().collect(),
            }))
        })
}

fn runtime_report() -> impl Strategy<Value = Body> {
    let id = prop::sample::select(vec!["a", "b", "x", ""]);
    (0u8..12, 0u8..3, id, guid(), 0u64..900 * SECOND).prop_map(|(what, pod, id, other, from)| {
        let identity = PodIdentity {
            namespace: "n".to_owned(),
            name: format!("p{pod}"),
            uid: ["", "u1", "u2"][usize::from(pod)].to_owned(),
            labels: Vec::new(),
        };
        let sandbox = SandboxId(id.to_owned());
        let message = other.clone();
        Body::RuntimeReported(Box::new(match what {
            0 | 1 => RuntimeReport::RunBegan {
                identity,
                attempt: u32::from(pod),
            },
            2 => RuntimeReport::RunReturned { identity, sandbox },
            3 => RuntimeReport::RunFailed { identity, message },
            4 => RuntimeReport::StopBegan { sandbox },
            5 => RuntimeReport::StopReturned { sandbox, message },
            6 => RuntimeReport::NamespaceOf {
                sandbox,
                namespace: other,
            },
            7 => RuntimeReport::EndpointOf {
                namespace: other.clone(),
                endpoint: other,
            },
            8 => RuntimeReport::ShimLaunched { sandbox, pid: 3 },
            9 => RuntimeReport::ContainerOf {
                sandbox,
                container: "a-container".to_owned(),
            },
            _ => RuntimeReport::Span(Box::new(RuntimeSpan {
                name: "HcsStartComputeSystem".to_owned(),
                trace: "0af7651916cd43dd8448eb211c80319c".to_owned(),
                span: "b7ad6b7169203331".to_owned(),
                container: id.to_owned(),
                start: Timestamp(from),
                end: Timestamp(from / 2),
                message,
            })),
        }))
    })
}

fn lookup_step() -> impl Strategy<Value = Body> {
    let status = prop::sample::select(vec![0u32, 9_002, 9_003, 1_460, 87]);
    (guid(), 1u32..4, 0u8..8, status, prop::sample::select(vec![1u16, 28])).prop_map(
        |(silo, pid, step, status, kind)| {
            let server = "10.0.0.10".to_owned();
            Body::LookupSeen(Box::new(LookupStep {
                silo,
                process: ProcessKey { pid, start_ticks: 0 },
                name: "db.example".to_owned(),
                kind,
                step: match step {
                    0 | 1 => LookupChange::Started,
                    2 => LookupChange::Sent { server },
                    3 => LookupChange::Answered { server, status },
                    4 => LookupChange::TimedOut { server },
                    5 => LookupChange::Called,
                    6 => LookupChange::Returned {
                        status,
                        addresses: Vec::new(),
                    },
                    _ => LookupChange::Finished {
                        status,
                        addresses: vec![[10, 0, 0, 1].into()],
                    },
                },
            }))
        },
    )
}

fn windows_exec() -> impl Strategy<Value = Body> {
    let path = prop::sample::select(vec![
        "C:/cni/sdnbridge.exe",
        "C:/cni/host-local.exe",
        "C:/x/containerd-shim-runhcs-v1.exe",
        "powershell.exe",
        "C:/Windows/conhost.exe",
        ".exe",
        "",
    ]);
    let parent_comm = prop::sample::select(vec!["containerd.exe", "containerd.exe", "antrea-agent.exe", "cmd.exe"]);
    let args = vec(prop::sample::select(vec!["start", "-id", "a", "b", "x"]), 0..4);
    (soup_process(), soup_process(), path, parent_comm, args).prop_map(|(process, parent, path, comm, args)| {
        let mut body = exec(process, parent, path, &args, &[]);
        if let Body::ProcessExecuted(exec) = &mut body {
            exec.parent_comm = comm.into();
        }
        body
    })
}

fn windows_body() -> impl Strategy<Value = Body> {
    let change = prop_oneof![
        Just(SiloChange::Started),
        Just(SiloChange::Terminated),
        guid().prop_map(|monitor| SiloChange::CallbackStarted { monitor }),
        guid().prop_map(|monitor| SiloChange::CallbackStopped { monitor, status: 0 }),
    ];
    let silo =
        (guid(), 0u32..3, change).prop_map(|(silo, job, step)| Body::SiloSeen(Box::new(SiloStep { silo, job, step })));
    let connect = (0u64..4, 1u32..4, 0u8..3).prop_map(|(netns, pid, step)| {
        let process = ProcessKey { pid, start_ticks: 0 };
        Body::ConnectSeen(Box::new(ConnectStep {
            netns,
            socket: netns,
            local: ([10, 0, 0, 2], 5_000).into(),
            remote: ([10, 0, 0, 1], 443).into(),
            initiator: Some(Initiator {
                process,
                comm: Default::default(),
            }),
            step: [Step::Started, Step::Established, Step::Failed(ConnectFailure::Refused)][usize::from(step)],
            retransmits: 0,
        }))
    });
    prop_oneof![
        6 => activity_step(),
        5 => runtime_report(),
        4 => windows_exec(),
        3 => lookup_step(),
        2 => soup_body(),
        1 => silo,
        1 => connect,
        1 => (0u32..4, any::<bool>()).prop_map(|(compartment, added)| {
            Body::InterfaceSeen(InterfaceStep { compartment, index: 7, added })
        }),
        1 => Just(Body::TrafficWatched { node_netns: 1 }),
    ]
}

fn windows_soup() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![8 => 0i64..50_000_000, 1 => -20_000_000i64..0, 1 => 0i64..400_000_000_000];
    vec((step, windows_body()), 0..200).prop_map(|steps| {
        let mut at = 1_000_000_000i64;
        let mut events = Vec::new();
        for (step, body) in steps {
            at = (at + step).max(0);
            events.push(Event {
                at: Timestamp(at.unsigned_abs()),
                body,
            });
        }
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_windows_node_says_nothing_breaks(mut events in windows_soup(), small in any::<bool>(), wild in any::<bool>()) {
        let roomy = CorrelatorConfig { windows: true, ..config() };
        let config = if small {
            CorrelatorConfig { max_traces: 2, max_processes: 4, max_spans: 8, max_remembered: 1, ..roomy }
        } else {
            roomy
        };
        if wild {
            for (index, event) in events.iter_mut().enumerate() {
                event.at = [Timestamp(0), Timestamp(u64::MAX), event.at, event.at][index % 4];
            }
        }
        prop_assert_eq!(play(&config, &events), play(&config, &events));
    }
}
