//! Live ETW sessions of this node: one for providers of user mode and drivers, one of the kernel logger for command lines.
//!
//! ferrisetw starts and drives the sessions; its callback only copies a record into a bounded queue and blocks when that is
//! full, which pushes back to ETW's own buffers, the one place that counts what it loses. A thread decodes and normalizes.
//! Compiled for Windows, and for tests elsewhere, where `sandglass-fake-etw` plays the handful of Win32 functions and drives
//! ferrisetw's own callback path.
//! Does not: read fields through TDH (the portable decoder does: ferrisetw gives up on events with structs; TDH is asked for
//! schemas only that no table has), or interpret.

mod copy;
pub mod file;
mod flows;
mod schema;
mod statistics;
#[cfg(test)]
#[cfg(not(windows))]
mod tests;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use ferrisetw::native::EvntraceNativeError;
use ferrisetw::provider::{Provider, TraceFlags, kernel_providers};
use ferrisetw::trace::{LoggingMode, TraceError, TraceProperties, TraceTrait, stop_trace_by_name};
use ferrisetw::{EventRecord, GUID, KernelTrace, SchemaLocator, UserTrace};
use sandglass_etw::{Decoded, Decoder, Guid, RawRecord, Tables, Undecodable};
use sandglass_model::{Body, Event};

use super::NODE_COMPARTMENT;
use super::normalize::{self, ActivityNames, NamesFileError, Normalizer};
use crate::failure::{Advice, Exit};
use crate::health::{Health, ProbeLabel, ProbeStatus};
use crate::sources::{EventSender, NamespaceLook, SourceSettings, Stopped, clock};

/// What can be chosen about the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of one ETW buffer in KiB.
    pub buffer_kib: u32,
    /// Records that wait between the callbacks and the decoder.
    pub queue_records: usize,
    /// What is known of activity names.
    pub names: ActivityNames,
    /// For how long from the start flows of the virtual switch are taken; zero for not at all.
    pub vfp: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            buffer_kib: 128,
            queue_records: 8_192,
            names: ActivityNames::default(),
            vfp: Duration::ZERO,
        }
    }
}

impl Options {
    /// The configured options.
    ///
    /// # Errors
    /// The table of activity names cannot be used.
    pub fn from_settings(settings: SourceSettings) -> Result<Options, NamesFileError> {
        Ok(Options {
            vfp: settings.vfp,
            names: ActivityNames::with_file(settings.activities.as_deref())?,
            ..Options::default()
        })
    }
}

