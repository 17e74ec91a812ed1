//! The demo's networks: one configuration directory per scenario, and the script plugins some of them chain.
//!
//! Used by the demo's rig. containerd picks the directory by the pod's runtime handler (`cni_conf_dir` of a runtime,
//! containerd 1.6 and later), so scenarios can run in parallel without one seeing another's chain. The chains begin
//! with the distribution's `bridge` and `host-local`. The script plugins speak CNI 1.0.0 with shell built-ins alone:
//! what a waterfall shows below them is what the scenario is about, never their own `cat` or `sed`. The plugin that has a daemon is
//! no script (`shim.rs`).

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::services::SERVICES;

/// Which chain a pod's sandbox gets; its runtime handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// bridge, portmap.
    Plain,
    /// bridge, and a plugin that waits for a command that waits for `sleep`.
    Slow,
    /// bridge, and a plugin that refuses.
    Failing,
    /// bridge, and a plugin that waits for ever.
    Hanging,
    /// bridge, and a plugin whose command waits for a lock that another process of the node holds.
    Locked,
    /// bridge, and a plugin whose command computes on a processor that others keep busy.
    Crowded,
    /// bridge, and a plugin that waits for its daemon, which runs a command for it.
    Served,
    /// Two networks, so two interfaces: bridge and portmap, then a bridge of its own.
    Two,
}

impl Network {
    /// All of them.
    pub const ALL: [Network; 8] = [
        Network::Plain,
        Network::Slow,
        Network::Failing,
        Network::Hanging,
        Network::Locked,
        Network::Crowded,
        Network::Served,
        Network::Two,
    ];

    /// Name of the runtime handler, of its configuration directory and of its (first) network.
    #[must_use]
    pub fn handler(self) -> &'static str {
        match self {
            Network::Plain => "pods",
            Network::Slow => "pods-slow",
            Network::Failing => "pods-failing",
            Network::Hanging => "pods-hanging",
            Network::Locked => "pods-locked",
            Network::Crowded => "pods-crowded",
            Network::Served => "pods-served",
            Network::Two => "pods-two",
        }
    }

    /// How many configuration lists containerd takes from the directory (`cni_max_conf_num`).
    #[must_use]
    pub fn lists(self) -> usize {
        if self == Network::Two { 2 } else { 1 }
    }
}

/// Plugin that waits for `wait-for-policy`.
pub const SLOW_PLUGIN: &str = "slow-policy";
/// The command it waits for; runs `sleep`.
pub const SLOW_COMMAND: &str = "wait-for-policy";
/// Plugin that fails every ADD.
pub const FAILING_PLUGIN: &str = "strict-policy";
/// Error code it fails with: the plugin's own range begins at 100.
pub const FAILING_CODE: u32 = 112;
/// Message it fails with.
pub const FAILING_MESSAGE: &str = "no policy allows this pod";
/// Plugin that never answers an ADD.
pub const HANGING_PLUGIN: &str = "remote-policy";
/// Plugin that changes rules below a lock.
pub const LOCKED_PLUGIN: &str = "rules-policy";
/// The command that waits for the lock: flock(1) under another name.
pub const LOCKED_COMMAND: &str = "set-rules";
/// Who holds it: the same program under a third name.
pub const LOCK_HOLDER: &str = "rules-writer";
/// The lock, below the rig's directory.
pub const LOCK: &str = "rules.lock";
/// Plugin that computes.
pub const CROWDED_PLUGIN: &str = "busy-policy";
/// The command that does.
pub const CROWDED_COMMAND: &str = "compute-policy";
/// Plugin that waits for its daemon.
pub const SHIM_PLUGIN: &str = "shim-policy";
/// The daemon: as a process has its name, so at most 15 bytes.
pub const DAEMON: &str = "policy-daemon";
/// The command that the daemon runs; runs `sleep`.
pub const SERVED_COMMAND: &str = "install-policy";
/// Where the daemon listens, below the rig's directory.
pub const SOCKET: &str = "policy.sock";
/// Name of the second network of [`Network::Two`].
pub const SECOND_NETWORK: &str = "storage";

