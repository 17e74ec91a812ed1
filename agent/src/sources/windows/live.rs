//! Live ETW sessions of this node: one for providers of user mode and drivers, one of the kernel logger for command lines.
//!
//! ferrisetw starts and drives the sessions; its callback only copies a record into a bounded queue and blocks when that is
//! full, which pushes back to ETW's own buffers, the one place that counts what it loses. A thread decodes and normalizes.
//! Compiled for Windows, and on Linux with the feature `fake-etw`, where a stand-in for the handful of Win32 functions
//! drives ferrisetw's own callback path.
//! Does not: read fields through TDH (the portable decoder does: ferrisetw gives up on events with structs), or interpret.

mod copy;
mod statistics;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use ferrisetw::provider::{Provider, TraceFlags, kernel_providers};
use ferrisetw::trace::{LoggingMode, TraceError, TraceProperties, TraceTrait, stop_trace_by_name};
use ferrisetw::{EventRecord, GUID, KernelTrace, SchemaLocator, UserTrace};
use sandglass_etw::{Decoded, Decoder, Guid, RawRecord, Tables};
use sandglass_model::{Body, Event};

use super::normalize::{self, ActivityNames, Normalizer};
use crate::health::{Health, ProbeLabel, ProbeStatus};
use crate::sources::{EventSender, Stopped, clock};

/// What can be chosen about the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of one ETW buffer in KiB.
    pub buffer_kib: u32,
    /// Records that wait between the callbacks and the decoder.
    pub queue_records: usize,
    /// What is known of activity names.
    pub names: ActivityNames,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            buffer_kib: 128,
            queue_records: 8_192,
            names: ActivityNames::default(),
        }
    }
}

/// The running sessions. Dropping it stops them too.
#[derive(Debug)]
pub struct Source {
    // Sessions first: their end closes the queue, and that ends the decoder's thread.
    sessions: Vec<Session>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
enum Session {
    User(UserTrace),
    Kernel(KernelTrace),
}

/// Why the sessions could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// ETW refused the session that everything else depends on.
    #[error("cannot start the ETW session '{name}': {what}")]
    Session {
        /// Its name.
        name: &'static str,
        /// What ETW said.
        what: String,
        /// It was for want of rights.
        denied: bool,
    },
    /// The agent's own side could not be set up.
    #[error("cannot start the thread that decodes ETW records")]
    Thread(#[source] std::io::Error),
}

impl StartError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            StartError::Session { denied: true, .. } => {
                "run it as SYSTEM or administrator: as a service, or in a HostProcess container"
            }
            StartError::Session { denied: false, .. } => {
                "a host has 64 sessions at most (`logman query -ets` lists them): stop one that nobody needs"
            }
            StartError::Thread(_) => "the node is out of threads or memory: raise the limits of the agent",
        }
    }

    /// Exit code of the class of error: 77 privilege missing, 69 feature missing, 1 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            StartError::Session { denied: true, .. } => 77,
            StartError::Session { denied: false, .. } => 69,
            StartError::Thread(_) => 1,
        }
    }
}

/// Starts the sessions and begins to send events. Without the kernel logger's session it runs on, and says so.
pub fn start(options: Options, sender: EventSender, health: Health) -> Result<Source, StartError> {
    for name in [EVENTS, PROCESSES] {
        // A session of ours that an agent left behind when it was killed. Mostly there is none.
        let _ = stop_trace_by_name(name);
    }
    let (records, queue) = sync_channel(options.queue_records);
    let stop = Arc::new(AtomicBool::new(false));
    let mut source = Source {
        sessions: Vec::new(),
        stop: Arc::clone(&stop),
        threads: Vec::new(),
    };
    source.start_events(&options, &records).inspect_err(|error| {
        health.set_probe(unattached("etw", "no traces from this node", error));
    })?;
    health.set_probe(attached("etw", "user session"));
    match source.start_processes(&options, &records) {
        Ok(()) => health.set_probe(attached("exec", "kernel logger")),
        Err(error) => health.set_probe(unattached(
            "exec",
            "no command lines: plugins and commands cannot be told",
            &error,
        )),
    }
    drop(records);
    let decoding = Decoding {
        decoder: Decoder::new(Arc::new(Tables::built_in())),
        normalizer: Normalizer::new(options.names),
        sender: sender.clone(),
        health: health.clone(),
    };
    source.spawn("etw-decode", move || decoding.run(&queue))?;
    source.spawn("etw-statistics", move || statistics::run(&stop, &sender, &health))?;
    Ok(source)
}

impl Source {
    /// Stops the sessions; what they had delivered is still decoded.
    pub fn stop(self) {}

    fn start_events(&mut self, options: &Options, records: &SyncSender<RawRecord>) -> Result<(), StartError> {
        let mut builder = UserTrace::new()
            .named(EVENTS.to_owned())
            .set_trace_properties(properties(options));
        for wanted in WANTED {
            builder = builder.enable(provider(wanted, records.clone()));
        }
        let (trace, handle) = builder.start().map_err(|error| refused(EVENTS, &error))?;
        self.sessions.push(Session::User(trace));
        // Ends when the session is stopped.
        self.spawn("etw-events", move || _ = UserTrace::process_from_handle(handle))
    }

