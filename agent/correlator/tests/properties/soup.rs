//! Any events in any order: nothing is expected of them but that nothing breaks, twice in the same way.

use proptest::collection::vec;
use proptest::prelude::*;
use sandglass_correlator::{CorrelatorConfig, TrafficBounds};
use sandglass_model::cni::{ConfigProblem, NetworkList, PodIdentity};
use sandglass_model::cri::{SandboxOutcome, SandboxRequest, SandboxResponse};
use sandglass_model::daemons::{DaemonProcess, Goroutine, RequestPoint, RequestStep, RequestTransport};
use sandglass_model::event::{Exit, ExitStatus, Fork, NetlinkRemark, Netns, SandboxDescription};
use sandglass_model::locks::{FileLockTry, KernelLockKind, KernelLockWait, LockOutcome};
use sandglass_model::network::{Answer, ConnectFailure, DroppedPacket, FlowChange, Step, Transport};
use sandglass_model::time::SECOND;
use sandglass_model::waits::{
    LockBlocked, RuntimeTimes, SocketSeen, TentativeAddress, TentativeSeen, ThreadRun, ThreadSeen, ThreadState,
    ThreadTimes, ThreadWake, ThreadsSeen, Waker,
};
use sandglass_model::{Body, Event, ProcessKey, SandboxId, Timestamp};

use crate::bodies::{Line, answer_with, counted, dns, dropped, exec, flow, line, plugin_io, step};
use crate::play::{config, play};

pub fn soup_process() -> impl Strategy<Value = ProcessKey> {
    (1u32..9, 0u64..3).prop_map(|(pid, start_ticks)| ProcessKey { pid, start_ticks })
}

fn soup_goroutine() -> impl Strategy<Value = Option<Goroutine>> {
    let goroutine = (1u64..6, 0u64..6).prop_map(|(id, creator)| Goroutine { id, creator });
    prop::option::of(goroutine)
}

fn soup_exec() -> impl Strategy<Value = Body> {
    let path = prop::sample::select(vec![
        "/opt/cni/bin/bridge",
        "/opt/cni/bin/host-local",
        "/bin/sh",
        "",
        "runc",
        "/usr/bin/conmon",
        "/usr/bin/containerd-shim-runc-v2",
    ]);
    let args = vec(
        prop::sample::select(vec!["create", "start", "-id", "-c", "a", "b", "--cid=a"]),
        0..4,
    );
    let env = vec(
        (
            prop::sample::select(vec![
                "CNI_COMMAND",
                "CNI_CONTAINERID",
                "CNI_IFNAME",
                "CNI_NETNS",
                "CNI_PATH",
                "TRACEPARENT",
            ]),
            prop::sample::select(vec![
                "ADD",
                "ADD",
                "DEL",
                "GC",
                "a",
                "b",
                "eth0",
                "/run/netns/cni-0a1b2c3d-1111-2222-3333-0123456789ab",
                "/opt/cni/bin",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ]),
        ),
        0..6,
    );
    (soup_process(), soup_process(), path, args, env, any::<bool>()).prop_map(
        |(process, parent, path, args, env, running)| {
            let mut body = exec(process, parent, path, &args, &env);
            if let Body::ProcessExecuted(exec) = &mut body {
                exec.running = running;
                exec.parent_comm = ["containerd", "crio", ""][parent.pid as usize % 3].into();
                // Otherwise few would be plugins.
                if process.pid % 2 == 0 {
                    let container = ["a", "b", ""][process.start_ticks as usize];
                    let pod = ("CNI_ARGS", "K8S_POD_NAMESPACE=n;K8S_POD_NAME=p");
                    let first = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", container), pod];
                    exec.env = first.into_iter().chain(exec.env.iter()).collect();
                }
            }
            body
        },
    )
}

const NETNS_NAMES: [&str; 4] = [
    "cni-0a1b2c3d-1111-2222-3333-0123456789ab",
    "cni-0a1b2c3d-1111-2222-3333-0123456789ac",
    "0a1b2c3d-1111-2222-3333-0123456789ab",
    "blue",
];

