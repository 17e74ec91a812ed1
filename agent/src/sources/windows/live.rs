//! Live ETW sessions of this node: one of user-mode and driver providers, one of the kernel logger for command lines.
//!
//! ferrisetw starts and drives the sessions. Its callbacks fill a bounded queue (`intake.rs`) and block when that is full,
//! which pushes back to ETW's own buffers: they count what they lose. One thread decodes and normalizes (`decoding.rs`).
//! Four threads: one for each session, on which ETW calls back (ProcessTrace blocks until its session ends), one that
//! decodes, one that polls losses. They end in this order: the sessions, their threads, the decoder when the queue is closed.
//! Compiled for Windows; and for tests elsewhere, where `sandglass-fake-etw` implements the Win32 functions and drives
//! ferrisetw's own callback path.
//! Does not: read fields through TDH (ferrisetw's parser fails on events with a struct, as all activities of HNS have one), or
//! interpret events.

mod copy;
mod decoding;
mod error;
pub mod file;
mod flows;
mod intake;
mod properties;
mod providers;
mod schema;
mod statistics;
mod status;
#[cfg(test)]
#[cfg(not(windows))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use ferrisetw::provider::{Provider, kernel_providers};
use ferrisetw::trace::{LoggingMode, TraceProperties, TraceTrait, stop_trace_by_name};
use ferrisetw::{KernelTrace, UserTrace};
use sandglass_etw::{Decoder, Tables};
use sandglass_model::{Body, Event};

use super::NODE_COMPARTMENT;
use super::normalize::{ActivityNames, NamesFileError, Normalizer};
use crate::config::defaults;
use crate::failure::Advice;
use crate::health::Health;
use crate::sources::clock;
use crate::sources::namespace::NamespaceLook;
use crate::sources::queue::EventSender;
use crate::sources::settings::SourceSettings;
use decoding::Decoding;
use error::refused;
use intake::Intake;
use providers::{FLOWS, WANTED, provider};
use status::{attached, unattached};

pub use error::EtwStartError;

/// Options of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtwOptions {
    /// Size of one ETW buffer in KiB.
    pub buffer_kib: u32,
    /// Capacity of the queue between the callbacks and the decoder.
    pub queue_records: usize,
    /// The table of activity names.
    pub names: ActivityNames,
    /// How long after the start flows of the virtual switch are observed; zero to leave them out.
    pub vfp: Duration,
}

impl EtwOptions {
    /// The configured options.
    ///
    /// # Errors
    ///
    /// [`NamesFileError`] if the table of activity names cannot be used.
    pub fn from_settings(settings: SourceSettings) -> Result<EtwOptions, NamesFileError> {
        Ok(EtwOptions {
            vfp: settings.vfp,
            names: ActivityNames::with_file(settings.activities.as_deref())?,
            buffer_kib: defaults::ETW_BUFFER_KIB,
            queue_records: defaults::ETW_QUEUE_RECORDS,
        })
    }
}

/// The running sessions. Dropping it stops them too.
#[derive(Debug)]
pub struct Source {
    sessions: Vec<Session>,
    /// The sessions end because the source is being stopped.
    stopping: Arc<AtomicBool>,
    /// The thread that polls losses; dropping the sender stops it.
    statistics: Option<(Sender<()>, JoinHandle<()>)>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
enum Session {
    User(UserTrace),
    Kernel(KernelTrace),
}

/// Starts the sessions and begins to send events. A refused kernel logger's session is reported in health, and the source
/// runs without it.
///
/// # Errors
///
/// [`EtwStartError`] when the session of events is refused.
pub fn start(options: EtwOptions, sender: EventSender, health: Health) -> Result<Source, EtwStartError> {
    for name in [EVENTS, PROCESSES] {
        // A session outlives an agent that was killed. Usually there is none to stop.
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
        statistics: None,
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
    // The session of events covers lookups and connects of containers: from now on silence means that nothing was sent.
    let watched = Event {
        at: clock::now(),
        body: Body::TrafficWatched {
            node_netns: NODE_COMPARTMENT,
        },
    };
    source.spawn("etw-decode", move || decoding.run(watched, &queue))?;
    let (stop, stopped) = channel();
    let flows_until = (options.vfp > Duration::ZERO).then(|| Instant::now() + options.vfp);
    let statistics = thread("etw-statistics", move || {
        statistics::run(&stopped, &sender, &health, flows_until);
    })?;
    source.statistics = Some((stop, statistics));
    Ok(source)
}

impl Source {
    /// Stops the sessions; records already delivered are still decoded.
    pub fn stop(self) {}

    /// Windows has no network namespaces with a path.
    #[must_use]
    pub fn namespace_look(&self) -> Option<NamespaceLook> {
        None
    }

    /// Starts the session of user-mode and driver providers, and the thread that ferrisetw delivers its records on.
    fn start_events(&mut self, options: &EtwOptions, intake: &Intake) -> Result<(), EtwStartError> {
        let mut builder = UserTrace::new()
            .named(EVENTS.to_owned())
            .set_trace_properties(buffers(options.buffer_kib));
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

    /// Starts the session of the kernel logger's processes. A private system logger session (Windows 8 and newer), so that
    /// the one session named `NT Kernel Logger` stays free for others.
    fn start_processes(&mut self, options: &EtwOptions, intake: &Intake) -> Result<(), EtwStartError> {
        let provider = Provider::kernel(&kernel_providers::PROCESS_PROVIDER)
            .add_callback(intake.callback())
            .build();
        let (trace, handle) = KernelTrace::new()
            .named(PROCESSES.to_owned())
            .set_trace_properties(buffers(options.buffer_kib))
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

    /// Starts a thread that the source joins when it is dropped.
    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), EtwStartError> {
        self.threads.push(thread(name, run)?);
        Ok(())
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, EtwStartError> {
    Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(EtwStartError::Thread)
}

impl Drop for Source {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Polls losses once more while the sessions exist.
        if let Some((stop, statistics)) = self.statistics.take() {
            drop(stop);
            let _ = statistics.join();
        }
        // The end of the sessions closes the queue, which ends the decoder's thread.
        for session in self.sessions.drain(..) {
            // A session that cannot be stopped now is stopped by name at the next start.
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

/// Two buffers for each processor, as ETW requires at least (EVENT_TRACE_PROPERTIES, `MinimumBuffers`), and up to eight for
/// bursts of pod starts.
fn buffers(buffer_kib: u32) -> TraceProperties {
    let processors = std::thread::available_parallelism().map_or(2, |count| u32::try_from(count.get()).unwrap_or(2));
    TraceProperties {
        buffer_size: buffer_kib,
        min_buffer: processors * 2,
        max_buffer: processors * 8,
        flush_timer: Duration::from_secs(1),
        log_file_mode: LoggingMode::EVENT_TRACE_REAL_TIME_MODE,
    }
}

/// Consequence of a missing session of events.
const NO_TRACES: &str = "no traces from this node";
/// Consequence of a missing session of processes.
const NO_COMMANDS: &str = "no command lines: plugins and commands cannot be identified";
/// Name of the session of events, as `logman query -ets` lists it.
const EVENTS: &str = "sandglass-events";
/// Name of the session of processes.
const PROCESSES: &str = "sandglass-processes";
