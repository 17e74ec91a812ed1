//! The feed of the process probe: completes what the kernel side cannot know, and sends the events in bursts.
//!
//! Run by the thread of `exec`. Before the first record it reports the plugins that run already; once a second it looks
//! whether the wall clock was stepped, which processes have ended without a record, and reads which ones were refused.
//! Does not: load or attach anything, or decide what an event means.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use sandglass_model::event::{Exit, ExitStatus};
use sandglass_model::{Body, ClockAnchor, Event, ProcessKey, Timestamp};

use super::cri::CriRequests;
use super::daemons::Daemons;
use super::decode::{DecodedProcess, DecodedRecord, ProcessRole, decode_any};
use super::ends::Ends;
use super::running;
use super::runtimes::{self, Runtimes};
use super::trust::Trust;
use super::waits::{self, Waits};
use crate::health::{Health, ProbeLabel};
use crate::scheduling;
use crate::sources::linux::cgroups::Cgroups;
use crate::sources::linux::feed::{Drained, Feed, Outlet, RECORDS_MAX};
use crate::sources::linux::loader::family::RecordStream;
use crate::sources::linux::loader::maps::{Pages, TrustMaps};
use crate::sources::linux::loader::roles::Roles;
use crate::sources::linux::netns::NetnsWatch;
use crate::sources::linux::process_root::sees_all_processes;
use crate::sources::linux::runtime_times::RuntimeMeter;
use crate::sources::queue::Stopped;
use crate::sources::{TrustSettings, clock};

/// The maps of the probe.
pub struct Channels {
    /// Those that every probe has.
    pub stream: RecordStream,
    /// The table of roles, which says what is tracked.
    pub roles: Roles,
    /// Where the pages of pipes lie.
    pub pages: Pages,
    /// Who is trusted, and who was refused.
    pub trust: TrustMaps,
}

/// The feed.
pub struct ExecFeed {
    stream: RecordStream,
    roles: Roles,
    trust: Trust,
    outlet: Outlet,
    /// How much waited in the ring when the newest record was written: the gauge of the health page.
    ring_bytes: Gauge,
    netns: NetnsWatch,
    /// Events of the source itself; `None` once the other end is closed.
    announcements: Option<Receiver<Event>>,
    cgroups: Cgroups,
    runtimes: Runtimes,
    ends: Ends,
    /// `None` where waits are not followed.
    waits: Option<Waits>,
    /// `None` where requests to daemons are not followed.
    daemons: Option<Daemons>,
    /// `None` where the runtime's CRI socket is not read.
    cri: Option<CriRequests>,
    /// Measures the runtime's daemon; `None` where waits are not wanted.
    meter: Option<RuntimeMeter>,
    /// Waits that were left out: `events_limited_total`.
    limited_waits: Counter,
    /// The same, of threads of daemons.
    limited_daemons: Counter,
    /// The relation of both clocks that was sent last.
    anchor: ClockAnchor,
    /// Events of a burst that are not sent yet; empty between two drains.
    burst: Vec<Event>,
}

impl ExecFeed {
    /// Puts the parts together. `health` receives how much waited in the ring at the newest record, and who was refused.
    pub fn new(
        channels: Channels,
        outlet: Outlet,
        health: &Health,
        trust: TrustSettings,
        netns: NetnsWatch,
        announcements: Receiver<Event>,
        (waits, daemons, cri, meter): (
            Option<Waits>,
            Option<Daemons>,
            Option<CriRequests>,
            Option<RuntimeMeter>,
        ),
    ) -> ExecFeed {
        ExecFeed {
            stream: channels.stream,
            roles: channels.roles,
            trust: Trust::new(channels.trust, trust, health.clone()),
            outlet,
            ring_bytes: health.ring_bytes.clone(),
            netns,
            announcements: Some(announcements),
            cgroups: Cgroups::new(),
            runtimes: Runtimes::default(),
            ends: Ends::new(sees_all_processes()),
            waits,
            daemons,
            cri,
            meter,
            limited_waits: health.limited.get_or_create(&ProbeLabel {
                probe: waits::PROBE.to_owned(),
            }),
            limited_daemons: health.limited.get_or_create(&ProbeLabel {
                probe: waits::DAEMON_THREADS.to_owned(),
            }),
            anchor: clock::anchor(),
            burst: Vec::new(),
        }
    }