pub fn soup_body() -> impl Strategy<Value = Body> {
    let how = prop_oneof![
        (0i32..3).prop_map(ExitStatus::Code),
        (1i32..70).prop_map(ExitStatus::Signal),
        Just(ExitStatus::Unknown)
    ];
    let time = prop::option::of(0u64..400 * SECOND);
    let sandbox = prop::sample::select(vec!["a", "b", "c", ""]).prop_map(|id| SandboxId(id.to_owned()));
    prop_oneof![
        6 => soup_exec(),
        3 => (soup_process(), soup_process()).prop_map(|(process, parent)| Body::ProcessForked(Fork { process, parent, thread: None, goroutine: None })),
        4 => (soup_process(), how).prop_map(|(process, how)| Body::ProcessExited(Exit { process, how })),
        2 => soup_sandbox_request(),
        1 => (soup_process(), any::<bool>()).prop_map(|(process, fails)| plugin_io(process, fails)),
        1 => (sandbox.clone(), any::<u64>(), any::<bool>()).prop_map(|(sandbox, created_unix_ns, preexisting)| {
            Body::SandboxDescribed(Box::new(SandboxDescription {
                sandbox,
                identity: PodIdentity::default(),
                created_unix_ns,
                ready: true,
                preexisting,
            }))
        }),
        2 => (sandbox, time.clone(), time, 0u64..4).prop_map(|(sandbox, created, there, inode)| {
            let [created, there] = [created, there].map(|at| at.map(Timestamp));
            Body::NetnsObserved(Box::new(Netns { sandbox, path: String::new(), inode, created, there }))
        }),
        2 => (prop::sample::select(NETNS_NAMES.to_vec()), any::<bool>()).prop_map(|(name, removed)| {
            Body::NetnsNamed { name: name.to_owned(), removed }
        }),
        1 => vec((prop::sample::select(vec!["no_plugin", "bad_file", "new_kind"]), any::<bool>()), 0..3).prop_map(|problems| {
            let problem = |(kind, of_handler): (&str, bool)| ConfigProblem {
                kind: kind.to_owned(),
                text: "a text".to_owned(),
                handlers: vec!["kata".to_owned(); usize::from(of_handler)],
            };
            Body::CniConfigJudged { problems: problems.into_iter().map(problem).collect() }
        }),
        1 => vec(vec(prop::sample::select(vec!["bridge", "host-local", "sh"]), 0..3), 0..3).prop_map(|lists| {
            Body::NetworksConfigured {
                networks: lists
                    .into_iter()
                    .map(|plugins| NetworkList {
                        network: plugins.concat(),
                        version: String::new(),
                        plugins: plugins.into_iter().map(str::to_owned).collect(),
                    })
                    .collect(),
            }
        }),
        1 => any::<u64>().prop_map(|unix_ns| Body::ClockAnchored { unix_ns }),
        1 => (any::<u64>(), prop::sample::select(vec!["exec", "dns"])).prop_map(|(count, probe)| {
            Body::Lost { probe: probe.to_owned(), count }
        }),
        1 => (0u64..4, prop::option::of(0u8..4)).prop_map(|(netns, host)| Body::Limited {
            probe: ["drops", "drops", "waits", "daemon_threads"][netns as usize].to_owned(),
            netns,
            source: host.map(|host| [10, 1, 0, host].into()),
        }),
        1 => (0u64..4).prop_map(|node_netns| Body::TrafficWatched { node_netns }),
        8 => soup_wait(),
        8 => soup_request(),
        12 => soup_traffic(),
        1 => Just(Body::Tick),
    ]
}

