//! Who may be a plugin or a runtime: everything that a pod or a user of the node can claim is tried, and refused with its reason.
//!
//! Containers are made of namespaces and capabilities as a runtime makes them (unshare(1), setpriv(1)). The claim is always made by
//! the last exec, after all privileges are as they will stay.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandglass::app::settings::default_source;
use sandglass::health::{Health, REASONS, RefusedLabel, RefusedProcess};
use sandglass::sources::TrustSettings;
use sandglass::sources::linux::{LinuxOptions, Rung};
use sandglass_model::{Body, Event};

use crate::watch::{Watch, answering, execs, plugin, wait_for};

/// The default capabilities of containerd and CRI-O (oci/spec.go, defaultUnixCaps, of containerd 2.1).
const CONTAINER_CAPABILITIES: &str = "--bounding-set=-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write";

/// `path`, executed by the last of the `wrapper`s with a plugin's environment and a TRACEPARENT.
fn forged(wrapper: &[&str], path: &Path, id: &str) -> Command {
    let (program, arguments) = wrapper.split_first().unwrap();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .args(["/usr/bin/env", "-i", "CNI_COMMAND=ADD", "CNI_NETNS=/proc/1/ns/net"])
        .args(["CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin"])
        .arg(format!("CNI_CONTAINERID={id}"))
        .arg("CNI_ARGS=K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=coredns-victim")
        .arg("TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

pub fn nobody() -> Vec<&'static str> {
    vec!["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
}

/// Whether a wrapper works on this machine.
pub fn works(test: &str, wrapper: &[&str]) -> bool {
    let (program, arguments) = wrapper.split_first().unwrap();
    let outcome = Command::new(program).args(arguments).arg("/bin/true").output();
    let works = outcome.as_ref().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIPPED {test}: {wrapper:?} does not work here: {outcome:?}");
    }
    works
}

fn refused(health: &Health, claim: &str, reason: &str) -> u64 {
    let label = RefusedLabel::all().find(|label| label.claim == claim && label.reason == reason);
    health.untrusted.get_or_create(&label.unwrap()).get()
}

/// A copy of a program under another name, in a folder that everybody can read.
fn copy(watch: &Watch, of: &str, name: &str) -> PathBuf {
    let folder = watch.directory.path();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.join(name);
    std::fs::copy(of, &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Whether an event is about one of these programs or sandboxes.
fn is_about(event: &Event, path: &Path, id: &str) -> bool {
    match &event.body {
        Body::ProcessExecuted(exec) => Path::new(exec.path.as_str()) == path || exec.env("CNI_CONTAINERID") == Some(id),
        Body::NetnsObserved(netns) => netns.sandbox.0 == id,
        _ => false,
    }
}

/// A real plugin is seen, and after it nothing of the claim is still under way.
fn end_with_a_plugin(watch: Watch) -> Vec<Event> {
    let child = plugin(Path::new("/bin/true"), "real").spawn().unwrap();
    let pid = child.id();
    wait_for(child);
    let (_, exec) = watch.exec_of(pid);
    watch.exit_of(exec.process);
    watch.finish()
}

/// A claim that is to be refused.
struct Claim {
    path: PathBuf,
    wrapper: Vec<&'static str>,
    /// Claim and reason.
    expected: (&'static str, &'static str),
}

impl Claim {
    fn run(&self) {
        let mut command = forged(&self.wrapper, &self.path, "forged");
        if self.expected.0 == "runtime" {
            command = Command::new(self.wrapper[0]);
            command
                .args(&self.wrapper[1..])
                .arg(&self.path)
                .args(["--root", "/r", "create", "victim"]);
        }
        assert!(command.status().unwrap().success(), "{:?}", self.wrapper);
    }

    /// Claim and reason of the listed process of this path.
    fn listed(&self, list: &[RefusedProcess]) -> Option<(String, String)> {
        let refused = list.iter().find(|refused| Path::new(&refused.path) == self.path)?;
        Some((refused.claim.clone(), refused.reason.clone()))
    }
}

#[test]
fn a_claim_of_a_pod_or_a_user_is_refused_with_its_reason() {
    let _turn = answering();
    const TEST: &str = "a_claim_of_a_pod_or_a_user_is_refused_with_its_reason";
    let container = ["unshare", "--pid", "--fork", "--net", "--mount"];
    let rootless = ["unshare", "--user", "--map-root-user"];
    let cases = [
        ("user", nobody(), "capabilities"),
        ("capabilities", vec!["setpriv", CONTAINER_CAPABILITIES], "capabilities"),
        (
            "container",
            [&container[..], &["setpriv", CONTAINER_CAPABILITIES]].concat(),
            "pid_namespace",
        ),
        ("net_admin", container.to_vec(), "pid_namespace"),
        ("rootless", rootless.to_vec(), "user_namespace"),
        (
            "rootless_container",
            [&rootless[..], &["--pid", "--fork", "--net"]].concat(),
            "user_namespace",
        ),
    ];
    for rung in Rung::ALL {
        let options = LinuxOptions {
            rungs: vec![rung],
            ..default_source().unwrap()
        };
        let Some(watch) = Watch::with(TEST, options) else {
            return;
        };
        let mut claims = Vec::new();
        for (folder, wrapper, reason) in &cases {
            if !works(TEST, wrapper) {
                continue;
            }
            std::fs::create_dir(watch.directory.path().join(folder)).unwrap();
            for name in ["forger", "runc", "conmon", "containerd-shim-runc-v2"] {
                let claim = if name == "forger" { "plugin" } else { "runtime" };
                claims.push(Claim {
                    path: copy(&watch, "/bin/true", &format!("{folder}/{name}")),
                    wrapper: wrapper.clone(),
                    expected: (claim, reason),
                });
            }
        }
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut unlisted: Vec<&Claim> = claims.iter().collect();
        while !unlisted.is_empty() {
            assert!(
                Instant::now() < deadline,
                "{}: never listed: {}",
                rung.name(),
                unlisted[0].path.display()
            );
            // Some share a slot of the kernel side's table, and others on this machine may write there too: those are run again.
            unlisted.iter().for_each(|claim| claim.run());
            let until = Instant::now() + Duration::from_millis(1_500);
            while !unlisted.is_empty() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
                let list = watch.health.refused.newest_first();
                unlisted.retain(|claim| match claim.listed(&list) {
                    Some((claimed, reason)) => {
                        assert_eq!(
                            (claimed.as_str(), reason.as_str()),
                            claim.expected,
                            "{}",
                            claim.path.display()
                        );
                        false
                    }
                    None => true,
                });
            }
        }
        let events = end_with_a_plugin(watch);
        for event in &events {
            let is_forged = claims.iter().any(|claim| is_about(event, &claim.path, "forged"));
            assert!(!is_forged, "{event:?}");
        }
    }
}

/// Whoever may execute a file with privileges of its own has not been given them.
#[test]
fn privileges_that_come_with_a_file_do_not_count() {
    let _turn = answering();
    const TEST: &str = "privileges_that_come_with_a_file_do_not_count";
    if !works(TEST, &nobody()) {
        return;
    }
    let Some(watch) = Watch::start(TEST) else { return };
    let set_user_id = copy(&watch, "/bin/true", "set_user_id");
    std::fs::set_permissions(&set_user_id, std::fs::Permissions::from_mode(0o4755)).unwrap();
    assert!(forged(&nobody(), &set_user_id, "forged").status().unwrap().success());
    let capable = copy(&watch, "/bin/true", "capable");
    let has_capabilities = Command::new("setcap")
        .arg("cap_net_admin+ep")
        .arg(&capable)
        .status()
        .is_ok_and(|status| status.success());
    if has_capabilities {
        assert!(forged(&nobody(), &capable, "forged").status().unwrap().success());
    } else {
        eprintln!("NOT RUN {TEST}::file_capabilities: setcap does not work here");
    }
    let health = watch.health.clone();
    let events = end_with_a_plugin(watch);
    for path in [&set_user_id, &capable] {
        assert!(
            !events.iter().any(|event| is_about(event, path, "forged")),
            "{}",
            path.display()
        );
    }
    // A file system that is mounted with nosuid gives nothing, and the claim fails for that. Other tests' claims count too.
    let counted = refused(&health, "plugin", "file_privileges") + refused(&health, "plugin", "capabilities");
    assert!(counted >= if has_capabilities { 2 } else { 1 });
}

/// A service that is not root but was given the capability, and what a plugin starts with fewer privileges than its own.
#[test]
fn given_capabilities_count_and_what_a_plugin_starts_is_followed() {
    let _turn = answering();
    const TEST: &str = "given_capabilities_count_and_what_a_plugin_starts_is_followed";
    let mut given = nobody();
    given.extend(["--inh-caps=+net_admin", "--ambient-caps=+net_admin"]);
    if !works(TEST, &given) {
        return;
    }
    let Some(watch) = Watch::start(TEST) else { return };
    let service = copy(&watch, "/bin/true", "service");
    assert!(forged(&given, &service, "given").status().unwrap().success());
    watch.wait("the service's plugin", |events| {
        execs(events).find(|(_, exec)| Path::new(exec.path.as_str()) == service)
    });
    let script = watch.script(
        "steps_down",
        "setpriv --reuid=65534 --regid=65534 --clear-groups /bin/true as-nobody",
    );
    let child = plugin(&script, "steps-down").spawn().unwrap();
    wait_for(child);
    watch.wait("the command of nobody", |events| {
        execs(events).find(|(_, exec)| exec.path == "/bin/true" && exec.args.iter().any(|arg| arg == "as-nobody"))
    });
    let health = watch.health.clone();
    watch.finish();
    let list = health.refused.newest_first();
    assert!(
        !list.iter().any(|refused| Path::new(&refused.path) == service),
        "{list:?}"
    );
}

/// Forged plugins and runtimes, a thousand names a second as far as the machine can, of every kind of container: they leave
/// counts and a bounded list, no loss, and the plugins among them are seen whole.
#[test]
fn thousands_of_forged_names_push_nobody_out() {
    let _turn = answering();
    const TEST: &str = "thousands_of_forged_names_push_nobody_out";
    let container = ["unshare", "--pid", "--fork", "--net"];
    let kinds = [
        (
            "default capabilities",
            [&container[..], &["setpriv", CONTAINER_CAPABILITIES]].concat(),
        ),
        ("NET_ADMIN", container.to_vec()),
        (
            "user namespace",
            [&["unshare", "--user", "--map-root-user"], &container[1..]].concat(),
        ),
        ("nobody", nobody()),
    ];
    let Some(watch) = Watch::start(TEST) else { return };
    copy(&watch, "/bin/true", "forger");
    copy(&watch, "/bin/true", "runc");
    let folder = watch.directory.path().to_owned();
    std::fs::create_dir(folder.join("bin")).unwrap();
    for number in 0..FORGERIES {
        std::os::unix::fs::symlink("../forger", folder.join(format!("bin/forged-{number}"))).unwrap();
    }
    let forgeries = format!(
        "for n in $(seq 0 {}); do CNI_COMMAND=ADD CNI_CONTAINERID=forged-$n bin/forged-$n; \
         ./runc --root /r create forged-$n; done",
        FORGERIES - 1
    );
    let (mut real, mut claims) = (Vec::new(), 0);
    for (kind, wrapper) in kinds {
        if !works(TEST, &wrapper) {
            continue;
        }
        let began = Instant::now();
        let mut flood = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .args(["/bin/sh", "-c", &forgeries])
            .current_dir(&folder)
            .spawn()
            .unwrap();
        let before = real.len();
        while flood.try_wait().unwrap().is_none() {
            let child = plugin(Path::new("/bin/true"), &format!("real-{}", real.len()))
                .spawn()
                .unwrap();
            real.push(child.id());
            wait_for(child);
            std::thread::sleep(Duration::from_millis(20));
        }
        claims += FORGERIES;
        eprintln!(
            "{TEST}: {kind}: {} forgeries in {:?}, {} plugins among them",
            2 * FORGERIES,
            began.elapsed(),
            real.len() - before
        );
    }
    for pid in &real {
        let (_, exec) = watch.exec_of(*pid);
        watch.exit_of(exec.process);
    }
    let health = watch.health.clone();
    let events = end_with_a_plugin(watch);
    for event in &events {
        assert!(!matches!(event.body, Body::Lost { .. }), "{event:?}");
    }
    let is_forged = |path: &str| path.contains("forged-") || Path::new(path).starts_with(&folder);
    let forged =
        execs(&events).find(|(_, exec)| is_forged(&exec.path) || exec.args.iter().any(|arg| arg.contains("forged-")));
    assert!(forged.is_none(), "{forged:?}");
    // Other tests' claims count too.
    let counted = |claim| {
        REASONS
            .iter()
            .map(|reason| refused(&health, claim, reason))
            .sum::<u64>()
    };
    assert!(counted("plugin") >= claims, "{} of {claims}", counted("plugin"));
    assert!(counted("runtime") >= claims, "{} of {claims}", counted("runtime"));
    let list = health.refused.newest_first();
    assert!(!list.is_empty() && list.len() <= 64, "{list:?}");
}

/// Forged plugins, and as many forged runtimes, of each kind of container.
const FORGERIES: u64 = 500;

#[test]
fn exceptions_are_configured_by_user_and_by_cgroup() {
    let _turn = answering();
    const TEST: &str = "exceptions_are_configured_by_user_and_by_cgroup";
    let container = ["unshare", "--pid", "--fork"];
    if !works(TEST, &nobody()) || !works(TEST, &container) {
        return;
    }
    // Beside version 1 the hierarchy is not at /sys/fs/cgroup itself (proc_pid_mounts(5)).
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let of_v2 = |line: &str| line.split(' ').nth(2) == Some("cgroup2");
    let mount = mounts
        .lines()
        .find(|line| of_v2(line))
        .and_then(|line| line.split(' ').nth(1));
    let mount = Path::new(mount.unwrap_or("/nonexistent"));
    let cgroup = format!("/sandglass-test-{}", std::process::id());
    let inner = mount.join(&cgroup[1..]).join("inner");
    for rung in Rung::ALL {
        let has_cgroup = std::fs::create_dir_all(&inner).is_ok() && inner.join("cgroup.procs").exists();
        let options = LinuxOptions {
            rungs: vec![rung],
            trust: TrustSettings {
                users: vec![65_534],
                cgroups: vec![cgroup.clone()],
            },
            ..default_source().unwrap()
        };
        let Some(watch) = Watch::with(TEST, options) else {
            return;
        };
        let users = copy(&watch, "/bin/true", "users");
        assert!(forged(&nobody(), &users, "users").status().unwrap().success());
        let mut user_in_container = container.to_vec();
        user_in_container.extend(nobody());
        let forger = copy(&watch, "/bin/true", "forger");
        assert!(
            forged(&user_in_container, &forger, "forged")
                .status()
                .unwrap()
                .success()
        );
        let trusted = copy(&watch, "/bin/true", "trusted");
        if has_cgroup {
            let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", inner.display());
            let wrapper = ["/bin/sh", "-c", &enter, "sh", "unshare", "--pid", "--fork"];
            assert!(forged(&wrapper, &trusted, "trusted").status().unwrap().success());
        } else {
            eprintln!("NOT RUN {TEST}::cgroups: no cgroup can be made");
        }
        let health = watch.health.clone();
        let events = end_with_a_plugin(watch);
        let ran = |path: &Path| execs(&events).any(|(_, exec)| Path::new(exec.path.as_str()) == path);
        assert!(ran(&users), "{}", rung.name());
        assert_eq!(ran(&trusted), has_cgroup, "{}", rung.name());
        assert!(!ran(&forger), "{}", rung.name());
        assert!(refused(&health, "plugin", "pid_namespace") >= 1, "{}", rung.name());
        if has_cgroup {
            std::fs::remove_dir(&inner).unwrap();
            std::fs::remove_dir(inner.parent().unwrap()).unwrap();
        }
    }
}

/// What runs already when the agent starts is judged by the same rule.
#[test]
fn a_running_forgery_is_not_found_when_the_agent_starts() {
    const TEST: &str = "a_running_forgery_is_not_found_when_the_agent_starts";
    if !works(TEST, &nobody()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let sleeper = folder.path().join("sleeper");
    std::fs::copy("/bin/sleep", &sleeper).unwrap();
    let mut forgery = forged(&nobody(), &sleeper, "forged").arg("1000").spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let image = || std::fs::read_link(format!("/proc/{}/exe", forgery.id()));
    while !image().is_ok_and(|image| image == sleeper) {
        assert!(Instant::now() < deadline, "the forgery did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let watch = Watch::start(TEST);
    let health = watch.as_ref().map(|watch| watch.health.clone());
    let events = watch.map(end_with_a_plugin).unwrap_or_default();
    forgery.kill().unwrap();
    forgery.wait().unwrap();
    let Some(health) = health else { return };
    assert!(!events.iter().any(|event| is_about(event, &sleeper, "forged")));
    let list = health.refused.newest_first();
    let listed = list.iter().find(|refused| Path::new(&refused.path) == sleeper);
    let listed = listed.unwrap_or_else(|| panic!("{list:?}"));
    assert_eq!((listed.reason.as_str(), listed.uid), ("capabilities", 65_534));
}

/// A process of a pod or a user that has unmapped its environment, or may not read it itself, when the agent starts: it could
/// not be a plugin, and provokes no loss. That a trusted one does is tested beside the code: here it would be a loss of other
/// tests, too.
#[test]
fn who_hides_an_environment_provokes_no_loss() {
    const TEST: &str = "who_hides_an_environment_provokes_no_loss";
    // Only whole pages within the environment: what lies beside them is still needed.
    const UNMAP: &str = "\
import ctypes, sys, time
stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
start, end = -(-int(stat[47]) // 4096) * 4096, int(stat[48]) // 4096 * 4096
libc = ctypes.CDLL(None, use_errno=True)
call = {'munmap': lambda: libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(end - start)),
        'mprotect': lambda: libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 0)}[sys.argv[1]]
assert end > start and call() == 0
print('ready', flush=True)
time.sleep(1000)
";
    let container = ["unshare", "--pid", "--fork", "--kill-child"];
    let rootless = ["unshare", "--user", "--map-root-user", "--kill-child", "--fork"];
    let kinds = [
        ("user", nobody(), "munmap"),
        ("container", container.to_vec(), "mprotect"),
        ("user namespace", rootless.to_vec(), "munmap"),
    ];
    let python = Command::new("/usr/bin/python3").arg("--version").output();
    if python.is_err() || kinds.iter().any(|(_, wrapper, _)| !works(TEST, wrapper)) {
        sandglass_lab::skip::skipped(TEST, "needs /usr/bin/python3, setpriv and unshare");
        return;
    }
    for (kind, wrapper, call) in kinds {
        let mut hidden = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .args(["/usr/bin/python3", "-c", UNMAP, call])
            .env_clear()
            .env("FILLER", "x".repeat(50_000))
            .env("PATH", "/usr/bin:/bin")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(hidden.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let watch = Watch::start(TEST);
        let events = watch.map(end_with_a_plugin);
        hidden.kill().unwrap();
        hidden.wait().unwrap();
        assert_eq!(line, "ready\n", "{kind}");
        let Some(events) = events else { return };
        for event in &events {
            assert!(!matches!(event.body, Body::Lost { .. }), "{kind} {call}: {event:?}");
        }
    }
}
