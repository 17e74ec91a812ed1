//! What the agent adds to an ADD: a real chain of plugins, run directly, with and without it.
//!
//! Used by the ADD part, whose `RunPodSandbox` is mostly the runtime's own work and varies by more than the budget. Here
//! this program stands in for libcni: `bridge` with `host-local`, then `portmap` without a port to map; environment,
//! configuration and result through pipes as libcni has them. All of it in network namespaces that no path refers to
//! and that end with this program, so the node's network is left alone and nothing stays behind. The pod's namespace is
//! used again after the DEL, which is not timed.
//!
//! The effect is smaller than what one ADD differs from the next by, so: blocks without (A) and with the agent (B) in the
//! order ABBA, then BAAB, which cancels what drifts evenly; each block after a start of the agent, which is stopped again
//! for A; the caller and its plugins on one processor; of a block its median, of four blocks one ratio, of all ratios the
//! Hodges-Lehmann estimate with a bootstrap interval over them.
//! Beside the time of an ADD stands the processor time of its plugins: in it nothing is waited for, and what the agent's
//! own threads take of that processor is not in it. On a busy machine it is the surer of the two. Surer still is how
//! often the plugins' threads were switched, which no speed of a machine changes: a thread of the agent that runs where a
//! plugin does makes the Go runtime's watcher in it wake again and again until the plugin's own threads go on.
//! All of it goes before the machine's other work, the agent too.
//! Does not: keep the agent on or off that processor, put plugins before the agent, or time the making of a namespace.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use sandglass::demo::networks::Network;
use sandglass::demo::rig::Rig;
use serde_json::{Map, Value};

use crate::Effort;
use crate::add_overhead::agent;
use crate::estimate::{Took, bootstrap_interval, hodges_lehmann};
use crate::processor::{go_before_other_work, stay_on_one_processor};
use crate::report::{Figure, Unit, median, quantile};

/// Measures with the rig's plugins and configuration; its containerd has no part in it.
pub fn run(rig: &Rig, effort: Effort) -> Result<Vec<Figure>> {
    let mut chain = Chain::new(rig)?;
    go_before_other_work();
    chain.adds(WARM_UP)?;
    chain.is_observed()?;
    let (mut longer, mut busier, mut without) = (Vec::new(), Vec::new(), Vec::new());
    let mut switches = [Vec::new(), Vec::new()];
    let end = Instant::now() + effort.add_for.unwrap_or(effort.pick(PERIOD, PERIOD_QUICK));
    while Instant::now() < end || longer.len() < QUADS_LEAST {
        let [off, on] = chain.quad(longer.len() % 2 == 1, &mut switches)?;
        let more = on.more_than(off);
        longer.push(more.wall);
        busier.push(more.processor);
        without.push(off);
    }
    let without = Took::quantile(&without, 0.5);
    let switches = switches.map(|blocks| median(&blocks));
    Ok(vec![
        Figure::new(
            "ADD (bridge, host-local, portmap) without the agent",
            without.wall / 1e6,
            Unit::Milliseconds,
        )
        .remark(format!(
            "{:.1} ms of processor time of its plugins",
            without.processor / 1e6
        )),
        more(
            "ADD (bridge, host-local, portmap) longer with the agent, median",
            &longer,
        ),
        more(
            "processor time of an ADD's plugins more with the agent, median",
            &busier,
        ),
        Figure::new(
            "switches of an ADD's and DEL's plugins more with the agent",
            (switches[1] / switches[0] - 1.0) * 100.0,
            Unit::Percent,
        )
        .at_most(SWITCHES_PERCENT)
        .remark(format!(
            "{:.0} and {:.0}, medians of the blocks",
            switches[0], switches[1]
        )),
    ])
}

fn more(name: &str, percents: &[f64]) -> Figure {
    let (low, high) = bootstrap_interval(percents);
    Figure::new(name, hodges_lehmann(percents), Unit::Percent)
        .at_most(SLOWER_PERCENT)
        .between((low, high))
        .remark(format!(
            "{low:+.2} to {high:+.2} % at 95 % confidence; {} times four blocks of {BLOCK}; middle half {:+.1} to {:+.1} %",
            percents.len(),
            quantile(percents, 0.25),
            quantile(percents, 0.75),
        ))
}

/// The chain, and the namespaces it works in.
struct Chain {
    /// Where the plugins run, in place of the node's own.
    node: File,
    /// Where they put the interface.
    pod: File,
    /// Directory of the plugins.
    bin: String,
    plugins: Vec<Map<String, Value>>,
    made: u32,
}