/// Waits of threads that exist or not, and of times that may lie behind one another.
fn soup_wait() -> impl Strategy<Value = Body> {
    let times = || {
        (soup_process(), 1u32..12, 0u64..20, 0u64..SECOND).prop_map(|(process, thread, begin, processor_ns)| {
            ThreadTimes {
                process,
                thread,
                begin: Timestamp(begin * SECOND),
                processor_ns,
                run_delay_ns: 0,
            }
        })
    };
    let stack = prop::sample::select(vec![
        "do_wait",
        "locks_lock_inode_wait",
        "hrtimer_nanosleep",
        "unheard_of",
    ]);
    let woke = prop::sample::select(vec![
        "do_notify_parent",
        "asm_sysvec_apic_timer_interrupt",
        "futex_wake",
    ]);
    let names = |name: &str| std::iter::once(name).collect();
    let woken = (
        times(),
        soup_process(),
        1u32..12,
        0u64..40,
        stack,
        woke,
        soup_goroutine(),
    )
        .prop_map(move |(times, process, thread, slept, stack, woke, goroutine)| {
            Body::ThreadWoken(Box::new(ThreadWake {
                times,
                slept_from: Timestamp(slept * SECOND),
                recovered: false,
                stack: names(stack),
                goroutine,
                waker: Waker {
                    process,
                    thread,
                    begin: Timestamp(0),
                    name: "waker".into(),
                    cgroup: String::new(),
                    stack: names(woke),
                },
            }))
        });
    let ran = (times(), 0u64..40, any::<bool>(), 0u64..SECOND).prop_map(|(times, from, preempted, throttled_ns)| {
        Body::ThreadRan(Box::new(ThreadRun {
            times,
            runnable_from: Timestamp(from * SECOND),
            preempted,
            throttled_ns,
        }))
    });
    let ended = times().prop_map(|times| Body::ThreadEnded(Box::new(times)));
    let blocked = (1u32..9).prop_map(|pid| {
        Body::LockBlocked(Box::new(LockBlocked {
            pid,
            path: "/run/lock".to_owned(),
            holder: 1,
            holder_name: "holder".into(),
        }))
    });
    let states = prop::sample::select(vec![ThreadState::Asleep, ThreadState::Running, ThreadState::Runnable]);
    let places = prop::sample::select(vec![
        "do_wait",
        "ep_poll",
        "locks_lock_inode_wait",
        "sk_wait_data",
        "futex_do_wait",
    ]);
    let thread = (times(), states, 0u64..40, places).prop_map(move |(times, state, since, place)| ThreadSeen {
        process: times.process,
        thread: times.thread,
        begin: times.begin,
        state,
        since: Timestamp(since * SECOND),
        stack: names(place),
    });
    let socket = (soup_process(), 0u8..3).prop_map(|(process, peer)| SocketSeen {
        process,
        remote: (peer > 0).then(|| ([10, 1, 0, peer], 443).into()),
        udp: false,
        path: if peer > 0 {
            String::new()
        } else {
            "/run/daemon.sock".to_owned()
        },
        listener: 1,
        listener_name: "daemon".into(),
    });
    let seen = (vec(thread, 0..6), vec(1u32..12, 0..6), vec(socket, 0..4)).prop_map(|(threads, unchanged, sockets)| {
        Body::ThreadsSeen(Box::new(ThreadsSeen {
            threads,
            unchanged,
            sockets,
        }))
    });
    let outcome = prop::sample::select(vec![LockOutcome::Blocked, LockOutcome::Busy, LockOutcome::Taken]);
    let tried = (times(), outcome, 0u64..3).prop_map(|(times, outcome, inode)| {
        Body::FileLockTried(Box::new(FileLockTry {
            process: times.process,
            thread: times.thread,
            outcome,
            device: 1,
            inode,
            path: "/run/lock".to_owned(),
            holder: 1,
            holder_name: "holder".into(),
        }))
    });
    let wanted = prop::sample::select(vec!["rtnl_newlink", "exp_funnel_lock", "something"]);
    let contended = (times(), 0u64..40, 0u32..4, wanted).prop_map(|(times, from, lock, wanted)| {
        Body::KernelLockWaited(Box::new(KernelLockWait {
            process: times.process,
            thread: times.thread,
            begin: times.begin,
            from: Timestamp(from * SECOND),
            kind: KernelLockKind::Mutex,
            lock,
            symbol: "".into(),
            stack: ["mutex_lock", wanted].into_iter().collect(),
            holder: None,
        }))
    });
    let remarked = soup_process().prop_map(|process| {
        Body::NetlinkRemarked(Box::new(NetlinkRemark {
            process,
            message: "refused".into(),
        }))
    });
    let tentative = (soup_process(), 0u64..3, vec((0u16..3, 0u8..2), 0..4)).prop_map(|(process, netns, addresses)| {
        let tentative = |(host, kind): (u16, u8)| TentativeAddress {
            address: [[0xfd00, 0xfe80][usize::from(kind)], 0, 0, 0, 0, 0, 0, host].into(),
            interface: "eth0".into(),
            duplicate: host == 1,
        };
        Body::TentativeSeen(Box::new(TentativeSeen {
            process,
            netns,
            addresses: addresses.into_iter().map(tentative).collect(),
        }))
    });
    let measured = (soup_process(), 0u64..SECOND, 0u64..SECOND).prop_map(|(process, processor_ns, run_delay_ns)| {
        Body::RuntimeMeasured(RuntimeTimes {
            process,
            processor_ns,
            run_delay_ns,
        })
    });
    prop_oneof![
        6 => woken,
        3 => ran,
        2 => ended,
        3 => measured,
        1 => blocked,
        3 => seen,
        2 => tried,
        3 => contended,
        1 => remarked,
        2 => tentative,
        3 => (0u8..5).prop_map(|on| Body::WaitsRecorded { on: on > 0 }),
    ]
}

