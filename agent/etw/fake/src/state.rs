//! What there is of sessions, and what a test can set and query of it.
//!
//! One for the whole process, like ETW is one for a host: [`FakeEtw`] is held by one test at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandglass_etw::{Guid, RawRecord};
use windows::Win32::System::Diagnostics::Etw::PEVENT_RECORD_CALLBACK;

/// ETW, for one test. Begins empty; the next test waits until it is dropped.
#[derive(Debug)]
pub struct FakeEtw {
    _turn: MutexGuard<'static, ()>,
}

/// A provider that was enabled in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    /// Its GUID.
    pub provider: Guid,
    /// Up to which level.
    pub level: u8,
    /// Any of these keywords.
    pub keywords: u64,
    /// What else: `EVENT_ENABLE_PROPERTY_..` and container flags.
    pub property: u32,
}

impl FakeEtw {
    /// Waits for its turn and begins with no session at all.
    #[must_use]
    pub fn new() -> FakeEtw {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        *state() = State::empty();
        FakeEtw { _turn: turn }
    }

    /// Every start of the session of this name fails with a Win32 error.
    pub fn refuse(&self, session: &str, error: u32) {
        state().refused.insert(session.to_owned(), error);
    }

    /// Enabling this provider fails with a Win32 error, in every session.
    pub fn refuse_provider(&self, provider: Guid, error: u32) {
        state().refused_providers.insert(provider, error);
    }

    /// A session that another process left running.
    pub fn leave_behind(&self, session: &str) {
        state().sessions.insert(session.to_owned(), Session::new(0));
    }

    /// How many records wait in the buffers of each session before further ones are lost.
    pub fn buffers(&self, records: usize) {
        state().room = records;
    }

    /// Logs a record in a session: it waits for `ProcessTrace`, or is lost and counted when the buffers are full.
    /// False when there is no such session.
    pub fn log(&self, session: &str, record: RawRecord) -> bool {
        let mut state = state();
        let room = state.room;
        let Some(session) = state.sessions.get_mut(session) else {
            return false;
        };
        if session.waiting.len() < room {
            session.waiting.push_back(record);
        } else {
            session.events_lost += 1;
        }
        CHANGED.notify_all();
        true
    }

    /// Counts losses of a session: single events, and buffers that a slow consumer did not get.
    pub fn lose(&self, session: &str, events: u32, buffers: u32) {
        if let Some(session) = state().sessions.get_mut(session) {
            session.events_lost += events;
            session.buffers_lost += buffers;
        }
    }

    /// What `TdhGetEventInformation` answers for an event: a `TRACE_EVENT_INFO`.
    pub fn describe(&self, provider: Guid, id: u16, version: u8, info: Vec<u8>) {
        state().schemas.insert((provider, id, version), info);
    }

    /// How often TDH was called for the schema of an event, for its length or for all of it.
    #[must_use]
    pub fn questions(&self) -> u64 {
        state().questions
    }

    /// Names of the sessions that run.
    #[must_use]
    pub fn sessions(&self) -> Vec<String> {
        state().sessions.keys().cloned().collect()
    }

    /// The requests to a session.
    #[must_use]
    pub fn enabled(&self, session: &str) -> Vec<Enabled> {
        let state = state();
        let session = state.sessions.get(session);
        session.map(|session| session.enabled.clone()).unwrap_or_default()
    }

    /// Flags of the kernel logger that a session was started with.
    #[must_use]
    pub fn kernel_flags(&self, session: &str) -> u32 {
        let state = state();
        state.sessions.get(session).map_or(0, |session| session.kernel_flags)
    }

    /// The file that a session writes, when it writes one.
    #[must_use]
    pub fn file(&self, session: &str) -> Option<String> {
        let state = state();
        state.sessions.get(session).and_then(|session| session.file.clone())
    }

    /// Records that wait in the buffers of a session, and records that it lost.
    #[must_use]
    pub fn waiting_and_lost(&self, session: &str) -> (usize, u32) {
        let state = state();
        let session = state.sessions.get(session);
        session.map_or((0, 0), |session| (session.waiting.len(), session.events_lost))
    }

    /// How many `ProcessTrace` calls are under way.
    #[must_use]
    pub fn consumers(&self) -> usize {
        state().consuming
    }

    /// Waits until something holds, for ten seconds at most; returns whether it does.
    pub fn until(&self, holds: impl Fn() -> bool) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if holds() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        holds()
    }
}

impl Default for FakeEtw {
    fn default() -> FakeEtw {
        FakeEtw::new()
    }
}

/// All of it.
pub(crate) struct State {
    /// Sessions that run, by name.
    pub(crate) sessions: BTreeMap<String, Session>,
    /// By the handle that `OpenTraceW` returned.
    pub(crate) opened: BTreeMap<u64, Opened>,
    /// Sessions and providers that a test refuses, with the Win32 error.
    pub(crate) refused: BTreeMap<String, u32>,
    pub(crate) refused_providers: BTreeMap<Guid, u32>,
    pub(crate) schemas: BTreeMap<(Guid, u16, u8), Vec<u8>>,
    /// Calls of `TdhGetEventInformation`.
    pub(crate) questions: u64,
    /// Calls of `ProcessTrace` under way.
    pub(crate) consuming: usize,
    /// Bound on the records that wait in one session.
    pub(crate) room: usize,
    next_handle: u64,
}

/// A session that runs.
pub(crate) struct Session {
    pub(crate) handle: u64,
    pub(crate) enabled: Vec<Enabled>,
    pub(crate) kernel_flags: u32,
    pub(crate) file: Option<String>,
    pub(crate) waiting: VecDeque<RawRecord>,
    pub(crate) events_lost: u32,
    pub(crate) buffers_lost: u32,
}

impl Session {
    pub(crate) fn new(handle: u64) -> Session {
        Session {
            handle,
            enabled: Vec::new(),
            kernel_flags: 0,
            file: None,
            waiting: VecDeque::new(),
            events_lost: 0,
            buffers_lost: 0,
        }
    }
}

/// A session with a consumer, or with one that is about to open it.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) session: String,
    pub(crate) callback: PEVENT_RECORD_CALLBACK,
    /// Address that the callback gets back.
    pub(crate) context: usize,
}

impl State {
    const fn empty() -> State {
        State {
            sessions: BTreeMap::new(),
            opened: BTreeMap::new(),
            refused: BTreeMap::new(),
            refused_providers: BTreeMap::new(),
            schemas: BTreeMap::new(),
            questions: 0,
            consuming: 0,
            room: 65_536,
            next_handle: 1,
        }
    }

    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

static TURN: Mutex<()> = Mutex::new(());
static STATE: Mutex<State> = Mutex::new(State::empty());
/// Notified of new records and of the end of sessions.
pub(crate) static CHANGED: Condvar = Condvar::new();

/// Win32's `ERROR_ACCESS_DENIED`.
pub const ACCESS_DENIED: u32 = 5;
/// Win32's `ERROR_NO_SYSTEM_RESOURCES`: what the 65th session gets.
pub const NO_SYSTEM_RESOURCES: u32 = 1450;