    fn start_processes(&mut self, options: &Options, records: &SyncSender<RawRecord>) -> Result<(), StartError> {
        let provider = Provider::kernel(&kernel_providers::PROCESS_PROVIDER)
            .add_callback(copying(records.clone()))
            .build();
        let (trace, handle) = KernelTrace::new()
            .named(PROCESSES.to_owned())
            .set_trace_properties(properties(options))
            .enable(provider)
            .start()
            .map_err(|error| refused(PROCESSES, &error))?;
        self.sessions.push(Session::Kernel(trace));
        self.spawn("etw-processes", move || _ = KernelTrace::process_from_handle(handle))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        let thread = Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for session in self.sessions.drain(..) {
            // A session that cannot be stopped is stopped by name at the next start.
            let _ = match session {
                Session::User(trace) => trace.stop(),
                Session::Kernel(trace) => trace.stop(),
            };
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A provider, what of it, and whether its events come from inside containers too.
struct Wanted {
    provider: Guid,
    level: u8,
    keywords: u64,
    of_containers: bool,
}

const fn wanted(provider: Guid, level: u8, keywords: u64, of_containers: bool) -> Wanted {
    Wanted {
        provider,
        level,
        keywords,
        of_containers,
    }
}

/// Levels and keywords: microsoft/SDN starthnstrace.ps1, Virtualization-Documentation HcsTraceProfile.wprp; activities of
/// HNS and of the container library are at level 5. Kernel-Process: jobs and silos only.
const WANTED: &[Wanted] = &[
    wanted(normalize::HNS, 5, 0, false),
    wanted(normalize::HCS, 4, 0x3_0000, false),
    wanted(normalize::CONTAINERS_LIBRARY, 5, 0, false),
    wanted(normalize::CONTAINERD, 4, 0, false),
    wanted(normalize::RUN_HCS, 4, 0, false),
    wanted(normalize::KERNEL_PROCESS, 4, 0x4400, false),
    wanted(normalize::DNS_CLIENT, 5, 0, true),
    wanted(normalize::TCPIP, 4, 0x4_0000_0015, true),
    wanted(normalize::WIN_NAT, 4, 0x1, false),
];

fn provider(wanted: &Wanted, records: SyncSender<RawRecord>) -> Provider {
    let mut flags = TraceFlags::EVENT_ENABLE_PROPERTY_PROCESS_START_KEY.bits();
    if wanted.of_containers {
        flags |= ENABLE_SILOS | SOURCE_CONTAINER_TRACKING;
    }
    // SAFETY: the type has bits for named flags only, yet passes any on to EnableTraceEx2, for which all of these are
    // valid bits of EnableProperty (evntrace.h).
    let flags = unsafe { TraceFlags::from_bits_unchecked(flags) };
    Provider::by_guid(GUID::from_u128(wanted.provider.0))
        .level(wanted.level)
        .any(wanted.keywords)
        .trace_flags(flags)
        .add_callback(copying(records))
        .build()
}

/// A callback that copies the record into the queue, and waits while that is full.
fn copying(records: SyncSender<RawRecord>) -> impl FnMut(&EventRecord, &SchemaLocator) + Send + Sync + 'static {
    move |record, _| {
        // Nobody decodes any more: the source is being stopped.
        let _ = records.send(copy::record(record));
    }
}

/// Buffers for each processor: two at least, and room for bursts of pod starts.
fn properties(options: &Options) -> TraceProperties {
    let processors = std::thread::available_parallelism().map_or(2, |count| u32::try_from(count.get()).unwrap_or(2));
    TraceProperties {
        buffer_size: options.buffer_kib,
        min_buffer: processors * 2,
        max_buffer: processors * 8,
        flush_timer: Duration::from_secs(1),
        log_file_mode: LoggingMode::EVENT_TRACE_REAL_TIME_MODE,
    }
}

struct Decoding {
    decoder: Decoder,
    normalizer: Normalizer,
    sender: EventSender,
    health: Health,
}

impl Decoding {
    /// Until the sessions have ended, or the pipeline has.
    fn run(mut self, queue: &Receiver<RawRecord>) {
        let mut facts = Vec::new();
        while let Ok(record) = queue.recv() {
            match self.decoder.decode(&record) {
                Decoded::Event(event) => self.normalizer.facts(&event, &mut facts),
                Decoded::Learned | Decoded::Wpp => {}
                Decoded::Undecodable(_) => _ = self.health.undecodable.get_or_create(&label()).inc(),
            }
            for fact in facts.drain(..) {
                if self.sender.send(fact) == Err(Stopped) {
                    return;
                }
            }
        }
    }
}

/// The loss that ETW reports, as an event.
fn lost(count: u64) -> Event {
    Event {
        at: clock::now(),
        body: Body::Lost {
            probe: "etw".to_owned(),
            count,
        },
    }
}

fn label() -> ProbeLabel {
    ProbeLabel {
        probe: "etw".to_owned(),
    }
}

fn refused(name: &'static str, error: &TraceError) -> StartError {
    let what = format!("{error:?}");
    // E_ACCESSDENIED and ERROR_ACCESS_DENIED; ferrisetw keeps them in an io::Error.
    let denied = match error {
        TraceError::EtwNativeError(ferrisetw::native::EvntraceNativeError::IoError(error)) => {
            matches!(error.raw_os_error(), Some(5 | -2_147_024_891))
        }
        _ => false,
    };
    StartError::Session { name, what, denied }
}

fn attached(probe: &str, hook: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: hook.to_owned(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    }
}

fn unattached(probe: &str, consequence: &str, error: &StartError) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("{consequence}: {error}"),
        hint: error.hint().to_owned(),
    }
}

const EVENTS: &str = "sandglass-events";
const PROCESSES: &str = "sandglass-processes";
// evntrace.h; ferrisetw names neither.
const ENABLE_SILOS: u32 = 0x400;
const SOURCE_CONTAINER_TRACKING: u32 = 0x800;