/// Messages of connections in any order, with daemons that are plugins, clients or unheard of.
fn soup_request() -> impl Strategy<Value = Body> {
    let point = prop::sample::select(vec![
        RequestPoint::Sent,
        RequestPoint::Arrived,
        RequestPoint::Replied,
        RequestPoint::Returned,
        RequestPoint::Awaited,
    ]);
    let bytes = prop::sample::select(vec![9, 200]);
    let step = (
        0u64..5,
        soup_process(),
        point,
        bytes,
        prop::option::of((soup_process(), 0u32..4, any::<bool>(), 0u64..20, soup_goroutine())),
    )
        .prop_map(|(connection, client, point, bytes, daemon)| {
            Body::RequestSeen(Box::new(RequestStep {
                connection,
                client,
                point,
                bytes,
                transport: if connection % 2 == 0 {
                    RequestTransport::Unix
                } else {
                    RequestTransport::Tcp
                },
                daemon: daemon.map(|(process, thread, followed, begin, goroutine)| DaemonProcess {
                    process,
                    thread,
                    thread_begin: Timestamp(begin * SECOND),
                    followed,
                    goroutines: goroutine.is_some(),
                    goroutine,
                    name: "agent".into(),
                    cgroup: String::new(),
                }),
            }))
        });
    prop_oneof![
        12 => step,
        1 => any::<bool>().prop_map(|on| Body::RequestsFollowed { on }),
    ]
}

/// Requests to make a sandbox, and responses; which request a response is for is chosen when times are known.
fn soup_sandbox_request() -> impl Strategy<Value = Body> {
    let pod = PodIdentity {
        namespace: "n".to_owned(),
        name: "p".to_owned(),
        ..PodIdentity::default()
    };
    let outcome = prop::sample::select(vec![
        SandboxOutcome::Made,
        SandboxOutcome::Failed,
        SandboxOutcome::Withdrawn,
    ]);
    let id = prop::option::of(prop::sample::select(vec!["a", "b", "c"]));
    prop_oneof![
        2 => (soup_process(), 0u32..3).prop_map(move |(runtime, stream)| {
            Body::SandboxRequested(Box::new(SandboxRequest { runtime, stream, pod: pod.clone(), attempt: 0 }))
        }),
        1 => (soup_process(), 0u32..3, outcome, id).prop_map(|(runtime, stream, outcome, id)| {
            Body::SandboxResponded(Box::new(SandboxResponse {
                runtime,
                stream,
                requested: Timestamp(0),
                outcome,
                sandbox: id.map(|id| SandboxId(id.to_owned())),
            }))
        }),
    ]
}

