//! The real agent as it records this machine for a test: `sandglass record` in a process and with an environment of its own.
//!
//! Used by tests of situations that `agent/recordings` holds one of each. With `RECORD_INTO=DIR` the file is kept there as
//! `TEST.jsonl`, without what other processes of the machine did. Needs root with BPF, or prints `SKIPPED`. Does not: judge.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandglass_lab::skip::skipped;
use sandglass_model::recording::{self, Header};
use sandglass_model::{Body, Event, ProcessKey};

/// A running `sandglass record`; ended when it is dropped.
pub struct Recorder {
    process: Child,
    file: PathBuf,
    test: &'static str,
}

/// Longest wait for the agent, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

impl Recorder {
    /// Begins to record, all waits. Returns when the file has its first event of the kernel side, since by then its programs are
    /// attached. `None`, with a line `SKIPPED`, where this machine cannot be observed.
    pub fn start(test: &'static str, folder: &Path, variables: &[(&str, &str)]) -> Option<Recorder> {
        let (file, log) = (folder.join("recorded.jsonl"), folder.join("recorder.log"));
        let process = Command::new(env!("CARGO_BIN_EXE_sandglass"))
            .arg("record")
            .arg(&file)
            .args(["--cri-endpoint", "none", "--set", "waits.after=0s"])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut recorder = Recorder { process, file, test };
        let begin = Instant::now();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        while !read(&recorder.file).contains(r#""event":"waits_recorded","on":true"#) {
            if let Some(status) = recorder.process.try_wait().unwrap() {
                // 69: the kernel lacks something; 77: privilege is missing.
                let words = read(&log);
                assert!(matches!(status.code(), Some(69 | 77)), "{status}: {words}");
                skipped(test, words.lines().last().unwrap_or_default());
                return None;
            }
            if read(&recorder.file).contains(r#""event":"tick""#) && begin.elapsed() > PATIENCE / 6 {
                skipped(test, "the kernel does not record waits");
                return None;
            }
            assert!(begin.elapsed() < PATIENCE, "nothing is recorded: {}", read(&log));
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(recorder)
    }

    /// An event of this name is in the file. What the agent can do here it says first.
    pub fn has(&self, event: &str) -> bool {
        let text = std::fs::read_to_string(&self.file).unwrap();
        text.contains(&format!(r#""event":"{event}""#))
    }

    /// Ends the recording and returns what it has of this sandbox's processes and their requests, with what belongs to no process.
    pub fn finish(mut self, sandbox: &str) -> Vec<Event> {
        // What the last exit makes is on its way: a look a second, and ticks that lag by a quarter of one.
        std::thread::sleep(Duration::from_millis(1_200));
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
        let text = std::fs::read_to_string(&self.file).unwrap();
        let (header, lines) = text.split_once('\n').unwrap();
        let all = lines.lines().map(|line| recording::decode_event(line).unwrap());
        let events = of_sandbox(all.collect(), sandbox);
        self.keep(&serde_json::from_str(header).unwrap(), &events);
        events
    }

    fn keep(&self, header: &Header, events: &[Event]) {
        let Some(directory) = std::env::var_os("RECORD_INTO") else {
            return;
        };
        let path = Path::new(&directory).join(format!("{}.jsonl", self.test));
        let _ = std::fs::remove_file(&path);
        let mut recorder = sandglass::sinks::recording::Recorder::create(&path, header).unwrap();
        for event in events {
            recorder.record(event);
        }
        recorder.finish().unwrap();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Events of the plugin of a sandbox and of what it started, in the order of the file, and those of no process.
fn of_sandbox(events: Vec<Event>, sandbox: &str) -> Vec<Event> {
    let mut own: BTreeSet<ProcessKey> = BTreeSet::new();
    let mut by_time: Vec<&Event> = events.iter().collect();
    by_time.sort_by_key(|event| event.at);
    for event in by_time {
        match &event.body {
            Body::ProcessExecuted(exec) if exec.env("CNI_CONTAINERID") == Some(sandbox) => {
                own.insert(exec.process);
            }
            Body::ProcessForked(fork) if own.contains(&fork.parent) => {
                own.insert(fork.process);
            }
            _ => {}
        }
    }
    let is_own = |event: &Event| belongs(event, sandbox, &own);
    let mut events: Vec<Event> = events.into_iter().filter(is_own).collect();
    for event in &mut events {
        if let Body::ThreadsSeen(seen) = &mut event.body {
            let ids: BTreeSet<u32> = own.iter().map(|process| process.pid).collect();
            seen.threads.retain(|thread| own.contains(&thread.process));
            seen.unchanged.retain(|thread| ids.contains(thread));
            seen.sockets.retain(|socket| own.contains(&socket.process));
        }
    }
    events
}

fn belongs(event: &Event, sandbox: &str, own: &BTreeSet<ProcessKey>) -> bool {
    match &event.body {
        Body::ProcessExecuted(exec) => own.contains(&exec.process),
        Body::ProcessForked(fork) => own.contains(&fork.parent),
        Body::ProcessExited(exit) => own.contains(&exit.process),
        Body::PluginIoRead(spoken) => own.contains(&spoken.process),
        Body::ThreadWoken(wake) => own.contains(&wake.times.process),
        Body::ThreadRan(run) => own.contains(&run.times.process),
        Body::ThreadEnded(times) => own.contains(&times.process),
        Body::TentativeSeen(seen) => own.contains(&seen.process),
        Body::KernelLockWaited(wait) => own.contains(&wait.process),
        Body::FileLockTried(tried) => own.contains(&tried.process),
        Body::NetlinkRemarked(remark) => own.contains(&remark.process),
        Body::LockBlocked(blocked) => own.iter().any(|process| process.pid == blocked.pid),
        Body::ConnectSeen(step) => step
            .initiator
            .as_ref()
            .is_some_and(|initiator| own.contains(&initiator.process)),
        Body::NetnsObserved(netns) => netns.sandbox.0 == sandbox,
        Body::RequestSeen(step) => own.contains(&step.client),
        // Other sandboxes of the machine.
        Body::SandboxRequested(_) | Body::SandboxResponded(_) => false,
        Body::ThreadsSeen(_)
        | Body::ApiServerKnown { .. }
        | Body::WaitsRecorded { .. }
        | Body::RequestsFollowed { .. }
        | Body::ClockAnchored { .. }
        | Body::Lost { .. }
        | Body::Tick => true,
        _ => false,
    }
}