    /// Sends one announcement if there is one. They come before the records of the same drain: what they announce is then known
    /// when the first event that depends on it arrives.
    fn forward_announcements(&mut self) -> Result<(), Stopped> {
        let Some(announcements) = &self.announcements else {
            return Ok(());
        };
        match announcements.try_recv() {
            Ok(event) => self.outlet.send(event),
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => {
                self.announcements = None;
                Ok(())
            }
        }
    }

    /// Completes an event and puts it into the burst, unless it is about a runtime's process that concerns no sandbox.
    fn on_record(&mut self, decoded: DecodedProcess) {
        self.ring_bytes
            .set(i64::try_from(decoded.ring_bytes).unwrap_or(i64::MAX));
        let mut event = decoded.event;
        let io = decoded.io.map(|io| Event {
            at: event.at,
            body: Body::PluginIoRead(io),
        });
        self.burst.extend(io);
        let is_tracked = decoded.role == ProcessRole::Tracked;
        match &mut event.body {
            Body::ProcessExecuted(exec) => {
                let is_reported = match decoded.role {
                    ProcessRole::Tracked => true,
                    ProcessRole::Runtime => self.runtimes.on_exec(exec),
                    ProcessRole::RuntimeFork => self.runtimes.on_container_exec(exec.process),
                };
                if !is_reported {
                    return;
                }
                exec.cgroup = self.cgroups.path(decoded.cgroup_id, exec.process.pid);
                let is_step = decoded.role == ProcessRole::Runtime && runtimes::is_step(exec);
                if is_tracked || is_step {
                    self.ends.on_begin(exec.process, event.at);
                }
                if let Some(daemons) = self.daemons.as_mut().filter(|_| is_tracked) {
                    daemons.on_exec(exec, event.at);
                }
                if let Some(waits) = &mut self.waits {
                    match is_step {
                        true => waits.on_step(exec.process, event.at),
                        false if is_tracked => waits.on_exec(exec, event.at),
                        false => {}
                    }
                }
                if let Some(meter) = &self.meter {
                    match is_step {
                        true => meter.request(),
                        false if exec.env("CNI_COMMAND").is_some() => meter.on_plugin(exec),
                        false => {}
                    }
                }
                self.netns.request(exec, event.at);
            }
            Body::ProcessExited(exit) if !self.runtimes.on_exit(exit.process, decoded.role) => return,
            Body::ProcessExited(exit) => self.on_exit(exit.process, event.at),
            Body::ProcessForked(fork) if is_tracked => {
                self.ends.on_begin(fork.process, event.at);
                if let Some(daemons) = &mut self.daemons {
                    daemons.on_fork(fork, &decoded.goroutine);
                }
                if let Some(waits) = &mut self.waits {
                    waits.on_fork(fork.process);
                }
            }
            Body::ProcessForked(fork) if !self.runtimes.on_fork(fork) => return,
            _ => {}
        }
        self.burst.push(event);
    }

    /// A process ended of which an exec or a fork was reported.
    fn on_exit(&mut self, process: ProcessKey, at: Timestamp) {
        self.ends.on_exit(process);
        if let Some(daemons) = &mut self.daemons {
            daemons.on_exit(process, at);
        }
        if let Some(waits) = &mut self.waits
            && waits.on_exit(process, at, &mut self.burst)
            && let Some(meter) = &self.meter
        {
            meter.request();
        }
    }