/// Plugins of the distribution that the chains need; `loopback` is containerd's own wish.
pub const DISTRIBUTION_PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// Programs that the plugins are, or run.
#[derive(Clone, Copy, Debug)]
pub struct Needed<'a> {
    /// Directory of the distribution's plugins.
    pub plugins: &'a Path,
    /// flock(1).
    pub flock: &'a Path,
    /// `sandglass-demo`; without it [`Network::Served`] has no plugin.
    pub own: Option<&'a Path>,
}

/// Writes everything below `dir`: `bin/`, `libexec/`, `clock/`, `cni/<handler>/`. `id` distinguishes this rig's bridges from
/// others', `slow` is how long the slow plugin's command takes.
pub fn write(dir: &Path, needed: Needed<'_>, id: &str, slow: Duration) -> io::Result<()> {
    for below in ["bin", "libexec", "clock", "ipam"] {
        fs::create_dir_all(dir.join(below))?;
    }
    for plugin in DISTRIBUTION_PLUGINS {
        symlink(needed.plugins.join(plugin), dir.join("bin").join(plugin))?;
    }
    // A FIFO without a writer: opening it blocks forever, and needs no process of its own.
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("answers"), rustix::fs::Mode::RUSR)?;
    let at = dir.display();
    let clock = clock(dir);
    for name in [LOCKED_COMMAND, LOCK_HOLDER] {
        symlink(needed.flock, dir.join("libexec").join(name))?;
    }
    if let Some(own) = needed.own {
        symlink(own, dir.join("bin").join(SHIM_PLUGIN))?;
        symlink(own, dir.join("libexec").join(DAEMON))?;
    }
    script(
        &dir.join("libexec").join(SERVED_COMMAND),
        &format!("#!/bin/sh\n# A real one would load programs into the kernel; here one sleep.\nsleep {SERVED_S}\n"),
    )?;
    script(
        &dir.join("bin").join(SLOW_PLUGIN),
        &waiting_plugin(&clock, &format!("{at}/libexec/{SLOW_COMMAND}")),
    )?;
    script(
        &dir.join("bin").join(LOCKED_PLUGIN),
        &waiting_plugin(&clock, &format!("{at}/libexec/{LOCKED_COMMAND} {at}/{LOCK} true")),
    )?;
    script(&dir.join("bin").join(CROWDED_PLUGIN), &crowded_plugin(&at.to_string()))?;
    script(
        &dir.join("libexec").join(CROWDED_COMMAND),
        &format!(
            "#!/bin/sh\n# A real one would render rules; this one counts.\ni=0\nwhile [ $i -lt {COUNT} ]; do i=$((i+1)); done\n"
        ),
    )?;
    script(&dir.join("bin").join(FAILING_PLUGIN), &failing_plugin(&clock))?;
    script(
        &dir.join("bin").join(HANGING_PLUGIN),
        &hanging_plugin(&at.to_string(), &clock),
    )?;
    script(
        &dir.join("libexec").join(SLOW_COMMAND),
        &format!(
            "#!/bin/sh\n# A real one would poll; here one sleep.\nsleep {}\nexit 0\n",
            slow.as_secs_f64()
        ),
    )?;
    for (index, network) in Network::ALL.into_iter().enumerate() {
        let conf_dir = dir.join("cni").join(network.handler());
        fs::create_dir_all(&conf_dir)?;
        let bridge = format!("sgl{id}{index}");
        let mut first = bridge_plugin(dir, &bridge, index);
        // The way to the services, through the pod's first interface alone. With its gateway: Debian's plugins 1.1 do not find a
        // route without one when CRI-O lets them check it.
        first["ipam"]["routes"] = json!([{"dst": SERVICES, "gw": format!("10.213.{}.1", 70 + index)}]);
        let chain = chain(dir, network, first);
        list(&conf_dir.join("10-pods.conflist"), network.handler(), &chain)?;
        if network == Network::Two {
            let index = Network::ALL.len();
            let second = bridge_plugin(dir, &format!("sgl{id}{index}"), index);
            list(&conf_dir.join("20-storage.conflist"), SECOND_NETWORK, &[second])?;
        }
    }
    Ok(())
}

/// Removes the configuration lists that [`write()`] wrote below `dir`; their directories stay.
pub fn remove_lists(dir: &Path) -> io::Result<()> {
    for network in Network::ALL {
        for list in fs::read_dir(dir.join("cni").join(network.handler()))? {
            fs::remove_file(list?.path())?;
        }
    }
    Ok(())
}

