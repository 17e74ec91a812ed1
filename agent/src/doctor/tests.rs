//! Reports of made-up nodes: kernels, configuration directories and scripted runtimes; the text and JSON forms.

use std::fs;

use super::*;

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Node {
        Node(tempfile::tempdir().unwrap())
    }

    fn file(&self, path: &str, text: impl AsRef<[u8]>) -> &Node {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    #[cfg(unix)]
    fn binary(&self, path: &str) -> &Node {
        use std::os::unix::fs::PermissionsExt;
        self.file(path, "");
        fs::set_permissions(self.0.path().join(path), fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// A kernel with everything.
    fn good_kernel(&self) -> &Node {
        let config: String = [
            "BPF_SYSCALL",
            "BPF_JIT",
            "DEBUG_INFO_BTF",
            "BPF_EVENTS",
            "FTRACE",
            "KPROBES",
            "CGROUPS",
            "NET_NS",
        ]
        .iter()
        .map(|option| format!("CONFIG_{option}=y\n"))
        .collect();
        self.file("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
            .file("proc/sys/kernel/osrelease", "6.12.0-test\n")
            .file("sys/kernel/btf/vmlinux", [0; 4096])
            .file("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
            .file("boot/config-6.12.0-test", format!("{config}CONFIG_NF_CONNTRACK=m\n"))
            .file("proc/sys/kernel/perf_event_paranoid", "4\n")
            .file("proc/sys/kernel/unprivileged_bpf_disabled", "2\n")
            .file(
                "proc/self/mountinfo",
                "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            )
    }

    fn options(&self) -> DoctorOptions {
        DoctorOptions {
            runtime: RuntimeChoice::Auto,
            timeout: Duration::from_millis(500),
            pause: Duration::from_millis(10),
            cni: CniOptions {
                root: self.0.path().to_owned(),
                ..CniOptions::default()
            },
            root: self.0.path().to_owned(),
            ..DoctorOptions::new(node_info(), vec![attached("exec", "")])
        }
    }

    async fn report(&self) -> Report {
        run(self.options()).await
    }

    /// The report as text, with this node's directory written as `@`.
    fn text(&self, report: &Report) -> String {
        render(report, false).replace(&self.0.path().display().to_string(), "@")
    }
}

fn node_info() -> NodeInfo {
    NodeInfo {
        name: "n1".to_owned(),
        version: "0.0.0".to_owned(),
        os: "Linux".to_owned(),
        kernel: "6.12.0".to_owned(),
        machine: "x86_64".to_owned(),
        ..NodeInfo::default()
    }
}

fn attached(probe: &str, consequence: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "tp_btf".to_owned(),
        attached: true,
        consequence: consequence.to_owned(),
        hint: String::new(),
    }
}

fn level_of(report: &Report, check: &str, part: &str) -> Level {
    let findings = report.sections.iter().flat_map(|section| &section.findings);
    let found = findings
        .clone()
        .find(|finding| finding.check == check && finding.what.contains(part));
    found
        .unwrap_or_else(|| panic!("no {check} with {part:?} in {report:#?}"))
        .level
}

#[cfg(unix)]
#[tokio::test]
async fn a_good_node_without_runtime_reads_like_this() {
    let node = Node::new();
    node.good_kernel();
    node.file(
        "etc/containerd/config.toml",
        "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/cni'\n",
    );
    for plugin in ["bridge", "host-local", "portmap", "loopback"] {
        node.binary(&format!("cni/{plugin}"));
    }
    node.file(
        "etc/cni/net.d/10-pods.conflist",
        r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}"#,
    );
    node.file("etc/cni/net.d/99-old.conf", r#"{"name":"old","type":"ptp"}"#);
    let mut options = node.options();
    options.probes.push(ProbeStatus {
        probe: "stdio".to_owned(),
        hook: "kprobe".to_owned(),
        attached: false,
        consequence: "no messages of plugins".to_owned(),
        hint: "needs CONFIG_KPROBES".to_owned(),
    });
    let report = run(options).await;
    assert_eq!(report.exit_code(), 0);
    let expected = "\
sandglass 0.0.0 on n1 (Linux 6.12.0 x86_64)

probes
  ok   exec       tp_btf
  warn stdio      none
       why: no messages of plugins
       hint: needs CONFIG_KPROBES

kernel and privileges
  ok   kernel 6.12.0-test
  ok   holds CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_NET_ADMIN CAP_DAC_READ_SEARCH CAP_SYS_RESOURCE CAP_SYS_ADMIN
  ok   type information (BTF), 4 KiB
  ok   kernel lockdown: integrity
  ok   all 9 options are set in /boot/config-6.12.0-test
  ok   perf_event_paranoid = 4 (does not bind CAP_PERFMON)
  ok   unprivileged_bpf_disabled = 2 (does not bind CAP_BPF)
  ok   cgroup v2 at /sys/fs/cgroup

container runtime
  note no CRI socket at the well-known paths
       why: no labels, sandboxes older than the agent are not listed; traces work without
       hint: set the runtime's endpoint, or mount its socket into the agent's container

CNI configuration
  ok   configuration in @/etc/cni/net.d, plugins in @/cni (from @/etc/containerd/config.toml)
  ok   10-pods.conflist: network pods 1.0.0: bridge (ipam host-local) > portmap
  note 10-pods.conflist: not available: STATUS (from cniVersion 1.1.0), GC (from cniVersion 1.1.0)
       why: the runtime does not ask these of this network
  note 99-old.conf: \"cniVersion\" is missing
       why: it is taken as 0.1.0: no CHECK, results in the oldest form, and newer plugins may refuse it
       hint: add \"cniVersion\": \"1.0.0\"
  note 99-old.conf: no plugin \"ptp\" in @/cni
       why: every ADD that comes to this plugin fails
       hint: install the plugin there, or set the runtime's plugin directory
  note 10-pods.conflist wins; containerd does not use 99-old.conf
       why: files are taken in the order of their names

0 fail, 1 warn, 5 note, 11 ok
";
    assert_eq!(node.text(&report), expected);
}

#[tokio::test]
async fn an_empty_node_fails_for_want_of_probes_only() {
    let node = Node::new();
    let report = run(DoctorOptions {
        probes: Vec::new(),
        ..node.options()
    })
    .await;
    assert_eq!(report.count(Level::Fail), 1);
    assert_eq!(report.exit_code(), 1);
    assert_eq!(level_of(&report, "probe", "no probe"), Level::Fail);
    assert_eq!(
        level_of(&report, "cni.directory", "no network configuration"),
        Level::Note
    );
}

#[tokio::test]
async fn what_keeps_probes_away_fails_unless_they_are_attached() {
    let node = Node::new();
    node.good_kernel()
        .file("proc/self/status", "CapEff:\t0000000000000000\n")
        .file("proc/sys/kernel/osrelease", "5.4.0-old\n")
        .file("sys/kernel/btf/vmlinux", "")
        .file("sys/kernel/security/lockdown", "none integrity [confidentiality]\n")
        .file("boot/config-5.4.0-old", "# CONFIG_BPF_SYSCALL is not set\n")
        .file("proc/sys/kernel/bpf_stats_enabled", "1\n")
        .file(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n",
        );
    let lost = ProbeStatus {
        attached: false,
        ..attached("exec", "no spans at all")
    };
    let report = run(DoctorOptions {
        probes: vec![lost],
        ..node.options()
    })
    .await;
    for (check, part) in [
        ("probe", "exec"),
        ("kernel.release", "5.4.0"),
        ("privilege.capabilities", "CAP_BPF is missing"),
        ("privilege.capabilities", "CAP_PERFMON is missing"),
        ("kernel.btf", "no type information"),
        ("kernel.lockdown", "confidentiality"),
        ("kernel.config", "CONFIG_BPF_SYSCALL"),
    ] {
        assert_eq!(level_of(&report, check, part), Level::Fail, "{check}");
    }
    assert_eq!(
        level_of(&report, "privilege.capabilities", "CAP_SYS_RESOURCE"),
        Level::Warn
    );
    assert_eq!(level_of(&report, "kernel.bpf_stats", "1"), Level::Note);
    assert_eq!(level_of(&report, "kernel.cgroup", "beside v1"), Level::Note);
    assert_eq!(
        node.report().await.exit_code(),
        0,
        "probes are attached, whatever the files say"
    );
}

#[tokio::test]
async fn capabilities_of_a_modest_container_are_enough() {
    let node = Node::new();
    // BPF, PERFMON and nothing else.
    node.good_kernel()
        .file("proc/self/status", "CapEff:\t000000c000000000\n");
    let report = run(DoctorOptions {
        probes: Vec::new(),
        ..node.options()
    })
    .await;
    assert_eq!(
        level_of(&report, "privilege.capabilities", "holds CAP_BPF CAP_PERFMON"),
        Level::Ok
    );
    assert_eq!(
        level_of(&report, "privilege.capabilities", "CAP_SYS_PTRACE"),
        Level::Warn
    );
    assert_eq!(report.count(Level::Fail), 1, "only the missing probes");
}

#[tokio::test]
async fn garbage_everywhere_is_no_panic() {
    let node = Node::new();
    let garbage: Vec<u8> = (0..=255u8).cycle().take(9_000).collect();
    for path in [
        "proc/self/status",
        "proc/sys/kernel/osrelease",
        "sys/kernel/btf/vmlinux",
        "sys/kernel/security/lockdown",
        "proc/config.gz",
        "proc/sys/kernel/perf_event_paranoid",
        "proc/self/mountinfo",
        "etc/containerd/config.toml",
        "etc/cni/net.d/a.conf",
        "etc/cni/net.d/b.conflist",
        "run/containerd/containerd.sock",
    ] {
        node.file(path, &garbage);
    }
    let report = node.report().await;
    let text = render(&report, true);
    assert!(text.lines().all(|line| line.len() < 1000));
    assert_eq!(level_of(&report, "cni.settings", "config.toml:1:"), Level::Warn);
    assert_eq!(level_of(&report, "cni.file", "a.conf"), Level::Fail);
    assert!(serde_json::from_str::<serde_json::Value>(&report.to_json()).is_ok());
}

#[tokio::test]
async fn json_has_the_same_findings() {
    let report = Report {
        node: node_info(),
        sections: vec![Section {
            title: "probes",
            findings: vec![
                Finding::ok("probe", "exec"),
                Finding::new(Level::Fail, "probe", "x").why("y"),
            ],
        }],
    };
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["node"]["name"], "n1");
    assert_eq!(
        json["sections"][0]["findings"],
        serde_json::json!([
            {"level": "ok", "check": "probe", "what": "exec"},
            {"level": "fail", "check": "probe", "what": "x", "why": "y"},
        ])
    );
}

#[test]
fn texts_cannot_play_with_the_terminal() {
    let report = Report {
        node: node_info(),
        sections: vec![Section {
            title: "probes",
            findings: vec![Finding::ok("probe", "a\x1b[2Jb\nc".to_owned() + &"x".repeat(5_000))],
        }],
    };
    let text = render(&report, false);
    assert!(text.contains("ok   a [2Jb c"), "{text}");
    assert!(!text.contains('\x1b') && text.len() < 1_000);
    assert!(render(&report, true).contains("\x1b[32mok  \x1b[0m"));
}

#[cfg(unix)]
#[tokio::test]
async fn bad_networks_are_told_apart() {
    let node = Node::new();
    node.good_kernel()
        .file(
            "etc/containerd/config.toml",
            "disabled_plugins = ['cri']\n[plugins.cri.cni]\nmax_conf_num = 3\n",
        )
        .binary("opt/cni/bin/bridge")
        .file("opt/cni/bin/portmap", "")
        .file(
            "etc/cni/net.d/10-a.conflist",
            r#"{"name":"a","cniVersion":"1.1.0","plugins":[{"type":"bridge","name":"z"},{"type":"portmap"}]}"#,
        )
        .file(
            "etc/cni/net.d/20-b.conf",
            r#"{"name":"a","cniVersion":"0.3.1","type":"multus","clusterNetwork":"pods"}"#,
        );
    let report = node.report().await;
    assert_eq!(level_of(&report, "cni.settings", "switched off"), Level::Warn);
    assert_eq!(level_of(&report, "cni.file", "name of its own"), Level::Note);
    assert_eq!(
        level_of(&report, "cni.binary", "portmap is not executable"),
        Level::Fail
    );
    assert_eq!(level_of(&report, "cni.binary", "no plugin \"multus\""), Level::Fail);
    assert_eq!(level_of(&report, "cni.binary", "no plugin \"loopback\""), Level::Fail);
    assert_eq!(level_of(&report, "cni.file", "is also in 10-a.conflist"), Level::Warn);
    assert_eq!(
        level_of(&report, "cni.verbs", "CHECK (from cniVersion 0.4.0)"),
        Level::Note
    );
    assert_eq!(
        level_of(&report, "cni.delegate", "multus delegates to pods"),
        Level::Note
    );
    assert_eq!(report.exit_code(), 1);

    node.file(
        "etc/cni/net.d/15-broken.conf",
        "{\n \"name\": \"x\"\n \"type\": \"y\" }",
    );
    let report = node.report().await;
    let what = "15-broken.conf: line 3, column 2: expected `,` or `}`";
    assert_eq!(level_of(&report, "cni.file", what), Level::Fail);
}

#[cfg(unix)]
mod runtime {
    use super::*;
    use crate::cri::messages::{
        Container, ContainerMetadata, ContainerState, ListContainersResponse, ListPodSandboxResponse, NamespaceMode,
        NamespaceOption, PodSandbox, PodSandboxMetadata, PodSandboxState, PodSandboxStatus, PodSandboxStatusResponse,
        RuntimeCondition, RuntimeStatus, StatusResponse, VersionResponse,
    };
    use crate::cri::messages::{LinuxPodSandboxStatus, Namespace};
    use crate::cri::scripted::{Answer, Runtime};
    use crate::cri::stats::{
        ContainerAttributes, ContainerStats, CpuUsage, LinuxPodSandboxStats, ListContainerStatsResponse,
        ListPodSandboxStatsResponse, MemoryUsage, NetworkInterfaceUsage, NetworkUsage, PodSandboxAttributes,
        PodSandboxStats, ProcessUsage, UInt64Value,
    };

    fn some(value: u64) -> Option<UInt64Value> {
        Some(UInt64Value { value })
    }

    fn condition(kind: &str, status: bool) -> RuntimeCondition {
        RuntimeCondition {
            r#type: kind.to_owned(),
            status,
            reason: if status {
                String::new()
            } else {
                "NetworkPluginNotReady".to_owned()
            },
            message: if status {
                String::new()
            } else {
                "cni plugin not initialized".to_owned()
            },
        }
    }

    fn sandbox(id: &str, state: PodSandboxState) -> PodSandbox {
        PodSandbox {
            id: id.to_owned(),
            metadata: Some(PodSandboxMetadata {
                name: format!("pod-{id}"),
                namespace: "shop".to_owned(),
                ..PodSandboxMetadata::default()
            }),
            state: state as i32,
            ..PodSandbox::default()
        }
    }

    fn container_stats(id: &str, rate: u64) -> ContainerStats {
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: id.to_owned(),
                ..ContainerAttributes::default()
            }),
            cpu: Some(CpuUsage {
                usage_nano_cores: some(rate),
                usage_core_nano_seconds: some(9),
                ..CpuUsage::default()
            }),
            ..ContainerStats::default()
        }
    }

    /// Statistics with everything in them, for the container `c-ID`.
    fn full(id: &str) -> PodSandboxStats {
        let interface = NetworkInterfaceUsage {
            name: "eth0".to_owned(),
            rx_bytes: some(5),
            tx_bytes: some(0),
        };
        PodSandboxStats {
            attributes: Some(PodSandboxAttributes {
                id: id.to_owned(),
                ..PodSandboxAttributes::default()
            }),
            linux: Some(LinuxPodSandboxStats {
                cpu: Some(CpuUsage {
                    usage_nano_cores: some(7),
                    usage_core_nano_seconds: some(70),
                    ..CpuUsage::default()
                }),
                memory: Some(MemoryUsage {
                    working_set_bytes: some(4096),
                    ..MemoryUsage::default()
                }),
                network: Some(NetworkUsage {
                    default_interface: Some(interface),
                    ..NetworkUsage::default()
                }),
                process: Some(ProcessUsage {
                    process_count: some(2),
                    ..ProcessUsage::default()
                }),
                containers: vec![container_stats(&format!("c-{id}"), 7)],
            }),
        }
    }

    fn script(runtime: &Runtime, pods: &[&str], stats: Vec<PodSandboxStats>, rate: u64) {
        let version = VersionResponse {
            runtime_name: "containerd".to_owned(),
            runtime_version: "9.9.9".to_owned(),
            ..VersionResponse::default()
        };
        runtime.on("Version", Answer::of(&version));
        let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", true)];
        let status = StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            ..StatusResponse::default()
        };
        runtime.on("Status", Answer::of(&status));
        let mut items: Vec<_> = pods
            .iter()
            .map(|id| sandbox(id, PodSandboxState::SandboxReady))
            .collect();
        items.push(sandbox("gone", PodSandboxState::SandboxNotready));
        runtime.on("ListPodSandbox", Answer::of(&ListPodSandboxResponse { items }));
        let containers = pods.iter().map(|id| Container {
            id: format!("c-{id}"),
            pod_sandbox_id: (*id).to_owned(),
            metadata: Some(ContainerMetadata {
                name: "app".to_owned(),
                ..ContainerMetadata::default()
            }),
            state: ContainerState::ContainerRunning as i32,
            ..Container::default()
        });
        let containers = containers.collect();
        runtime.on("ListContainers", Answer::of(&ListContainersResponse { containers }));
        runtime.on(
            "ListPodSandboxStats",
            Answer::of(&ListPodSandboxStatsResponse { stats }),
        );
        let stats = pods
            .iter()
            .map(|id| container_stats(&format!("c-{id}"), rate))
            .collect();
        runtime.on("ListContainerStats", Answer::of(&ListContainerStatsResponse { stats }));
    }

    async fn report(runtime: &Runtime) -> Report {
        let node = Node::new();
        node.good_kernel();
        run(DoctorOptions {
            runtime: RuntimeChoice::parse(&runtime.endpoint()).unwrap(),
            ..node.options()
        })
        .await
    }

    fn whats(report: &Report, title: &str) -> Vec<(Level, String)> {
        let section = report.sections.iter().find(|section| section.title == title).unwrap();
        section
            .findings
            .iter()
            .map(|finding| (finding.level, finding.what.clone()))
            .collect()
    }

    #[tokio::test]
    async fn a_good_runtime_is_timed_and_its_figures_are_complete() {
        let runtime = Runtime::start();
        script(&runtime, &["a", "b"], vec![full("a"), full("b")], 7);
        let report = report(&runtime).await;
        let answers = whats(&report, "container runtime");
        let expected = [
            "containerd 9.9.9 at unix://",
            "Version ",
            "Status ",
            "RuntimeReady = true",
            "NetworkReady = true",
            "ListPodSandbox ",
            "ListContainers ",
            "ListContainerStats ",
            "ListPodSandboxStats ",
        ];
        assert_eq!(answers.len(), expected.len(), "{answers:#?}");
        for ((level, what), expected) in answers.iter().zip(expected) {
            assert!(*level == Level::Ok && what.starts_with(expected), "{what} / {expected}");
        }
        assert_eq!(
            whats(&report, "pod statistics"),
            [(Level::Ok, "2 of 2 running pods have all figures".to_owned())]
        );
        assert_eq!(runtime.called("Version"), 3);
    }

    #[tokio::test]
    async fn zero_and_missing_figures_are_shown_per_pod() {
        let runtime = Runtime::start();
        let mut zero = full("zero");
        let linux = zero.linux.as_mut().unwrap();
        linux.cpu.as_mut().unwrap().usage_nano_cores = some(0);
        linux.network = None;
        let mut bare = full("bare");
        bare.linux = Some(LinuxPodSandboxStats::default());
        let mut node_network = full("node");
        node_network.linux.as_mut().unwrap().network = None;
        script(
            &runtime,
            &["zero", "bare", "node", "absent"],
            vec![zero, bare, node_network],
            12_000_000,
        );
        let shares = |network| {
            Answer::of(&PodSandboxStatusResponse {
                status: Some(PodSandboxStatus {
                    linux: Some(LinuxPodSandboxStatus {
                        namespaces: Some(Namespace {
                            options: Some(NamespaceOption {
                                network: network as i32,
                                ..NamespaceOption::default()
                            }),
                        }),
                    }),
                    ..PodSandboxStatus::default()
                }),
                ..PodSandboxStatusResponse::default()
            })
        };
        runtime.on("PodSandboxStatus", shares(NamespaceMode::Pod));
        let first = report(&runtime).await;
        let found = whats(&first, "pod statistics");
        let expected = [
            (Level::Note, "0 of 4 running pods have all figures"),
            (
                Level::Warn,
                "shop/pod-zero (zero): usageNanoCores is 0 while its containers use 12 millicores, no network figures",
            ),
            (
                Level::Warn,
                "shop/pod-bare (bare): usageCoreNanoSeconds is missing, usageNanoCores is missing while its containers use 12 millicores, workingSetBytes is missing, no network figures, no process count, without its running containers app",
            ),
            (Level::Warn, "shop/pod-node (node): no network figures"),
            (Level::Warn, "shop/pod-absent (absent): not in ListPodSandboxStats"),
        ];
        assert_eq!(found, expected.map(|(level, what)| (level, what.to_owned())));
        assert_eq!(first.exit_code(), 0);

        runtime.on("PodSandboxStatus", shares(NamespaceMode::Node));
        let found = whats(&report(&runtime).await, "pod statistics");
        assert!(found.iter().all(|(_, what)| !what.contains("network")), "{found:#?}");
        assert_eq!(found[0].1, "1 of 4 running pods have all figures");
    }

    #[tokio::test]
    async fn an_idle_pod_is_no_warning() {
        let runtime = Runtime::start();
        let mut idle = full("idle");
        idle.linux.as_mut().unwrap().cpu.as_mut().unwrap().usage_nano_cores = some(0);
        script(&runtime, &["idle"], vec![idle], 0);
        let found = whats(&report(&runtime).await, "pod statistics");
        let what = "shop/pod-idle (idle): usageNanoCores is 0 (idle, or never computed)".to_owned();
        assert_eq!(found[1], (Level::Note, what));
    }

    #[tokio::test]
    async fn many_incomplete_pods_are_summed_up() {
        let runtime = Runtime::start();
        let names: Vec<String> = (0..110).map(|n| format!("p{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        script(&runtime, &names, Vec::new(), 1);
        let found = whats(&report(&runtime).await, "pod statistics");
        assert_eq!(found.len(), 22);
        assert_eq!(found[21].1, "... and 90 more pods");
    }

    #[tokio::test]
    async fn a_network_that_is_not_ready_fails_with_the_runtimes_words() {
        let runtime = Runtime::start();
        script(&runtime, &[], Vec::new(), 0);
        let status = StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", true),
                    condition("NetworkReady", false),
                    condition("Other", false),
                ],
            }),
            info: [
                ("lastCNILoadStatus".to_owned(), "cni config load failed: x".to_owned()),
                (
                    "cniconfig".to_owned(),
                    r#"{"PluginDirs":["/d1","/d2"],"PluginConfDir":"/c","PluginMaxConfNum":0}"#.to_owned(),
                ),
            ]
            .into(),
        };
        runtime.on("Status", Answer::of(&status));
        let report = report(&runtime).await;
        let what = "NetworkReady = false: NetworkPluginNotReady cni plugin not initialized";
        assert_eq!(level_of(&report, "cri.condition", what), Level::Fail);
        assert_eq!(level_of(&report, "cri.condition", "Other"), Level::Note);
        assert!(
            report
                .to_json()
                .contains("containerd's last attempt: cni config load failed: x")
        );
        let (_, settings) = &whats(&report, "CNI configuration")[0];
        assert!(
            settings.contains("/c, plugins in ") && settings.ends_with("/d2 (says the runtime)"),
            "{settings}"
        );
        assert_eq!(report.exit_code(), 1);
    }

    #[tokio::test]
    async fn a_runtime_without_cri_or_with_nonsense_is_a_warning() {
        let runtime = Runtime::start();
        assert_eq!(
            level_of(&report(&runtime).await, "cri.call", "UNIMPLEMENTED"),
            Level::Warn
        );
        runtime.on("Version", Answer::Slow(Duration::from_secs(60), Vec::new()));
        assert_eq!(
            level_of(&report(&runtime).await, "cri.call", "no answer within"),
            Level::Warn
        );
        script(&runtime, &["a"], Vec::new(), 0);
        for method in [
            "Status",
            "ListPodSandbox",
            "ListContainers",
            "ListPodSandboxStats",
            "ListContainerStats",
        ] {
            runtime.on(method, Answer::Body(vec![0xff; 99]));
        }
        let report_of_garbage = report(&runtime).await;
        assert_eq!(level_of(&report_of_garbage, "cri.call", "ListContainers"), Level::Warn);
        assert_eq!(report_of_garbage.exit_code(), 0);
        runtime.stop().await;
        assert_eq!(
            level_of(&report(&runtime).await, "cri.call", "cannot connect"),
            Level::Warn
        );
        script(&runtime, &["a"], Vec::new(), 0);
        runtime.on("ListPodSandboxStats", Answer::Status(12, "not implemented"));
        runtime.start_again();
        assert_eq!(
            level_of(&report(&runtime).await, "cri.call", "ListPodSandboxStats"),
            Level::Note
        );
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_real_containerd_is_looked_at() {
        let (containerd, _cri) = match crate::cri::private_containerd::Containerd::start().await {
            Ok(started) => started,
            Err(reason) => {
                eprintln!("SKIPPED doctor::tests::runtime::a_real_containerd_is_looked_at: {reason}");
                return;
            }
        };
        fs::write(containerd.path("net.d/10-x.conflist"), "{\n  \"name\": }").unwrap();
        let report = run(DoctorOptions {
            runtime: RuntimeChoice::parse(&containerd.endpoint()).unwrap(),
            ..DoctorOptions::new(node_info(), vec![attached("exec", "")])
        })
        .await;
        assert_eq!(level_of(&report, "cri.version", "containerd 1."), Level::Ok);
        assert_eq!(level_of(&report, "cri.pace", "ListContainerStats"), Level::Ok);
        assert_eq!(level_of(&report, "cri.condition", "NetworkReady = false"), Level::Fail);
        assert_eq!(
            level_of(&report, "cni.settings", &containerd.path("net.d").display().to_string()),
            Level::Ok
        );
        assert_eq!(
            level_of(&report, "cni.file", "10-x.conflist: line 2, column 11: expected value"),
            Level::Fail
        );
    }
}