    /// Ends that no record reports are lost records, and events all the same: nothing runs for ever. The time is that of the report.
    fn report_lost_ends(&mut self) -> Result<(), Stopped> {
        let lost = self.ends.take_lost();
        for process in &lost {
            // Whatever it was: the filter forgets it.
            self.runtimes.on_exit(*process, ProcessRole::Runtime);
            let at = clock::now();
            self.on_exit(*process, at);
            // Its id would have its role for ever.
            if running::key_of(process.pid).is_none_or(|(now, _)| now == *process) {
                self.roles.untrack(process.pid);
            }
            let (process, how) = (*process, ExitStatus::Unknown);
            let body = Body::ProcessExited(Exit { process, how });
            self.burst.push(Event { at, body });
        }
        self.outlet.report_lost(lost.len() as u64)
    }

    /// A request to the runtime or its response: what its daemon does for the sandbox begins or ends.
    fn on_sandbox_event(&mut self, event: Option<Event>) {
        if let Some(meter) = self.meter.as_ref().filter(|_| event.is_some()) {
            meter.request();
        }
        self.burst.extend(event);
    }

    /// Waits that cannot be recorded are reported once; the operations are recorded without.
    fn check_waits(&mut self) {
        let Some(waits) = &mut self.waits else {
            return;
        };
        if let Err(error) = waits.check(&mut self.burst) {
            tracing::warn!(%error, "waits are not recorded any more");
            self.waits = None;
        }
    }

    /// As [`ExecFeed::check_waits`], of requests to daemons.
    fn check_daemons(&mut self) {
        let Some(daemons) = &mut self.daemons else {
            return;
        };
        let slow = self.waits.as_ref().is_some_and(Waits::are_attached);
        if let Err(error) = daemons.check(slow, &mut self.roles, &mut self.burst) {
            tracing::warn!(%error, "requests to daemons are not followed any more");
            self.daemons = None;
        }
    }

    /// Sends the burst, in the order of the records. Blocks while the pipeline is full.
    fn send_burst(&mut self) -> Result<(), Stopped> {
        self.outlet.send_all(self.burst.drain(..))
    }

    /// Sends a new anchor when the wall clock was stepped (settimeofday(2), or a time service at start). Slewing
    /// (adjtimex(2), at most 500 ppm) is left to add up to a step's size.
    fn check_clock(&mut self) -> Result<(), Stopped> {
        let now = clock::anchor();
        let expected = self.anchor.unix_ns(Timestamp(now.boot_ns));
        if now.unix_ns.abs_diff(expected) <= STEP_NS {
            return Ok(());
        }
        self.anchor = now;
        self.send_anchor(Timestamp(now.boot_ns))
    }

    /// Sends the relation of both clocks: the wall clock's time at `at`.
    fn send_anchor(&self, at: Timestamp) -> Result<(), Stopped> {
        self.outlet.send(Event {
            at,
            body: Body::ClockAnchored {
                unix_ns: self.anchor.unix_ns(at),
            },
        })
    }
}

impl Feed for ExecFeed {
    /// Longer than for traffic: the processes of one sandbox come with pauses between them.
    const IDLE_AFTER: Duration = Duration::from_millis(500);

    fn outlet(&self) -> &Outlet {
        &self.outlet
    }

    /// Sends the anchor of all times first, then the plugins that run already. The trusted exceptions are written before
    /// those are judged: both sides apply them from the first process on.
    fn begin(&mut self) -> Result<(), Stopped> {
        scheduling::give_way();
        self.trust.write(&self.cgroups);
        if let Some(cri) = &mut self.cri {
            cri.find_sockets();
        }
        let running = running::track(&mut self.roles, &self.trust);
        let first = running
            .events
            .iter()
            .map(|event| event.at)
            .min()
            .unwrap_or_else(clock::now);
        self.send_anchor(first)?;
        if self.waits.is_some() {
            self.outlet.send(Waits::announcement())?;
        }
        if self.daemons.is_some() {
            self.outlet.send(Daemons::announcement())?;
        }
        for event in running.events {
            if let Body::ProcessExecuted(exec) = &event.body {
                self.ends.on_begin(exec.process, clock::now());
                if let Some(daemons) = &mut self.daemons {
                    daemons.on_exec(exec, event.at);
                }
                self.netns.request(exec, clock::now());
            }
            self.outlet.send(event)?;
        }
        self.outlet.report_lost(running.unread)
    }

