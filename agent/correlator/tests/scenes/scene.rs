//! Scenes: hand-written histories of a node, played through the correlator, and what it made of them as text.
//!
//! ```ignore
//! let mut scene = Scene::new();
//! let plugin = scene.at(3).plugin("bridge", &add("sb", "eth0"));
//! scene.at(5).exit(plugin, 0);
//! assert_eq!(scene.play().text(), "...");
//! ```
//! Times are milliseconds. Every play also checks what holds for all: see [`Played`].

use std::collections::{BTreeMap, BTreeSet};

use sandglass_correlator::{Correlator, CorrelatorConfig, Counters, EndedSpan, Output};
use sandglass_model::cni::ConfigProblem;
use sandglass_model::event::{Exec, Exit, ExitStatus, Fork, Netns, PluginIo, SandboxDescription};
use sandglass_model::text::tree;
use sandglass_model::time::MILLISECOND;
use sandglass_model::{Body, Event, ProcessKey, SandboxId, SpanId, Timestamp, Trace};

/// The environment of a plugin.
pub type Env = Vec<(String, String)>;

/// Where plugins lie.
pub const BIN: &str = "/opt/cni/bin";

fn pairs(list: &[(&str, &str)]) -> Env {
    list.iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// The environment of `command` for an attachment, as libcni makes it.
pub fn cni(command: &str, container: &str, ifname: &str) -> Env {
    pairs(&[
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", &format!("/run/netns/{container}")),
        ("CNI_ARGS", ""),
        ("CNI_IFNAME", ifname),
        ("CNI_PATH", BIN),
    ])
}

pub fn add(container: &str, ifname: &str) -> Env {
    cni("ADD", container, ifname)
}

pub fn del(container: &str, ifname: &str) -> Env {
    cni("DEL", container, ifname)
}

/// `env` with one variable set.
pub fn with(mut env: Env, key: &str, value: &str) -> Env {
    match env.iter_mut().find(|(name, _)| name == key) {
        Some((_, old)) => value.clone_into(old),
        None => env.push((key.to_owned(), value.to_owned())),
    }
    env
}

/// `env` of a pod.
pub fn of_pod(env: Env, name: &str) -> Env {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=uid-{name}");
    with(env, "CNI_ARGS", &args)
}

/// A history in the making.
#[derive(Clone)]
pub struct Scene {
    pub config: CorrelatorConfig,
    pub events: Vec<Event>,
    now: u64,
    pids: u32,
    caller: (ProcessKey, String),
    envs: BTreeMap<ProcessKey, Env>,
}

impl Scene {
    /// The runtime is containerd.
    pub fn new() -> Scene {
        Scene {
            config: CorrelatorConfig {
                boot_id: "boot".to_owned(),
                // A trace is seen as soon as it is complete; labels.rs waits for them.
                labels_wait_ns: 0,
                ..CorrelatorConfig::default()
            },
            events: Vec::new(),
            now: 0,
            pids: 1_000,
            caller: (
                ProcessKey {
                    pid: 100,
                    start_ticks: 1,
                },
                "containerd".to_owned(),
            ),
            envs: BTreeMap::new(),
        }
    }

    /// The runtime is a process with this `comm`.
    pub fn by_runtime(comm: &str) -> Scene {
        let mut scene = Scene::new();
        scene.caller.1 = comm.to_owned();
        scene
    }

    /// What follows happens `ms` milliseconds after boot.
    pub fn at(&mut self, ms: u64) -> &mut Scene {
        self.now = ms * MILLISECOND;
        self
    }

    /// What follows happens `ns` nanoseconds after boot.
    pub fn set_now(&mut self, ns: u64) -> &mut Scene {
        self.now = ns;
        self
    }

    pub fn event(&mut self, body: Body) -> &mut Scene {
        self.events.push(Event {
            at: Timestamp(self.now),
            body,
        });
        self
    }

    pub fn caller(&self) -> ProcessKey {
        self.caller.0
    }

    pub fn new_process(&mut self) -> ProcessKey {
        self.pids += 1;
        ProcessKey {
            pid: self.pids,
            start_ticks: self.now / (10 * MILLISECOND),
        }
    }

    /// The runtime executes a plugin.
    pub fn plugin(&mut self, name: &str, env: &Env) -> ProcessKey {
        let process = self.new_process();
        self.exec(process, self.caller.0, &format!("{BIN}/{name}"), &[], env);
        process
    }

    /// Below `parent` a new process executes `path` with the parent's environment.
    pub fn command(&mut self, parent: ProcessKey, path: &str, args: &[&str]) -> ProcessKey {
        let env = self.envs.get(&parent).cloned().unwrap_or_default();
        let process = self.fork(parent);
        self.exec(process, parent, path, args, &env);
        process
    }

    /// Below `parent` a new process executes a plugin with an environment of its own.
    pub fn delegate(&mut self, parent: ProcessKey, name: &str, env: &Env) -> ProcessKey {
        let process = self.fork(parent);
        self.exec(process, parent, &format!("{BIN}/{name}"), &[], env);
        process
    }

    /// The runtime executes something that is no plugin.
    pub fn runtime(&mut self, path: &str, args: &[&str]) -> ProcessKey {
        let process = self.new_process();
        self.exec(process, self.caller.0, path, args, &Vec::new());
        process
    }

    pub fn exec_event(&self, process: ProcessKey, parent: ProcessKey, path: &str, args: &[&str], env: &Env) -> Exec {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        Exec {
            process,
            parent,
            parent_comm: if parent == self.caller.0 {
                self.caller.1.as_str().into()
            } else {
                Default::default()
            },
            path: path.into(),
            args: std::iter::once(name)
                .chain(args.iter().map(|&arg| arg.to_owned()))
                .collect(),
            args_truncated: false,
            env: env.iter().cloned().collect(),
            cgroup: String::new(),
            netns: 1,
            counted: None,
            running: false,
        }
    }

    pub fn exec(
        &mut self,
        process: ProcessKey,
        parent: ProcessKey,
        path: &str,
        args: &[&str],
        env: &Env,
    ) -> &mut Scene {
        self.envs.insert(process, env.clone());
        let exec = self.exec_event(process, parent, path, args, env);
        self.event(Body::ProcessExecuted(Box::new(exec)))
    }

    pub fn fork(&mut self, parent: ProcessKey) -> ProcessKey {
        let process = self.new_process();
        if let Some(env) = self.envs.get(&parent).cloned() {
            self.envs.insert(process, env);
        }
        self.event(Body::ProcessForked(Fork {
            process,
            parent,
            thread: None,
            goroutine: None,
        }));
        process
    }

    pub fn exit(&mut self, process: ProcessKey, code: i32) -> &mut Scene {
        self.ended(process, ExitStatus::Code(code))
    }

    pub fn ended(&mut self, process: ProcessKey, how: ExitStatus) -> &mut Scene {
        self.event(Body::ProcessExited(Exit { process, how }))
    }

    pub fn plugin_io(&mut self, io: PluginIo) -> &mut Scene {
        self.event(Body::PluginIoRead(Box::new(io)))
    }

    pub fn netns(&mut self, sandbox: &str, created_ms: u64) -> &mut Scene {
        self.netns_made(sandbox, created_ms, None)
    }

    pub fn netns_made(&mut self, sandbox: &str, created_ms: u64, there_ms: Option<u64>) -> &mut Scene {
        self.event(Body::NetnsObserved(Box::new(Netns {
            sandbox: SandboxId(sandbox.to_owned()),
            path: format!("/run/netns/{sandbox}"),
            inode: 7,
            created: Some(Timestamp(created_ms * MILLISECOND)),
            there: there_ms.map(|ms| Timestamp(ms * MILLISECOND)),
        })))
    }

    pub fn described(&mut self, described: SandboxDescription) -> &mut Scene {
        self.event(Body::SandboxDescribed(Box::new(described)))
    }

    pub fn networks(&mut self, lists: &[(&str, &[&str])]) -> &mut Scene {
        let networks = lists
            .iter()
            .map(|(network, plugins)| sandglass_model::cni::NetworkList {
                network: (*network).to_owned(),
                version: "1.0.0".to_owned(),
                plugins: plugins.iter().map(|&plugin| plugin.to_owned()).collect(),
            })
            .collect();
        self.event(Body::NetworksConfigured { networks })
    }

    /// A runtime names a network namespace, or removes the name.
    pub fn netns_named(&mut self, name: &str, removed: bool) -> &mut Scene {
        let name = name.to_owned();
        self.event(Body::NetnsNamed { name, removed })
    }

    /// The CNI configuration is judged: kind and text of each problem.
    pub fn judged(&mut self, problems: &[(&str, &str)]) -> &mut Scene {
        let problems = problems
            .iter()
            .map(|(kind, text)| ConfigProblem {
                kind: (*kind).to_owned(),
                text: (*text).to_owned(),
                handlers: Vec::new(),
            })
            .collect();
        self.event(Body::CniConfigJudged { problems })
    }

    pub fn lost(&mut self, count: u64) -> &mut Scene {
        self.event(Body::Lost {
            probe: "exec".to_owned(),
            count,
        })
    }

    pub fn tick(&mut self) -> &mut Scene {
        self.event(Body::Tick)
    }

    /// One plugin from begin to end.
    pub fn ran(&mut self, name: &str, env: &Env, from_ms: u64, to_ms: u64) -> &mut Scene {
        let plugin = self.at(from_ms).plugin(name, env);
        self.at(to_ms).exit(plugin, 0)
    }

    /// containerd's steps after the network is up: the shim, `runc create`, `runc start`.
    pub fn containerd_starts(&mut self, sandbox: &str, from_ms: u64) -> &mut Scene {
        let shim = self.at(from_ms).runtime(
            "/usr/bin/containerd-shim-runc-v2",
            &["-namespace", "k8s.io", "-id", sandbox, "start"],
        );
        self.at(from_ms + 10).exit(shim, 0);
        let create = self.at(from_ms + 20).runtime(
            "/usr/bin/runc",
            &["--root", "/run/runc", "create", "--bundle", "/b", sandbox],
        );
        self.at(from_ms + 50).exit(create, 0);
        let start = self
            .at(from_ms + 60)
            .runtime("/usr/bin/runc", &["--root", "/run/runc", "start", sandbox]);
        self.at(from_ms + 70).exit(start, 0)
    }

    /// Plays the history to its last event, and no further.
    pub fn play(&self) -> Played {
        let mut played = Played::start(&self.config);
        for event in &self.events {
            played.handle(event);
        }
        played
    }
}

/// A history that was played. On the way it is checked that every closed trace keeps its invariants, that every span
/// ends exactly once and just as it stands in its closed trace, and that outputs come for known traces only.
pub struct Played {
    pub correlator: Correlator,
    pub closed: Vec<Trace>,
    pub outputs: Vec<Output>,
    ended: BTreeMap<SpanId, EndedSpan>,
    now: Timestamp,
}

impl Played {
    pub fn start(config: &CorrelatorConfig) -> Played {
        Played {
            correlator: Correlator::new(config.clone()),
            closed: Vec::new(),
            outputs: Vec::new(),
            ended: BTreeMap::new(),
            now: Timestamp(0),
        }
    }

    pub fn handle(&mut self, event: &Event) {
        self.now = self.now.max(event.at);
        self.correlator.handle(event.clone());
        self.take();
    }

    pub fn finish(mut self) -> Played {
        self.correlator.finish();
        self.take();
        assert!(self.ended.is_empty(), "spans that ended in no trace: {:?}", self.ended);
        assert_eq!(self.correlator.next_deadline(), None, "a timer outlived its trace");
        self
    }

    fn take(&mut self) {
        for output in self.correlator.drain() {
            match &output {
                Output::Ended(ended) => {
                    let twice = self.ended.insert(ended.id, ended.clone());
                    assert!(twice.is_none(), "ended twice: {twice:?}");
                }
                Output::Closed(trace) => {
                    assert_eq!(trace.check(), Ok(()));
                    assert!(trace.closed);
                    let ids: BTreeSet<_> = trace.spans.iter().map(|span| span.id).collect();
                    assert_eq!(ids.len(), trace.spans.len(), "span ids are unique");
                    assert!(trace.spans.is_sorted_by_key(|span| span.start));
                    for span in &trace.spans {
                        let ended = self.ended.remove(&span.id).expect("a span of a closed trace has ended");
                        let counted = EndedSpan {
                            incomplete: ended.incomplete,
                            ..EndedSpan::of(trace, span)
                        };
                        assert_eq!(ended, counted, "an ended span is final");
                    }
                    self.closed.push(Trace::clone(trace));
                }
                Output::LabelsNeeded(_) | Output::Preexisting { .. } | Output::Created(_) | Output::Finding(_) => {}
            }
            self.outputs.push(output);
        }
        for id in self.correlator.take_changed() {
            assert!(self.correlator.open_trace(id).is_some(), "a changed trace is open");
        }
        for trace in self.correlator.open() {
            assert_eq!(trace.check(), Ok(()));
        }
    }

    pub fn counters(&self) -> Counters {
        self.correlator.counters()
    }

    /// Closed traces as text, then open ones after a line `open:`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for trace in &self.closed {
            text.push_str(&tree(trace, self.now));
        }
        for trace in self.correlator.open() {
            text.push_str("open:\n");
            text.push_str(&tree(trace, self.now));
        }
        text
    }

    /// The only closed trace.
    pub fn only(&self) -> &Trace {
        assert_eq!(self.closed.len(), 1, "one trace is closed:\n{}", self.text());
        &self.closed[0]
    }
}

/// Compares texts whatever the width of their columns, and shows both as they are when they differ.
#[track_caller]
pub fn assert_text(found: &str, expected: &str) {
    let squeeze = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| {
                let indent = line.len() - line.trim_start().len();
                format!(
                    "{}{}",
                    " ".repeat(indent),
                    line.split_whitespace().collect::<Vec<_>>().join(" ")
                )
            })
            .collect()
    };
    assert!(
        squeeze(found) == squeeze(expected),
        "found:\n{found}\nexpected:\n{expected}"
    );
}