/// The running sessions. Dropping it stops them too.
#[derive(Debug)]
pub struct Source {
    sessions: Vec<Session>,
    /// Says that sessions end because we want it.
    stopping: Arc<AtomicBool>,
    /// What is lost is asked for until this goes.
    asking: Option<(Sender<()>, JoinHandle<()>)>,
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

impl Advice for StartError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            StartError::Session { denied: true, .. } => {
                "run it as SYSTEM or administrator: as a service, or in a HostProcess container"
            }
            StartError::Session { denied: false, .. } => {
                "a host has 64 sessions at most (`logman query -ets` lists them): stop one that nobody needs"
            }
            StartError::Thread(_) => "the node is out of threads or memory: raise the limits of the agent",
        };
        hint.into()
    }

    fn exit(&self) -> Exit {
        match self {
            StartError::Session { denied: true, .. } => Exit::NoPermission,
            StartError::Session { denied: false, .. } => Exit::Unavailable,
            StartError::Thread(_) => Exit::Runtime,
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
    let intake = Intake {
        records,
        health: health.clone(),
        stopping: Arc::new(AtomicBool::new(false)),
    };
    let mut source = Source {
        sessions: Vec::new(),
        stopping: Arc::clone(&intake.stopping),
        asking: None,
        threads: Vec::new(),
    };
    source.start_events(&options, &intake).inspect_err(|error| {
        health.set_probe(unattached("etw", NO_TRACES, error, &error.hint()));
    })?;
    health.set_probe(attached("etw", "user session"));
    match source.start_processes(&options, &intake) {
        Ok(()) => health.set_probe(attached("exec", "kernel logger")),
        Err(error) => health.set_probe(unattached("exec", NO_COMMANDS, &error, &error.hint())),
    }
    drop(intake);
    let decoding = Decoding {
        decoder: Decoder::new(Arc::new(Tables::built_in())),
        schemas: schema::Schemas::default(),
        normalizer: Normalizer::new(options.names),
        sender: sender.clone(),
        health: health.clone(),
    };
    // Lookups and connections of containers come with the session of events: from here on silence says that nothing was
    // sent.
    let watched = Event {
        at: clock::now(),
        body: Body::TrafficWatched {
            node_netns: NODE_COMPARTMENT,
        },
    };
    source.spawn("etw-decode", move || decoding.run(watched, &queue))?;
    let (stop, stopped) = channel();
    let flows_until = (options.vfp > Duration::ZERO).then(|| Instant::now() + options.vfp);
    let asking = thread("etw-statistics", move || {
        statistics::run(&stopped, &sender, &health, flows_until);
    })?;
    source.asking = Some((stop, asking));
    Ok(source)
}

impl Source {
    /// Stops the sessions; what they had delivered is still decoded.
    pub fn stop(self) {}

    /// Windows has no network namespaces with a path.
    #[must_use]
    pub fn namespace_look(&self) -> Option<NamespaceLook> {
        None
    }

    fn start_events(&mut self, options: &Options, intake: &Intake) -> Result<(), StartError> {
        let mut builder = UserTrace::new()
            .named(EVENTS.to_owned())
            .set_trace_properties(properties(options));
        for wanted in WANTED {
            builder = builder.enable(provider(wanted, intake));
        }
        if options.vfp > Duration::ZERO {
            builder = builder.enable(provider(&FLOWS, intake));
        }
        let (trace, handle) = builder.start().map_err(|error| refused(EVENTS, &error))?;
        self.sessions.push(Session::User(trace));
        let ended = intake.ended("etw", NO_TRACES, EVENTS);
        self.spawn("etw-events", move || {
            let _ = UserTrace::process_from_handle(handle);
            ended();
        })
    }

    fn start_processes(&mut self, options: &Options, intake: &Intake) -> Result<(), StartError> {
        let provider = Provider::kernel(&kernel_providers::PROCESS_PROVIDER)
            .add_callback(intake.callback())
            .build();
        let (trace, handle) = KernelTrace::new()
            .named(PROCESSES.to_owned())
            .set_trace_properties(properties(options))
            .enable(provider)
            .start()
            .map_err(|error| refused(PROCESSES, &error))?;
        self.sessions.push(Session::Kernel(trace));
        let ended = intake.ended("exec", NO_COMMANDS, PROCESSES);
        self.spawn("etw-processes", move || {
            let _ = KernelTrace::process_from_handle(handle);
            ended();
        })
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        self.threads.push(thread(name, run)?);
        Ok(())
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(StartError::Thread)
}

impl Drop for Source {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // A last look at what was lost, while the sessions can be asked.
        if let Some((stop, asking)) = self.asking.take() {
            drop(stop);
            let _ = asking.join();
        }
        // Their end closes the queue, and that ends the decoder's thread.
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
    wanted(normalize::HYPER_V_COMPUTE, 4, 0, false),
    wanted(normalize::CONTAINERS_LIBRARY, 5, 0, false),
    wanted(normalize::CONTAINERD, 4, 0, false),
    wanted(normalize::RUN_HCS, 4, 0, false),
    wanted(normalize::KERNEL_PROCESS, 4, 0x4400, false),
    wanted(normalize::DNS_CLIENT, 5, 0, true),
    wanted(normalize::WINSOCK, 4, 0, true),
    wanted(normalize::TCPIP, 4, 0x4_0000_0015, true),
    wanted(normalize::WIN_NAT, 4, 0x1, false),
];

/// New and removed flows (microsoft/SDN; mask as AppMana/cloud-provisioning captured them): many, so only when asked for.
const FLOWS: Wanted = wanted(normalize::VFP, 4, 0x00c8_0000, false);

/// What a provider is asked to add to its events, and whether those from inside containers come too.
fn property(wanted: &Wanted) -> u32 {
    let start_key = TraceFlags::EVENT_ENABLE_PROPERTY_PROCESS_START_KEY.bits();
    if wanted.of_containers {
        start_key | ENABLE_SILOS | SOURCE_CONTAINER_TRACKING
    } else {
        start_key
    }
}

fn provider(wanted: &Wanted, intake: &Intake) -> Provider {
    // SAFETY: the type has bits for named flags only, yet passes any on to EnableTraceEx2, for which all of these are
    // valid bits of EnableProperty (evntrace.h).
    let flags = unsafe { TraceFlags::from_bits_unchecked(property(wanted)) };
    Provider::by_guid(GUID::from_u128(wanted.provider.0))
        .level(wanted.level)
        .any(wanted.keywords)
        .trace_flags(flags)
        .add_callback(intake.callback())
        .build()
}

/// Where records enter: what the callbacks and the threads of the sessions share.
struct Intake {
    records: SyncSender<RawRecord>,
    health: Health,
    stopping: Arc<AtomicBool>,
}

impl Intake {
    /// A callback that copies the record into the queue, and waits while that is full.
    fn callback(&self) -> impl FnMut(&EventRecord, &SchemaLocator) + Send + Sync + 'static {
        let records = self.records.clone();
        guarded(self.health.clone(), move |record| {
            // Nobody decodes any more: the source is being stopped.
            let _ = records.send(copy::record(record));
        })
    }

    /// What is to be said when a session ends and nobody here stopped it.
    fn ended(
        &self,
        probe: &'static str,
        consequence: &'static str,
        session: &'static str,
    ) -> impl FnOnce() + Send + 'static {
        let (health, stopping) = (self.health.clone(), Arc::clone(&self.stopping));
        move || {
            if !stopping.load(Ordering::Relaxed) {
                let what = format!("the ETW session '{session}' was stopped from outside");
                health.set_probe(unattached(probe, consequence, &what, "restart the agent"));
                tracing::warn!(session, "the ETW session was stopped from outside: {consequence}");
            }
        }
    }
}