    fn wake_fd(&self, _asleep: bool) -> Option<BorrowedFd<'_>> {
        Some(self.stream.ring.as_fd())
    }

    /// An announcement wakes nobody, so the thread polls as long as one may come.
    fn request_wake(&mut self) -> bool {
        self.announcements.is_none() && self.stream.reader.request_wake()
    }

    /// Sends after it has read, not in between: the pipeline's thread would wake for each event, and the two threads would
    /// take both processors of a small node from the plugins.
    fn drain(&mut self) -> Result<Drained, Stopped> {
        self.forward_announcements()?;
        let mut records = 0;
        while records < RECORDS_MAX
            && let Some(decoded) = self.stream.ring.next(decode_any)
        {
            records += 1;
            match decoded {
                Ok(DecodedRecord::Process(decoded)) => self.on_record(decoded),
                Ok(DecodedRecord::Wake(record)) => {
                    let daemons = self.daemons.as_mut();
                    let goroutine = daemons.and_then(|daemons| daemons.goroutine(&record.header, &record.goroutine));
                    if let Some(waits) = &mut self.waits {
                        self.burst.push(waits.woken(&record, goroutine, &mut self.cgroups));
                    }
                }
                Ok(DecodedRecord::FileLock(record)) => {
                    self.burst
                        .extend(self.waits.as_mut().and_then(|waits| waits.file_lock(&record)));
                }
                Ok(DecodedRecord::Contention(record)) => {
                    self.burst
                        .extend(self.waits.as_mut().map(|waits| waits.kernel_lock(&record)));
                }
                Ok(DecodedRecord::Run(record)) => self.burst.push(waits::ran(&record)),
                Ok(DecodedRecord::Message(record)) => {
                    let daemons = self.daemons.as_mut();
                    let event = daemons.and_then(|daemons| daemons.on_message(&record, &mut self.cgroups));
                    self.burst.extend(event);
                }
                Ok(DecodedRecord::SandboxRequest(record)) => {
                    let event = self.cri.as_mut().and_then(|cri| cri.on_request(&record));
                    self.on_sandbox_event(event);
                }
                Ok(DecodedRecord::SandboxResponse(record)) => {
                    let event = self.cri.as_mut().and_then(|cri| cri.on_response(&record));
                    self.on_sandbox_event(event);
                }
                Err(error) => self.outlet.count_undecodable(&error),
            }
            if self.burst.len() >= BURST_MAX {
                self.send_burst()?;
            }
        }
        if records < RECORDS_MAX {
            self.report_lost_ends()?;
        }
        if let Some(meter) = &self.meter {
            meter.measure(&mut self.burst);
        }
        self.send_burst()?;
        self.check_waits();
        self.check_daemons();
        self.send_burst()?;
        self.ring_bytes.set(0);
        match self.waits.as_ref().is_some_and(Waits::is_changing) {
            true => Ok(Drained::Part),
            false => Ok(Drained::from_count(records)),
        }
    }

    /// Cgroups are looked up again each time: the configured ones may have been created or replaced since.
    fn check(&mut self) -> Result<(), Stopped> {
        self.outlet.report_losses(&mut self.stream.lost)?;
        if let Some((count, event)) = self.waits.as_mut().and_then(Waits::limited) {
            self.limited_waits.inc_by(count);
            self.outlet.send(event)?;
        }
        if let Some((count, event)) = self.waits.as_mut().and_then(Waits::limited_daemons) {
            self.limited_daemons.inc_by(count);
            self.outlet.send(event)?;
        }
        if let Some(cri) = &mut self.cri {
            cri.find_sockets();
        }
        self.trust.write(&self.cgroups);
        self.trust.report(&mut self.cgroups);
        self.ends.look(clock::now());
        self.check_clock()
    }
}

/// The events of a few sandboxes; a longer burst is sent in parts.
const BURST_MAX: usize = 256;
/// Difference between the clocks from which on the wall clock counts as stepped: 50 ms, several times what one reading of an
/// anchor may be off on a busy node, and less than anybody sees in a trace.
const STEP_NS: u64 = 50_000_000;
