//! Reports of nodes whose plugins must be executable files, which only Unix knows: whole texts, networks, runtimes.

mod network;
mod runtime;

use std::os::unix::fs::PermissionsExt;

use super::*;

impl Node {
    fn binary(&self, path: &str) -> &Node {
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

    /// The report as text, with this node's directory written as `@`.
    fn text(&self, report: &Report) -> String {
        render(report, false).replace(&self.0.path().display().to_string(), "@")
    }
}

#[tokio::test]
async fn garbage_is_named_with_its_file() {
    let report = report_of_garbage().await;
    assert_eq!(level_of(&report, "cni.settings", "config.toml:1:"), Level::Warn);
    assert_eq!(level_of(&report, "cni.file", "a.conf"), Level::Fail);
}

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
  ok   exec: tp_btf
  warn stdio: none
       why: no messages of plugins
       hint: needs CONFIG_KPROBES

kernel and privileges
  ok   kernel 6.12.0-test
  ok   holds CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_NET_ADMIN CAP_DAC_READ_SEARCH CAP_SYS_RESOURCE CAP_SYS_ADMIN
  ok   type information (BTF), 4 KiB
  ok   kernel lockdown: integrity
  ok   all 9 options are set in /boot/config-6.12.0-test
  ok   perf_event_paranoid = 4
  ok   unprivileged_bpf_disabled = 2 (holders of CAP_BPF may all the same)
  ok   cgroup v2 at /sys/fs/cgroup

names and conntrack
  note the node's /etc/resolv.conf cannot be read
       why: how programs of the node resolve names is not known
       hint: in a container, mount the node's /etc/resolv.conf
  note no sandbox with a readable resolv.conf runs here
  note connection tracking is not loaded
       why: no address on this node is translated by conntrack so far

container runtime
  note no CRI socket at the well-known paths
       why: no pod labels, and sandboxes older than the agent are not listed; traces do not need it
       hint: set the runtime's endpoint, or mount its socket into the agent's container

CNI configuration
  ok   configuration in @/etc/cni/net.d, plugins in @/cni (from @/etc/containerd/config.toml)
  ok   10-pods.conflist: network pods 1.0.0: bridge (ipam host-local) > portmap
  note 10-pods.conflist: not available: STATUS (from cniVersion 1.1.0), GC (from cniVersion 1.1.0)
       why: the runtime does not request these of this network
  note 99-old.conf: \"cniVersion\" is missing
       why: it is taken as 0.1.0: no CHECK, results in the oldest form, and newer plugins may refuse it
       hint: add \"cniVersion\": \"1.0.0\"
  note 99-old.conf: no plugin \"ptp\" in @/cni
       why: every ADD that comes to this plugin fails
       hint: install the plugin there, or set the runtime's plugin directory
  note 10-pods.conflist wins; containerd does not use 99-old.conf
       why: files are taken in the order of their names
  note network pods: no store of addresses can be read: there is none yet, or it is not mounted here (@/var/lib/cni/networks/pods)
       why: how full the pool is, and what is leaked, is not known
       hint: mount the directory into the agent's container, read-only

0 fail, 1 warn, 9 note, 11 ok
";
    assert_eq!(node.text(&report), expected);
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
        ("privilege.capabilities", "CAP_SYS_RESOURCE is missing"),
        ("kernel.btf", "no type information"),
        ("kernel.lockdown", "confidentiality"),
        ("kernel.config", "CONFIG_BPF_SYSCALL"),
    ] {
        assert_eq!(level_of(&report, check, part), Level::Fail, "{check}");
    }
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
    assert_eq!(level_of(&report, "kernel.perf_event_paranoid", "= 4"), Level::Note);
    assert_eq!(report.count(Level::Fail), 1, "only the missing probes");
}

