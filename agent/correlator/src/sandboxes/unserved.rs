//! Finds sandboxes whose network namespace a runtime named and for which no plugin ran: nothing of them is executed, so no
//! exec opens their trace.
//!
//! Used by `correlator.rs` with the names that the source reports; the state is in `netns_names.rs`. A runtime names the
//! namespace right before the first ADD (containerd `internal/cri/server/sandbox_run.go`, `RunPodSandbox`). When the
//! search for a plugin or the configuration fails, no program runs, and runtimes differ in whether they remove the name:
//! containerd keeps it when its clean-up fails for the same reason. So a name counts as unserved when no ADD used it
//! within `runtime_wait_ns`, and the sandbox as failed if the configuration has a problem that explains it, or if the name is gone.
//! Everything here is inferred, and the cause's confidence says so.
//! Does not: open a trace while records of processes may be lost, since the ADD may be among them; know the sandbox's id,
//! unless a DEL named it.

use sandglass_model::cni::runtime_of_netns;
use sandglass_model::{CniCommand, Timestamp};

use crate::context::Context;
use crate::finding::Scope;
use crate::invocation::Invocation;
use crate::keys::TraceKey;
use crate::open_trace::CREATE;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::config_cause::{because, cause, of_the_wait};
use crate::sandboxes::netns_names::{NAMES_MAX, NetnsState, Waiting};
use crate::stand_in::stand_in;
use crate::timers::Timer;

impl Sandboxes {
    /// A runtime named a network namespace.
    pub(crate) fn on_netns_named(&mut self, ctx: &mut Context, at: Timestamp, name: &str) {
        if runtime_of_netns(name).is_none() || self.unserved.names.get(name).is_some() {
            return;
        }
        if self.unserved.due.len() >= NAMES_MAX {
            self.unserved.due.pop_front();
            ctx.effects.counters.evicted_remembered.count(Scope::Sandbox, false);
        }
        let waiting = Waiting {
            named: at,
            removed: None,
            cause: cause(&ctx.problems),
            sandbox: None,
        };
        let state = NetnsState::Waiting(Box::new(waiting));
        self.unserved.names.insert(name, state);
        // From the newest time: a late record must not come before those that are in the queue.
        self.unserved
            .due
            .push_back((ctx.now.plus(ctx.config.runtime_wait_ns), name.into()));
        self.set_unserved_timer(ctx);
    }

    /// The name was removed.
    pub(crate) fn on_netns_unnamed(&mut self, at: Timestamp, name: &str) {
        if let Some(NetnsState::Waiting(waiting)) = self.unserved.names.get_mut(name) {
            waiting.removed.get_or_insert(at);
        }
    }

    /// The runtime begins an operation: an ADD serves its namespace. A DEL is no set-up, and says which sandbox it is.
    pub(crate) fn on_netns_used(&mut self, ctx: &mut Context, call: &Invocation<'_>) {
        let name = call.netns.rsplit('/').next().unwrap_or_default();
        if call.container.is_empty() || runtime_of_netns(name).is_none() {
            return;
        }
        if call.command == CniCommand::Add {
            self.unserved.sees_plugins = true;
            // Evicts the name of a sandbox that was created long ago, which is no loss.
            self.unserved.names.insert(name, NetnsState::Served);
            // Few names wait at a time, and the newest is served mostly.
            if let Some(index) = self.unserved.due.iter().rposition(|(_, waiting)| **waiting == *name) {
                self.unserved.due.remove(index);
                self.set_unserved_timer(ctx);
            }
        } else if let Some(NetnsState::Waiting(waiting)) = self.unserved.names.get_mut(name) {
            let sandbox = (call.container.to_owned(), call.args.to_owned());
            waiting.sandbox.get_or_insert(sandbox);
        }
    }

    /// The trace of the next sandbox that got no plugin until `due`, opened and ready to be closed. `None` as `due`: the
    /// input ends, and only names that are gone count.
    pub(crate) fn next_unserved(&mut self, ctx: &mut Context, due: Option<Timestamp>) -> Option<TraceKey> {
        while let Some((until, name)) = self.unserved.due.pop_front() {
            if due.is_some_and(|due| due < until) {
                self.unserved.due.push_front((until, name));
                break;
            }
            let Some(state) = self.unserved.names.get_mut(&name) else {
                continue;
            };
            // Whatever comes of it, it is looked at once.
            if let NetnsState::Waiting(waiting) = std::mem::replace(state, NetnsState::Served)
                && (due.is_some() || waiting.removed.is_some())
                && let Some(trace) = self.open_unserved(ctx, &name, *waiting)
            {
                return Some(trace);
            }
        }
        self.set_unserved_timer(ctx);
        None
    }

    fn open_unserved(&mut self, ctx: &mut Context, name: &str, waiting: Waiting) -> Option<TraceKey> {
        let may_be_lost = ctx.losses.processes_at(waiting.named);
        let cause = of_the_wait(waiting.cause, cause(&ctx.problems));
        // Without a cause that is known, a name that is gone shows that the runtime gave up, if its plugins are visible.
        let failed = cause.is_some() || (waiting.removed.is_some() && self.unserved.sees_plugins);
        if may_be_lost || !failed {
            return None;
        }
        let runtime = runtime_of_netns(name)?;
        let named = waiting.sandbox.filter(|(id, _)| ctx.traces.creation_of(id).is_none());
        let (container, args) = named.unwrap_or_else(|| (stand_in(name), String::new()));
        let call = Invocation {
            command: CniCommand::Add,
            container: &container,
            ifname: "",
            netns: name,
            args: &args,
            path: "",
            caller: None,
            fingerprint: 0,
        };
        let trace = self.open_creation(ctx, waiting.named, runtime, &call, false);
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(trace), self.creations.get_mut(trace)) else {
            return None;
        };
        if let Some(create) = open.trace.spans[CREATE].detail.as_create_mut() {
            create.netns_seen = true;
        }
        // The runtime fails within milliseconds. Where it keeps the name, its end is not seen, and none is invented.
        if let Some(removed) = waiting.removed {
            open.states[CREATE].latest = removed.max(waiting.named);
        }
        let what = "no plugin ran for its network namespace";
        creation.failed_step = Some(match &cause {
            Some(cause) => because(what, Some(cause)),
            None => format!("{what}, and the CNI configuration shows no reason"),
        });
        creation.cause = cause.map(|mut cause| {
            cause
                .evidence
                .push(format!("no plugin was executed for network namespace {name}"));
            cause
        });
        Some(trace)
    }

    fn set_unserved_timer(&self, ctx: &mut Context) {
        match self.unserved.due.front() {
            Some((until, _)) => ctx.effects.timers.set(Timer::Unserved, *until),
            None => ctx.effects.timers.clear(Timer::Unserved),
        }
    }
}