fn chain(dir: &Path, network: Network, bridge: Value) -> Vec<Value> {
    let next = match network {
        Network::Plain | Network::Two => json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        Network::Slow => json!({"type": SLOW_PLUGIN}),
        Network::Locked => json!({"type": LOCKED_PLUGIN}),
        Network::Crowded => json!({"type": CROWDED_PLUGIN}),
        Network::Served => json!({"type": SHIM_PLUGIN, "socket": dir.join(SOCKET), "clock": dir.join("clock")}),
        Network::Failing => json!({"type": FAILING_PLUGIN}),
        Network::Hanging => json!({"type": HANGING_PLUGIN}),
    };
    vec![bridge, next]
}

/// Each network has a bridge and a subnet of its own: `host-local` keeps its leases by network name, so two networks
/// of one subnet would give out the same address twice.
fn bridge_plugin(dir: &Path, bridge: &str, index: usize) -> Value {
    json!({
        "type": "bridge",
        "bridge": bridge,
        "isGateway": true,
        "ipMasq": false,
        "ipam": {
            "type": "host-local",
            "dataDir": dir.join("ipam"),
            "ranges": [[{"subnet": format!("10.213.{}.0/24", 70 + index)}]],
        },
    })
}

fn list(path: &Path, name: &str, plugins: &[Value]) -> io::Result<()> {
    // All nodes of a machine share libcni's cache of attachments, by the networks' names: CRI-O deletes at its start those of which it
    // knows no pod (libcni, `GCNetworkList`), and they would be another node's.
    let list = json!({"cniVersion": "1.0.0", "name": name, "disableGC": true, "plugins": plugins});
    fs::write(path, format!("{list:#}\n"))
}

fn script(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Shell functions by which a plugin notes when its ADD began and when it was over: the third opinion on how long it
/// took, besides the agent's and containerd's. The note is the pod's, since a caller whose call failed receives no
/// sandbox; a retry's replaces it. `/proc/uptime` counts `CLOCK_BOOTTIME` in hundredths, and reading it takes no
/// process, unlike `date`.
fn clock(dir: &Path) -> String {
    format!(
        r#"note() {{ printf '%s\n' "$*" > "{}/clock/$uid"; }}
begins() {{
    uid=${{CNI_ARGS#*K8S_POD_UID=}} uid=${{uid%%;*}}
    read -r begin idle < /proc/uptime
    note "$begin"
}}
ends() {{
    read -r end idle < /proc/uptime
    note "$begin" "$end"
}}"#,
        dir.display()
    )
}

fn waiting_plugin(clock: &str, command: &str) -> String {
    format!(
        r#"#!/bin/sh
# CNI plugin that waits for a command before it lets the pod pass.
{clock}
IFS= read -r conf
case $CNI_COMMAND in
VERSION)
    printf '%s\n' '{VERSIONS}' ;;
ADD)
    begins
    {command}
    ends
    # libcni writes the keys of its object in order: after prevResult comes type, the last one.
    result=${{conf#*'"prevResult":'}}
    printf '%s\n' "${{result%,\"type\":*}}" ;;
esac
exit 0
"#
    )
}

/// Keeps no clock: between two readings of it the processor would be another's.
fn crowded_plugin(dir: &str) -> String {
    let processor = busy_processor();
    format!(
        r#"#!/bin/sh
# CNI plugin that computes, on a processor that others keep busy.
IFS= read -r conf
case $CNI_COMMAND in
VERSION)
    printf '%s\n' '{VERSIONS}' ;;
ADD)
    taskset -p -c {processor} $$ > /dev/null
    {dir}/libexec/{CROWDED_COMMAND}
    result=${{conf#*'"prevResult":'}}
    printf '%s\n' "${{result%,\"type\":*}}" ;;
esac
exit 0
"#
    )
}

/// The processor that is kept busy: the last one that this process may use.
#[must_use]
pub fn busy_processor() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None);
    let mut processors = (0..rustix::thread::CpuSet::MAX_CPU).rev();
    let last = allowed
        .ok()
        .and_then(|set| processors.find(|processor| set.is_set(*processor)));
    last.unwrap_or(0)
}

fn failing_plugin(clock: &str) -> String {
    format!(
        r#"#!/bin/sh
# CNI plugin that refuses every pod, with the error that the specification defines.
{clock}
IFS= read -r conf
case $CNI_COMMAND in
VERSION)
    printf '%s\n' '{VERSIONS}' ;;
ADD)
    begins
    ends
    printf '%s\n' '{{"cniVersion":"1.0.0","code":{FAILING_CODE},"msg":"{FAILING_MESSAGE}","details":"ask the demo"}}'
    exit 1 ;;
esac
exit 0
"#
    )
}