#[tokio::test]
async fn a_confined_domain_is_a_finding_where_probes_are_missing() {
    let node = Node::new();
    let label = |label: &str| {
        node.good_kernel().file("proc/self/attr/current", label);
    };
    let report_with = async |probes| {
        let options = DoctorOptions {
            probes,
            ..node.options()
        };
        run(options).await
    };
    let missing = |probe: &str| ProbeStatus {
        attached: false,
        ..attached(probe, "refused")
    };
    let of_domain = |report: &Report| level_of(report, "privilege.selinux", "SELinux domain ");
    label("system_u:system_r:container_t:s0:c1,c2\0");
    node.file("sys/fs/selinux/enforce", "1");
    let refused = report_with(vec![missing("exec")]).await;
    assert_eq!(of_domain(&refused), Level::Fail);
    let text = node.text(&refused);
    for part in [
        "fail SELinux domain system_u:system_r:container_t:s0:c1,c2 (enforcing)",
        "linux.seLinuxOptions.type=spc_t",
        "`ausearch -m avc -c sandglass`",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let partly = report_with(vec![attached("exec", ""), missing("dns")]).await;
    assert_eq!(of_domain(&partly), Level::Note);
    assert_eq!(of_domain(&node.report().await), Level::Ok);
    node.file("sys/fs/selinux/enforce", "0");
    assert_eq!(of_domain(&report_with(vec![missing("exec")]).await), Level::Ok);
    node.file("sys/fs/selinux/enforce", "1");
    label("system_u:system_r:spc_t:s0");
    assert_eq!(of_domain(&report_with(vec![missing("exec")]).await), Level::Ok);
    label("cri-containerd.apparmor.d (enforce)\n");
    assert!(!node.text(&node.report().await).contains("SELinux"));
}

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

#[tokio::test]
async fn what_each_runtime_does_with_a_loaded_network_is_said() {
    use crate::cni_conf::RuntimeKind;
    let node = Node::new();
    node.good_kernel()
        .binary("opt/cni/bin/bridge")
        .file("etc/cni/net.d/10-a.conf", r#"{"cniVersion":"1.0.0","type":"bridge"}"#)
        .file(
            "etc/cni/net.d/20-b.conflist",
            r#"{"cniVersion":"1.0.0","name":"b","disableCheck":"true","plugins":[{"type":"bridge","ipam":{"TYPE":"gone"}},{"type":"loopback"}]}"#,
        );
    let report_of = |runtime, max: u32| {
        node.file(
            "etc/containerd/config.toml",
            format!("[plugins.cri.cni]\nmax_conf_num = {max}"),
        );
        let mut options = node.options();
        options.cni.runtime = Some(runtime);
        run(options)
    };
    let report = report_of(RuntimeKind::Containerd, 2).await;
    assert_eq!(
        level_of(&report, "cni.file", "10-a.conf: the network has no name"),
        Level::Fail
    );
    assert_eq!(level_of(&report, "cni.binary", "no plugin \"gone\""), Level::Fail);
    let older = "20-b.conflist: containerd up to 1.7 does not load it: \"disableCheck\" is not true or false";
    assert_eq!(level_of(&report, "cni.file", older), Level::Warn);
    let text = node.text(&report);
    assert_eq!(text.matches("no plugin \"loopback\"").count(), 1, "{text}");

    let report = report_of(RuntimeKind::Crio, 1).await;
    assert_eq!(
        level_of(&report, "cni.file", "10-a.conf: network 10-a.conf 1.0.0: bridge"),
        Level::Ok
    );
    assert_eq!(
        level_of(&report, "cni.file", "10-a.conf: the network has no name"),
        Level::Note
    );
}

#[tokio::test]
async fn a_limit_of_the_agent_is_called_so() {
    let node = Node::new();
    node.good_kernel()
        .file("etc/containerd/config.toml", "")
        .file("etc/cni/net.d/10-a.conf", vec![b' '; (1 << 20) + 1]);
    let report = node.report().await;
    assert_eq!(
        level_of(&report, "cni.file", "the most that the agent reads"),
        Level::Warn
    );
    assert_eq!(level_of(&report, "cni.choice", "depends on 10-a.conf"), Level::Warn);
    assert!(
        node.text(&report)
            .contains("the limit is the agent's, not the runtime's")
    );
}

#[tokio::test]
async fn the_hint_of_jq_stands_where_jq_shows_it() {
    let node = Node::new();
    node.good_kernel();
    for (text, hints_at_jq) in [
        ("{\"a\": }", true),
        ("{\"a\" 1}", true),
        ("{\"a\": [1,]}", true),
        ("{\"a\": \"\\x\"}", true),
        ("{", true),
        ("", false),
        ("\u{feff}{}", false),
        ("{} {}", false),
        ("{\"a\": 01}", false),
        ("{\"a\": NaN}", false),
        ("{} // x", false),
    ] {
        node.file("etc/cni/net.d/10-a.conf", text);
        let shown = node
            .text(&node.report().await)
            .contains("`jq . FILE` shows the same place");
        assert_eq!(shown, hints_at_jq, "{text}");
    }
}

#[tokio::test]
async fn who_names_the_directories_is_said() {
    let node = Node::new();
    node.good_kernel().file(
        "etc/containerd/config.toml",
        "[plugins.cri.cni]\nbin_dir='/opt/cni/bin'",
    );
    let found = "from @/etc/containerd/config.toml";
    for (conf_dir, bin_dir, expected) in [
        (
            None,
            None,
            format!("in @/etc/cni/net.d, plugins in @/opt/cni/bin ({found})"),
        ),
        (
            Some("/a"),
            None,
            format!("in /a (set by cni.conf_dir), plugins in @/opt/cni/bin ({found})"),
        ),
        (
            None,
            Some("/b"),
            format!("in @/etc/cni/net.d ({found}), plugins in /b (set by cni.bin_dirs)"),
        ),
    ] {
        let mut options = node.options();
        options.cni.conf_dir = conf_dir.map(Into::into);
        options.cni.bin_dirs.extend(bin_dir.map(Into::into));
        let text = node.text(&run(options).await);
        assert!(text.contains(&format!("ok   configuration {expected}\n")), "{text}");
    }
}

#[tokio::test]
async fn a_pool_of_addresses_that_runs_dry_fails_before_the_pods_do() {
    let node = Node::new();
    node.good_kernel();
    node.file(
        "etc/cni/net.d/10-pods.conflist",
        r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":
            {"type":"host-local","subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.19"}}]}"#,
    );
    let allocate = |address: u8| {
        node.file(
            &format!("var/lib/cni/networks/pods/10.1.0.{address}"),
            "sandbox\r\neth0",
        );
    };
    (10..18).for_each(allocate);
    let level = |report: &Report| level_of(report, "cni.pool", "addresses used");
    assert_eq!(level(&node.report().await), Level::Ok);
    allocate(18);
    assert_eq!(level(&node.report().await), Level::Warn);
    allocate(19);
    let report = node.report().await;
    assert_eq!(level(&report), Level::Fail);
    assert!(node.text(&report).contains("network pods: 10 of 10 addresses used"));
}
