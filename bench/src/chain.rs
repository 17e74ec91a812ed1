//! A real chain of plugins, run directly: this program takes the place of libcni.
//!
//! Used by `add_overhead`. `bridge` with `host-local`, then `portmap` without a port to map; environment, configuration and
//! result through pipes as with libcni. All of it in network namespaces without a path, which end with this program: the
//! node's network is unchanged and nothing is left over. The pod's namespace is used again after the DEL, which is not timed.
//! Does not: time the creation of a namespace, or run a plugin for CHECK.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use sandglass_demo::networks::Network;
use sandglass_demo::rig::Rig;
use serde_json::{Map, Value};

use crate::estimate::Took;
use crate::processor::{Children, stay_on_one_processor};

/// The chain, and the namespaces it works in.
pub struct Chain {
    /// Where the plugins run, in place of the node's own.
    node: File,
    /// Where they put the interface.
    pod: File,
    /// Directory of the plugins.
    bin: String,
    plugins: Vec<Map<String, Value>>,
    /// Pause after a DEL: the kernel removes an interface asynchronously.
    rest: Duration,
    made: u32,
}

impl Chain {
    /// The chain that the rig configures for its pods, in namespaces of its own.
    pub fn of_pods(rig: &Rig) -> Result<Chain> {
        let path = rig.conf_dir(Network::Plain).join("10-pods.conflist");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut list: Value = serde_json::from_str(&text)?;
        let Value::Array(plugins) = list["plugins"].take() else {
            bail!("{} lists no plugins", path.display())
        };
        // As libcni: each plugin gets its own part of the list, with the list's name and version.
        let complete = |plugin: Value| match plugin {
            Value::Object(mut conf) => {
                conf.insert("name".to_owned(), list["name"].clone());
                conf.insert("cniVersion".to_owned(), list["cniVersion"].clone());
                Ok(conf)
            }
            _ => bail!("{} lists a plugin that is no object", path.display()),
        };
        Ok(Chain {
            node: namespace()?,
            pod: namespace()?,
            bin: rig.bin_dir().to_string_lossy().into_owned(),
            plugins: plugins.into_iter().map(complete).collect::<Result<_>>()?,
            rest: AFTER_DEL,
            made: 0,
        })
    }

    /// A plugin of about a quarter of a second by itself, in place of this chain: a shell that starts commands one after another, as
    /// portmap does, and sleeps. Its file is added to the rig's.
    pub fn slow_plugin(mut self) -> Result<Chain> {
        let path = Path::new(&self.bin).join("slow");
        std::fs::write(&path, SLOW_PLUGIN)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        let conf = self.plugins.first_mut().context("no plugin")?;
        conf.retain(|key, _| matches!(key.as_str(), "name" | "cniVersion" | "type"));
        conf["type"] = Value::from("slow");
        self.plugins.truncate(1);
        self.rest = AFTER_SLOW;
        Ok(self)
    }

    /// Of this chain only the first plugin's delegate for addresses, as a plugin by itself: it touches no network, so one
    /// ADD is much like the next.
    pub fn addresses_alone(mut self) -> Result<Chain> {
        self.plugins.truncate(1);
        let conf = self.plugins.first_mut().context("no plugin")?;
        conf["type"] = conf["ipam"]["type"].clone();
        self.rest = Duration::ZERO;
        Ok(self)
    }

    /// The plugins and delegates of one ADD, a process each.
    pub fn processes(&self) -> Vec<&str> {
        let mut all = Vec::new();
        for conf in &self.plugins {
            let delegate = conf.get("ipam").and_then(|ipam| ipam["type"].as_str());
            let plugin = conf["type"].as_str();
            all.extend(plugin);
            all.extend(delegate.filter(|_| delegate != plugin));
        }
        all
    }

    /// Runs an ADD and its DEL `count` times. Returns the time of each ADD.
    pub fn adds(&mut self, count: u32) -> Result<Vec<Took>> {
        let first = self.made;
        self.made += count;
        let chain = &*self;
        // A thread enters the namespace, and its children inherit it.
        let work = move || -> Result<Vec<Took>> {
            move_into_link_name_space(chain.node.as_fd(), Some(LinkNameSpaceType::Network))?;
            stay_on_one_processor();
            let mut took = Vec::new();
            for number in first..first + count {
                let (begin, processor) = (Instant::now(), Children::so_far().processor);
                let result = chain.add(number);
                took.push(Took {
                    wall: begin.elapsed().as_nanos() as f64,
                    processor: (Children::so_far().processor - processor).as_nanos() as f64,
                });
                // Also after a failed ADD (CNI specification 1.1, "DEL").
                let deleted = chain.del(number, result.as_ref().unwrap_or(&Value::Null));
                result.and(deleted)?;
                std::thread::sleep(chain.rest);
            }
            Ok(took)
        };
        std::thread::scope(|scope| {
            let worker = scope.spawn(work);
            worker
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the calling thread panicked")))
        })
    }

    fn add(&self, number: u32) -> Result<Value> {
        let mut result = Value::Null;
        for conf in &self.plugins {
            let output = self.call("ADD", number, conf, &result)?;
            result = serde_json::from_slice(&output)?;
        }
        Ok(result)
    }

    fn del(&self, number: u32, result: &Value) -> Result<Value> {
        for conf in self.plugins.iter().rev() {
            self.call("DEL", number, conf, result)?;
        }
        Ok(Value::Null)
    }

    /// Runs one plugin as libcni does; returns its standard output.
    fn call(&self, verb: &str, number: u32, conf: &Map<String, Value>, before: &Value) -> Result<Vec<u8>> {
        let name = conf["type"].as_str().context("a plugin without a type")?;
        let mut conf = conf.clone();
        if !before.is_null() {
            conf.insert("prevResult".to_owned(), before.clone());
        }
        let id = format!("{:08x}{number:08x}", std::process::id()).repeat(4);
        let mut child = Command::new(format!("{}/{name}", self.bin))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &id)
            .env(
                "CNI_NETNS",
                format!("/proc/{}/fd/{}", std::process::id(), self.pod.as_raw_fd()),
            )
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod-{number};K8S_POD_UID={id}"),
            )
            .env("CNI_PATH", &self.bin)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(Value::Object(conf).to_string().as_bytes())?;
        }
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "{verb} of {name} failed: {}",
            String::from_utf8_lossy(&output.stdout).trim()
        );
        Ok(output.stdout)
    }
}

/// A new network namespace that only the open file keeps alive.
fn namespace() -> Result<File> {
    let make = || -> Result<File> {
        // SAFETY: only the network namespace of this thread changes, which does nothing but open it, and ends.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.context("cannot make a network namespace")?;
        Ok(File::open("/proc/thread-self/ns/net")?)
    };
    let maker = std::thread::spawn(make);
    maker
        .join()
        .unwrap_or_else(|_| Err(anyhow!("the thread that creates namespaces panicked")))
}

const AFTER_DEL: Duration = Duration::from_millis(10);
/// Longer than the programs of waits stay attached after a slow plugin: the other agent's next ADD must not pay for them.
const AFTER_SLOW: Duration = Duration::from_millis(350);
const SLOW_PLUGIN: &str = r#"#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
command=0
while [ $command -lt 60 ]; do
    /bin/true
    command=$((command + 1))
done
sleep 0.15
echo '{"cniVersion":"1.0.0"}'
"#;