fn soup_line() -> impl Strategy<Value = Line> {
    (0u64..4, 0u16..4, 0u8..3, any::<bool>()).prop_map(|(netns, port, server, tcp)| {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        line(netns, port, ([10, 1, 0, server], 53), transport)
    })
}

fn soup_dns() -> impl Strategy<Value = Body> {
    let name = prop::sample::select(vec!["", "a", "a.b", "a.b.c", "a.c", "b", ".", "a..b"]);
    let answer = prop::option::of((0u16..6, any::<bool>(), 0u8..3));
    (
        soup_line(),
        0u16..3,
        name,
        prop::sample::select(vec![1, 28, 16]),
        answer,
        0usize..3,
    )
        .prop_map(|(line, id, name, kind, answer, questions)| {
            let answer = answer.and_then(|(rcode, truncated, which)| {
                answer_with(rcode, which).map(|answer| Answer { truncated, ..answer })
            });
            let mut body = dns(line, id, name, kind, answer);
            if let Body::DnsSeen(message) = &mut body {
                let question = message.questions.remove(0);
                message.questions = vec![question; questions];
                if id == 0 {
                    message.initiator = None;
                    message.socket = 0;
                }
            }
            body
        })
}

fn soup_traffic() -> impl Strategy<Value = Body> {
    let steps = prop::sample::select(vec![
        Step::Started,
        Step::Established,
        Step::Failed(ConnectFailure::Refused),
        Step::Failed(ConnectFailure::Abandoned),
    ]);
    let changes = prop::sample::select(vec![FlowChange::New, FlowChange::Destroyed]);
    let packets = prop::sample::select(vec![DroppedPacket::Dns, DroppedPacket::TcpSyn]);
    prop_oneof![
        6 => soup_dns(),
        3 => (soup_line(), steps).prop_map(|(line, at)| step(line, at)),
        2 => (soup_line(), changes).prop_map(|(line, change)| flow(line, change)),
        1 => (soup_line(), packets, prop::option::of(0u16..3)).prop_map(|(line, packet, id)| dropped(line, packet, id)),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(entries, failed)| counted(entries, failed)),
    ]
}

fn tiny() -> TrafficBounds {
    TrafficBounds {
        max_lookups: 2,
        max_connects: 1,
        max_flows: 1,
        journeys_per_minute: 3,
        ..TrafficBounds::default()
    }
}

/// Any events, mostly forward in time, sometimes far.
fn soup() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![8 => 0i64..5_000_000, 1 => -20_000_000i64..0, 1 => 0i64..400_000_000_000];
    vec((step, soup_body()), 0..200).prop_map(|steps| {
        let mut at = 1_000_000_000i64;
        let mut newest = None;
        steps
            .into_iter()
            .map(|(step, mut body)| {
                at = (at + step).max(0);
                if let Body::SandboxRequested(request) = &body {
                    newest = Some((Timestamp(at.unsigned_abs()), request.stream, request.runtime));
                }
                if let (Body::SandboxResponded(response), Some(newest)) = (&mut body, newest) {
                    (response.requested, response.stream, response.runtime) = newest;
                }
                Event {
                    at: Timestamp(at.unsigned_abs()),
                    body,
                }
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_nothing_breaks(events in soup(), small in any::<bool>()) {
        let config = if small {
            CorrelatorConfig { max_traces: 2, max_processes: 4, max_spans: 8, max_remembered: 1, traffic: tiny(), ..config() }
        } else {
            config()
        };
        prop_assert_eq!(play(&config, &events), play(&config, &events));
    }

    #[test]
    fn times_at_the_ends_of_the_clock_break_nothing(mut events in soup()) {
        for (index, event) in events.iter_mut().enumerate() {
            event.at = [Timestamp(0), Timestamp(u64::MAX), event.at][index % 3];
        }
        play(&config(), &events);
    }
}
