//! Hand-made traces that look like those of a real node, for the tests of store, HTTP server, terminal and page.
//!
//! Deterministic but for the anchor the caller gives. Does not: come from a correlator or a recording.

#![allow(dead_code, reason = "each test binary uses its own part")]

mod network;

use sandglass_model::event::ExitStatus;
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::trace::{
    CommandDetail, CreateDetail, Link, OperationDetail, PluginDetail, ProcessDetail, Relation, RuntimeStep,
    RuntimeStepDetail, SandboxDetail,
};
use sandglass_model::waits::{TimeReason, Waiting};
use sandglass_model::{
    ClockAnchor, CniCommand, CniError, Detail, PodIdentity, SandboxId, Span, SpanId, Status, Timestamp, Trace, TraceId,
};

pub use network::*;

/// Builds one trace; times are milliseconds from the begin of the root.
pub struct Scene {
    pub trace: Trace,
    begin_ns: u64,
    next_pid: u32,
}

/// Boot time at which every scene begins.
const BOOT_NS: u64 = 3_600 * SECOND;

impl Scene {
    /// The creation of a sandbox that began at `start_unix_ns`.
    pub fn sandbox(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Scene {
        let mut scene = Scene::empty(namespace, pod, number, start_unix_ns, "sandbox");
        scene.open(
            None,
            0,
            Detail::Sandbox(Box::new(SandboxDetail {
                attempt: 1,
                runtime: "containerd".into(),
                ..SandboxDetail::default()
            })),
        );
        scene.open(
            Some(0),
            0,
            Detail::SandboxCreate(CreateDetail {
                netns_seen: true,
                runtime_seen: true,
                ..CreateDetail::default()
            }),
        );
        scene
    }

    /// An operation on its own.
    pub fn operation(command: CniCommand, namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Scene {
        let mut scene = Scene::empty(namespace, pod, number, start_unix_ns, command.as_str());
        scene.cni(None, 0, command, "eth0", "podnet", &["bridge", "portmap"]);
        scene
    }

    fn empty(namespace: &str, pod: &str, number: u32, start_unix_ns: u64, what: &str) -> Scene {
        let sandbox = sandbox_id(number);
        Scene {
            trace: Trace {
                id: TraceId::of(&[what.as_bytes(), sandbox.0.as_bytes(), &start_unix_ns.to_le_bytes()]),
                sandbox: Some(sandbox),
                identity: PodIdentity {
                    namespace: namespace.into(),
                    name: pod.into(),
                    uid: format!("7d9f1c3e-0000-4000-8000-{number:012}"),
                    labels: vec![("app".into(), pod.split('-').next().unwrap_or_default().into())],
                },
                anchor: ClockAnchor {
                    boot_ns: BOOT_NS,
                    unix_ns: start_unix_ns,
                },
                incomplete: false,
                closed: false,
                remote_parent: None,
                caller: None,
                spans: Vec::new(),
            },
            begin_ns: BOOT_NS,
            next_pid: 4_000 + number * 40,
        }
    }

    fn at(&self, ms: u64) -> Timestamp {
        Timestamp(self.begin_ns + ms * MILLISECOND)
    }

    pub fn open(&mut self, parent: Option<usize>, ms: u64, detail: Detail) -> usize {
        let index = self.trace.spans.len();
        let id = SpanId::of(&[&self.trace.id.0.to_le_bytes(), &index.to_le_bytes()]);
        self.trace.spans.push(Span {
            id,
            parent,
            start: self.at(ms),
            end: None,
            status: Status::Unset,
            detail,
            events: Vec::new(),
            links: Vec::new(),
        });
        index
    }

    pub fn end(&mut self, index: usize, ms: u64) {
        self.trace.spans[index].end = Some(self.at(ms));
    }

    pub fn cni(
        &mut self,
        parent: Option<usize>,
        ms: u64,
        command: CniCommand,
        ifname: &str,
        network: &str,
        plugins: &[&str],
    ) -> usize {
        let netns = "/var/run/netns/cni-5f2b9a41-77aa".to_owned();
        self.open(
            parent,
            ms,
            Detail::Operation(Box::new(OperationDetail {
                command,
                ifname: ifname.into(),
                network: network.into(),
                netns,
                attempt: 1,
                plugins: plugins.iter().map(|&plugin| plugin.into()).collect(),
                addresses: Vec::new(),
                time: None,
            })),
        )
    }

    fn process(&mut self, path: &str, args: &[&str]) -> ProcessDetail {
        self.next_pid += 1;
        ProcessDetail {
            pid: self.next_pid,
            parent_pid: self.next_pid - 1,
            path: path.into(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            cgroup: "/system.slice/containerd.service".into(),
            netns: 4_026_531_840,
            exit: Some(ExitStatus::Code(0)),
            ..ProcessDetail::default()
        }
    }

    pub fn plugin(&mut self, parent: usize, ms: u64, name: &str, delegate: bool, command: CniCommand) -> usize {
        let path = format!("/opt/cni/bin/{name}");
        let process = self.process(&path, &[&path]);
        self.open(
            Some(parent),
            ms,
            Detail::Plugin(Box::new(PluginDetail {
                plugin: name.into(),
                command,
                delegate,
                spec_version: "1.0.0".into(),
                error: None,
                process,
            })),
        )
    }

    pub fn command(&mut self, parent: usize, ms: u64, plugin: &str, args: &[&str]) -> usize {
        let path = format!("/usr/sbin/{}", args[0]);
        let process = self.process(&path, args);
        self.open(
            Some(parent),
            ms,
            Detail::Command(Box::new(CommandDetail {
                name: args[0].into(),
                plugin: plugin.into(),
                process,
            })),
        )
    }

    pub fn step(&mut self, parent: usize, from: u64, to: u64, step: RuntimeStep) {
        let (path, args): (&str, &[&str]) = match step {
            RuntimeStep::Shim => (
                "/usr/bin/containerd-shim-runc-v2",
                &["containerd-shim-runc-v2", "-namespace", "k8s.io", "start"],
            ),
            RuntimeStep::Create => ("/usr/bin/runc", &["runc", "create", "--bundle", "/run/bundle"]),
            RuntimeStep::Start => ("/usr/bin/runc", &["runc", "start"]),
        };
        let process = self.process(path, args);
        let index = self.open(
            Some(parent),
            from,
            Detail::RuntimeStep(Box::new(RuntimeStepDetail { step, process })),
        );
        self.end(index, to);
    }

    pub fn fail(&mut self, index: usize, class: &str, message: &str) {
        self.trace.spans[index].status = Status::Error {
            class: class.into(),
            message: message.into(),
        };
    }

    /// Closes the trace; open spans end at `ms`.
    pub fn close(mut self, ms: u64) -> Trace {
        let end = self.at(ms);
        for span in &mut self.trace.spans {
            span.end.get_or_insert(end);
        }
        self.trace.closed = true;
        assert_eq!(self.trace.check(), Ok(()));
        self.trace
    }

    /// The trace as it stands, open.
    pub fn snapshot(self) -> Trace {
        assert_eq!(self.trace.check(), Ok(()));
        self.trace
    }
}

pub fn sandbox_id(number: u32) -> SandboxId {
    let half = |salt: &[u8]| TraceId::of(&[salt, &number.to_le_bytes()]);
    SandboxId(format!("{}{}", half(b"a"), half(b"b")))
}

/// `lo` and `eth0` at once; bridge with host-local and a command, then portmap. `eth0` takes from 12 ms on.
fn usual_adds(scene: &mut Scene, bridge_ms: u64, portmap_ms: u64) -> (usize, u64) {
    let lo = scene.cni(Some(1), 12, CniCommand::Add, "lo", "cni-loopback", &["loopback"]);
    let loopback = scene.plugin(lo, 13, "loopback", false, CniCommand::Add);
    scene.end(loopback, 19);
    scene.end(lo, 20);

    let eth0 = scene.cni(Some(1), 12, CniCommand::Add, "eth0", "podnet", &["bridge", "portmap"]);
    let bridge = scene.plugin(eth0, 14, "bridge", false, CniCommand::Add);
    let middle = 14 + bridge_ms / 3;
    let ipam = scene.plugin(bridge, middle, "host-local", true, CniCommand::Add);
    scene.end(ipam, middle + 9);
    let iptables = scene.command(
        bridge,
        middle + 12,
        "bridge",
        &[
            "iptables",
            "-t",
            "nat",
            "-A",
            "POSTROUTING",
            "-s",
            "10.22.0.7/32",
            "-j",
            "CNI-3f1b",
        ],
    );
    scene.end(iptables, middle + 12 + bridge_ms / 4);
    let bridge_end = 14 + bridge_ms + 12;
    scene.end(bridge, bridge_end);
    let portmap = scene.plugin(eth0, bridge_end + 4, "portmap", false, CniCommand::Add);
    let list = scene.command(
        portmap,
        bridge_end + 6,
        "portmap",
        &["iptables", "-t", "nat", "-S", "CNI-HOSTPORT-DNAT"],
    );
    scene.end(list, bridge_end + 6 + portmap_ms / 3);
    let end = bridge_end + 4 + portmap_ms;
    scene.end(portmap, end);
    (eth0, end)
}

fn finish_sandbox(mut scene: Scene, eth0: usize, adds_end: u64) -> Trace {
    if let Detail::Operation(operation) = &mut scene.trace.spans[eth0].detail {
        operation.addresses = vec!["10.22.0.7/16".into()];
    }
    scene.end(eth0, adds_end + 2);
    scene.step(1, adds_end + 5, adds_end + 34, RuntimeStep::Shim);
    scene.step(1, adds_end + 36, adds_end + 83, RuntimeStep::Create);
    scene.step(1, adds_end + 86, adds_end + 104, RuntimeStep::Start);
    scene.end(1, adds_end + 106);
    scene.close(adds_end + 106)
}

/// A sandbox as most are; `number` varies its times.
pub fn usual(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    let mut scene = Scene::sandbox(namespace, pod, number, start_unix_ns);
    let (eth0, end) = usual_adds(
        &mut scene,
        48 + u64::from(number * 13 % 40),
        30 + u64::from(number * 7 % 25),
    );
    finish_sandbox(scene, eth0, end)
}

/// A plugin that is a shell script and waits for `sleep`.
pub fn slow(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    let mut scene = Scene::sandbox(namespace, pod, number, start_unix_ns);
    let (eth0, end) = usual_adds(&mut scene, 52, 34);
    let script = scene.plugin(eth0, end + 3, "slow-firewall", false, CniCommand::Add);
    let shell = scene.command(
        script,
        end + 8,
        "slow-firewall",
        &["wait-for-policy", "--node", "worker-3", "--timeout", "5s"],
    );
    let sleep = scene.command(shell, end + 14, "slow-firewall", &["sleep", "4.2"]);
    scene.end(sleep, end + 4_216);
    scene.end(shell, end + 4_221);
    scene.end(script, end + 4_228);
    finish_sandbox(scene, eth0, end + 4_229)
}

/// Message of the plugin in [`failed`].
pub const NO_ADDRESS: &str =
    "failed to allocate for range 0: no IP addresses available in range set: 10.22.0.1-10.22.0.6";

/// IPAM has no address left; second attempt, linked to the first.
pub fn failed(namespace: &str, pod: &str, number: u32, start_unix_ns: u64, previous: Option<&Trace>) -> Trace {
    let mut scene = Scene::sandbox(namespace, pod, number, start_unix_ns);
    let eth0 = scene.cni(Some(1), 11, CniCommand::Add, "eth0", "podnet", &["bridge"]);
    let bridge = scene.plugin(eth0, 13, "bridge", false, CniCommand::Add);
    let ipam = scene.plugin(bridge, 31, "host-local", true, CniCommand::Add);
    let error = CniError {
        code: 100,
        msg: NO_ADDRESS.into(),
        details: String::new(),
    };
    for index in [ipam, bridge] {
        if let Detail::Plugin(plugin) = &mut scene.trace.spans[index].detail {
            plugin.error = Some(error.clone());
            plugin.process.exit = Some(ExitStatus::Code(1));
        }
        scene.fail(index, error.class(), NO_ADDRESS);
    }
    scene.end(ipam, 44);
    scene.end(bridge, 58);
    scene.fail(eth0, error.class(), NO_ADDRESS);
    scene.end(eth0, 60);
    scene.fail(1, "sandbox_failed", "");
    scene.fail(0, "sandbox_failed", "");
    if let Some(previous) = previous {
        if let Detail::Sandbox(sandbox) = &mut scene.trace.spans[0].detail {
            sandbox.attempt = 2;
        }
        scene.trace.spans[0].links.push(Link {
            trace: previous.id,
            span: previous.root().id,
            relation: Relation::PreviousAttempt,
        });
    }
    scene.close(64)
}

/// A plugin that the runtime killed.
pub fn killed(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    let mut scene = Scene::sandbox(namespace, pod, number, start_unix_ns);
    let eth0 = scene.cni(Some(1), 12, CniCommand::Add, "eth0", "podnet", &["bridge"]);
    let bridge = scene.plugin(eth0, 14, "bridge", false, CniCommand::Add);
    let dhcp = scene.plugin(bridge, 40, "dhcp", true, CniCommand::Add);
    for index in [dhcp, bridge] {
        if let Detail::Plugin(plugin) = &mut scene.trace.spans[index].detail {
            plugin.process.exit = Some(ExitStatus::Signal(9));
        }
        scene.fail(index, "signal", "killed by signal 9");
    }
    scene.end(dhcp, 10_004);
    scene.end(bridge, 10_004);
    scene.fail(eth0, "signal", "plugin bridge was killed by signal 9");
    scene.end(eth0, 10_005);
    scene.fail(1, "sandbox_failed", "");
    scene.fail(0, "sandbox_failed", "");
    scene.close(10_006)
}

/// A plugin that still waits for a lock: open.
pub fn stuck(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    let mut scene = Scene::sandbox(namespace, pod, number, start_unix_ns);
    let eth0 = scene.cni(Some(1), 12, CniCommand::Add, "eth0", "podnet", &["bridge"]);
    let bridge = scene.plugin(eth0, 14, "bridge", false, CniCommand::Add);
    let ipam = scene.plugin(bridge, 30, "host-local", true, CniCommand::Add);
    scene.end(ipam, 38);
    let iptables = scene.command(
        bridge,
        41,
        "bridge",
        &["iptables", "--wait", "-t", "nat", "-N", "CNI-77ab2"],
    );
    for index in [bridge, iptables] {
        let since = scene.trace.spans[iptables].start.plus(3 * MILLISECOND);
        if let Some(process) = scene.trace.spans[index].detail.process_mut() {
            process.exit = None;
            process.waiting = Some(Box::new(Waiting {
                reason: TimeReason::FileLock,
                what: "/run/xtables.lock".into(),
                who: "iptables".into(),
                by: "kube-proxy".into(),
                confidence: None,
                function: "locks_lock_inode_wait".into(),
                since,
            }));
        }
    }
    scene.snapshot()
}

/// The trace of [`stuck`], once it got on after `seconds`.
pub fn unstuck(mut trace: Trace, seconds: u64) -> Trace {
    let end = trace.spans[0].start.plus(seconds * SECOND);
    for span in &mut trace.spans {
        span.end.get_or_insert(end);
        if let Some(process) = span.detail.process_mut() {
            process.waiting = None;
        }
    }
    trace.closed = true;
    assert_eq!(trace.check(), Ok(()));
    trace
}

/// The third DEL of a sandbox, linked to its creation.
pub fn third_del(sandbox: &Trace, start_unix_ns: u64) -> Trace {
    let mut scene = Scene::operation(
        CniCommand::Del,
        &sandbox.identity.namespace,
        &sandbox.identity.name,
        0,
        start_unix_ns,
    );
    scene.trace.sandbox.clone_from(&sandbox.sandbox);
    if let Detail::Operation(operation) = &mut scene.trace.spans[0].detail {
        operation.attempt = 3;
    }
    scene.trace.spans[0].links.push(Link {
        trace: sandbox.id,
        span: sandbox.root().id,
        relation: Relation::Sandbox,
    });
    let portmap = scene.plugin(0, 2, "portmap", false, CniCommand::Del);
    scene.end(portmap, 21);
    let bridge = scene.plugin(0, 24, "bridge", false, CniCommand::Del);
    let ipam = scene.plugin(bridge, 29, "host-local", true, CniCommand::Del);
    scene.end(ipam, 35);
    scene.end(bridge, 61);
    scene.close(63)
}

/// Two DELs of a sandbox that the runtime requested within one trace of its own: the first failed, the second did not.
pub fn dels_of_one_trace(sandbox: &Trace, start_unix_ns: u64) -> [Trace; 2] {
    let [mut first, mut second] = [0, 5].map(|later| third_del(sandbox, start_unix_ns + later * SECOND));
    for (del, number) in [(&mut first, 1), (&mut second, 2)] {
        del.id = TraceId::of(&[b"RemovePodSandbox", &start_unix_ns.to_le_bytes()]);
        del.remote_parent = Some(SpanId::of(&[b"RemovePodSandbox"]));
        if let Detail::Operation(operation) = &mut del.spans[0].detail {
            operation.attempt = number;
        }
    }
    first.spans[0].status = Status::Error {
        class: "exit_code".into(),
        message: "plugin bridge exited with code 1".into(),
    };
    let link = first.root_id().link(Relation::PreviousAttempt);
    second.spans[0].links.push(link);
    [first, second]
}

/// A sandbox whose every text is an attempt to run a script in the page.
pub fn hostile(number: u32, start_unix_ns: u64) -> Trace {
    let evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    let mut scene = Scene::sandbox(evil, evil, number, start_unix_ns);
    let eth0 = scene.cni(Some(1), 12, CniCommand::Add, evil, evil, &[evil]);
    let plugin = scene.plugin(eth0, 14, evil, false, CniCommand::Add);
    let command = scene.command(
        plugin,
        15,
        evil,
        &[evil, "\u{202e}javascript:alert(1)", "\u{0}\u{1b}[31m"],
    );
    scene.fail(command, "exit_code", evil);
    scene.fail(plugin, "exit_code", evil);
    scene.fail(eth0, "exit_code", evil);
    scene.fail(1, "sandbox_failed", evil);
    scene.fail(0, "sandbox_failed", evil);
    scene.close(90)
}

/// A node's last minutes: twenty usual sandboxes, slow, failed, killed, stuck ones, a DEL. Oldest first.
pub fn busy_node(now_unix_ns: u64) -> Vec<Trace> {
    let ago = |seconds: u64| now_unix_ns - seconds * SECOND;
    let apps = [
        "cart", "checkout", "catalog", "search", "payments", "mailer", "frontend",
    ];
    let suffixes = ["7d4b9c6f5-x2k8p", "5c7f8d9b4-q9w4z", "0", "1", "6b8d7f9c4-tm5vn"];
    let mut traces: Vec<Trace> = (0..20)
        .map(|number| {
            let app = apps[number as usize % apps.len()];
            let suffix = suffixes[number as usize % suffixes.len()];
            let namespace = if number % 3 == 0 { "shop" } else { "platform" };
            usual(
                namespace,
                &format!("{app}-{suffix}"),
                number,
                ago(1_900 - u64::from(number) * 90),
            )
        })
        .collect();
    traces.push(slow("shop", "checkout-5c7f8d9b4-slow1", 40, ago(160)));
    let first = failed("batch", "report-28911-jx7lq", 41, ago(140), None);
    traces.push(failed("batch", "report-28911-jx7lq", 42, ago(95), Some(&first)));
    traces.push(first);
    traces.push(killed("edge", "ingress-0", 43, ago(80)));
    traces.push(stuck("shop", "cart-7d4b9c6f5-h4ndl", 44, ago(41)));
    traces.push(third_del(&traces[19].clone(), ago(22)));
    traces
}