impl Chain {
    fn new(rig: &Rig) -> Result<Chain> {
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
            made: 0,
        })
    }

    /// The figures mean nothing unless the agent tells of these ADDs: one such look, before measuring.
    fn is_observed(&mut self) -> Result<()> {
        let agent = agent()?;
        self.adds(WARM_UP)?;
        let deadline = Instant::now() + Duration::from_secs(5);
        for plugin in ["bridge", "host-local", "portmap"] {
            let labels = ["operation=\"ADD\"", &format!("plugin=\"{plugin}\"")];
            while agent
                .metrics()?
                .sum("sandglass_cni_plugin_duration_seconds_count", &labels)
                < f64::from(WARM_UP)
            {
                ensure!(
                    Instant::now() < deadline,
                    "the agent does not tell of {WARM_UP} ADDs of {plugin}"
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        agent.stop()
    }

    /// Four blocks: two without and two with the agent, in the middle or, `turned`, around them. Gives what an ADD
    /// usually took without it and with it; adds to `switches` how often an ADD's and its DEL's plugins were switched.
    fn quad(&mut self, turned: bool, switches: &mut [Vec<f64>; 2]) -> Result<[Took; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        for with in [turned, !turned, !turned, turned] {
            // All blocks begin alike, with an agent that starts: that is work, and the machine is another one after it.
            let agent = agent()?;
            let running = if with {
                Some(agent)
            } else {
                agent.stop()?;
                None
            };
            std::thread::sleep(REST);
            // The first ones find the machine as whatever was before them left it.
            self.adds(WARM_UP)?;
            let before = Children::so_far().switches;
            times[usize::from(with)].push(Took::quantile(&self.adds(BLOCK)?, 0.5));
            let switched = Children::so_far().switches - before;
            switches[usize::from(with)].push(switched as f64 / f64::from(BLOCK));
            if let Some(agent) = running {
                agent.stop()?;
            }
        }
        Ok(times.map(|blocks| blocks[0].mean(blocks[1])))
    }

    /// `count` times an ADD and its DEL. Gives what each ADD took.
    fn adds(&mut self, count: u32) -> Result<Vec<Took>> {
        let first = self.made;
        self.made += count;
        let chain = &*self;
        // A namespace is entered by a thread, and what it starts is born there.
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
                // Also after a failed ADD, as the specification has it.
                let deleted = chain.del(number, result.as_ref().unwrap_or(&Value::Null));
                result.and(deleted)?;
                std::thread::sleep(BETWEEN);
            }
            Ok(took)
        };
        std::thread::scope(|scope| {
            let worker = scope.spawn(work);
            worker
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the calling thread died")))
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

    /// Runs one plugin as libcni does; gives what it printed.
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

/// What all processes have used so far that were started here and have been waited for, and theirs.
struct Children {
    processor: Duration,
    /// How often one of their threads left a processor, by itself or not.
    switches: i64,
}

impl Children {
    fn so_far() -> Children {
        // SAFETY: `usage` is a valid place to write to; all of it being zero is a valid value.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
            usage
        };
        let duration = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        Children {
            processor: duration(usage.ru_utime) + duration(usage.ru_stime),
            switches: usage.ru_nvcsw + usage.ru_nivcsw,
        }
    }
}

/// A new network namespace, kept by nothing but the open file.
fn namespace() -> Result<File> {
    let make = || -> Result<File> {
        // SAFETY: only the network namespace of this thread changes, which does nothing but open it, and ends.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.context("cannot make a network namespace")?;
        Ok(File::open("/proc/thread-self/ns/net")?)
    };
    let maker = std::thread::spawn(make);
    maker.join().unwrap_or_else(|_| Err(anyhow!("the making thread died")))
}

const SLOWER_PERCENT: f64 = 1.0;
const SWITCHES_PERCENT: f64 = 5.0;
/// How long blocks are made.
const PERIOD: Duration = Duration::from_secs(270);
const PERIOD_QUICK: Duration = Duration::from_secs(10);
/// Fewer say nothing of how they are spread.
const QUADS_LEAST: usize = 4;
/// ADDs of each block.
const BLOCK: u32 = 24;
/// The first ADD makes the bridge, and reads the plugins from disk.
const WARM_UP: u32 = 3;
/// After the agent has started or stopped: what it reads at its start, or the kernel frees at its end, is not what it
/// costs later.
const REST: Duration = Duration::from_millis(250);
/// After a DEL: the kernel puts the interface away behind it.
const BETWEEN: Duration = Duration::from_millis(10);