/// Its end is its caller's to know.
fn hanging_plugin(dir: &str, clock: &str) -> String {
    format!(
        r#"#!/bin/sh
# CNI plugin that waits for a daemon that never answers.
{clock}
IFS= read -r conf
case $CNI_COMMAND in
VERSION)
    printf '%s\n' '{VERSIONS}' ;;
ADD)
    begins
    read -r answer < "{dir}/answers" ;;
esac
exit 0
"#
    )
}

/// What [`CROWDED_COMMAND`] counts to: about a tenth of a second.
const COUNT: u32 = 80_000;

/// For how long [`SERVED_COMMAND`] sleeps, seconds: most of its pod's creation.
const SERVED_S: f32 = 1.2;

/// What a plugin answers to VERSION.
pub(crate) const VERSIONS: &str = r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn run(dir: &Path, plugin: &str, verb: &str, conf: &str) -> (Option<i32>, Value) {
        let mut child = Command::new(dir.join("bin").join(plugin))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", "abc")
            .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_UID=u-1;K8S_POD_NAME=n")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(conf.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code(), value)
    }

    fn written() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let needed = Needed {
            plugins: Path::new("/nonexistent"),
            flock: Path::new("/usr/bin/flock"),
            own: None,
        };
        write(dir.path(), needed, "abc", Duration::from_millis(50)).unwrap();
        dir
    }

    #[test]
    fn plugins_that_wait_hand_on_the_result() {
        let dir = written();
        let before = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.213.71.2/24"}], "dns": {}});
        for plugin in [LOCKED_PLUGIN, CROWDED_PLUGIN] {
            let conf = json!({"cniVersion": "1.0.0", "name": "n", "prevResult": before, "type": plugin});
            let (code, result) = run(dir.path(), plugin, "ADD", &conf.to_string());
            assert_eq!((code, &result), (Some(0), &before), "{plugin}");
        }
    }

    #[test]
    fn the_slow_plugin_hands_on_the_result_and_notes_its_clock() {
        let dir = written();
        let before = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.213.71.2/24"}], "dns": {}});
        // serde_json keeps its keys in order too, as Go does.
        let conf = json!({"cniVersion": "1.0.0", "name": "n", "prevResult": before, "type": SLOW_PLUGIN});
        let (code, result) = run(dir.path(), SLOW_PLUGIN, "ADD", &conf.to_string());
        assert_eq!((code, &result), (Some(0), &before));
        let took = noted(dir.path());
        assert!((0.03..5.0).contains(&(took[1] - took[0])), "{took:?}");
    }

    /// What the last plugin noted, seconds.
    fn noted(dir: &Path) -> Vec<f64> {
        let note = fs::read_to_string(dir.join("clock/u-1")).unwrap();
        note.split_whitespace().map(|time| time.parse().unwrap()).collect()
    }

    #[test]
    fn the_failing_plugin_fails_add_only_and_as_specified() {
        let dir = written();
        let (code, error) = run(dir.path(), FAILING_PLUGIN, "ADD", "{}");
        assert_eq!(code, Some(1));
        assert_eq!(error["code"], FAILING_CODE);
        assert_eq!(error["msg"], FAILING_MESSAGE);
        assert_eq!(noted(dir.path()).len(), 2);
        assert_eq!(run(dir.path(), FAILING_PLUGIN, "DEL", "{}").0, Some(0));
        assert_eq!(run(dir.path(), HANGING_PLUGIN, "DEL", "{}").0, Some(0));
    }

    #[test]
    fn every_handler_has_as_many_lists_as_it_says() {
        let dir = written();
        for network in Network::ALL {
            let lists = fs::read_dir(dir.path().join("cni").join(network.handler())).unwrap();
            assert_eq!(lists.count(), network.lists(), "{network:?}");
        }
    }
}