/// A panic counts as one record that could not be decoded. It must not reach ferrisetw, which ends the process for it.
fn guarded(
    health: Health,
    mut take: impl FnMut(&EventRecord) + Send + Sync + 'static,
) -> impl FnMut(&EventRecord, &SchemaLocator) + Send + Sync + 'static {
    move |record, _| {
        if catch_unwind(AssertUnwindSafe(|| take(record))).is_err() {
            health.undecodable.get_or_create(&label()).inc();
        }
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
    schemas: schema::Schemas,
    normalizer: Normalizer,
    sender: EventSender,
    health: Health,
}

impl Decoding {
    /// Until the sessions have ended, or the pipeline has; `watched` comes before everything else.
    fn run(mut self, watched: Event, queue: &Receiver<RawRecord>) {
        if self.sender.send(watched) == Err(Stopped) {
            return;
        }
        let mut facts = Vec::new();
        while let Ok(record) = queue.recv() {
            // One bad record must not end the source; what stood half done in the normalizer is one record's worth.
            if catch_unwind(AssertUnwindSafe(|| self.decode(&record, &mut facts))).is_err() {
                self.undecodable();
            }
            for fact in facts.drain(..) {
                if self.sender.send(fact) == Err(Stopped) {
                    return;
                }
            }
        }
    }

    fn decode(&mut self, record: &RawRecord, facts: &mut Vec<Event>) {
        // What our table says of these is inferred; Windows knows.
        if record.header.provider == normalize::HYPER_V_COMPUTE
            && let Some(info) = self.schemas.ask(&record.header)
        {
            self.decoder.learn(&info);
        }
        let mut decoded = self.decoder.decode(record);
        if let Decoded::Undecodable(Undecodable::NoSchema) = decoded
            && let Some(info) = self.schemas.ask(&record.header)
            && self.decoder.learn(&info)
        {
            decoded = self.decoder.decode(record);
        }
        match decoded {
            Decoded::Event(event) => self.normalizer.facts(&event, facts),
            Decoded::Learned | Decoded::Wpp => {}
            Decoded::Undecodable(_) => self.undecodable(),
        }
    }

    fn undecodable(&self) {
        self.health.undecodable.get_or_create(&label()).inc();
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
    // ferrisetw may have started the session and failed after that.
    let _ = stop_trace_by_name(name);
    let (what, denied) = match error {
        // ferrisetw keeps an HRESULT in an io::Error.
        TraceError::EtwNativeError(EvntraceNativeError::IoError(error)) => {
            let code = error.raw_os_error().unwrap_or_default();
            (format!("{error} (0x{code:08x})"), is_denial(code))
        }
        other => (format!("{other:?}"), false),
    };
    StartError::Session { name, what, denied }
}

/// E_ACCESSDENIED or ERROR_ACCESS_DENIED.
fn is_denial(code: i32) -> bool {
    matches!(code, 5 | -2_147_024_891)
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

fn unattached(probe: &str, consequence: &str, why: &impl std::fmt::Display, hint: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("{consequence}: {why}"),
        hint: hint.to_owned(),
    }
}

const NO_TRACES: &str = "no traces from this node";
const NO_COMMANDS: &str = "no command lines: plugins and commands cannot be told";
const EVENTS: &str = "sandglass-events";
const PROCESSES: &str = "sandglass-processes";
// evntrace.h; ferrisetw names neither.
const ENABLE_SILOS: u32 = 0x400;
const SOURCE_CONTAINER_TRACKING: u32 = 0x800;
