//! What a slow pod waited for, against what was arranged: a lock that another process holds, a processor that others keep busy.
//!
//! Of the ADD of its first interface. Of every pod: that no step of its runtime waited for a fork of `runc create` of which nothing is known.
//! Does not: look at other networks' waits, which are the machine's.

use sandglass_model::Timestamp;
use sandglass_model::cni::CniCommand;
use sandglass_model::trace::Trace;
use sandglass_model::waits::{TimeReason, TimeSpent};

use super::network::Seen;
use super::{Wrong, operations};
use crate::networks::{LOCK, LOCK_HOLDER, LOCKED_COMMAND, Network};
use crate::pods::CallRecord;

/// The reason takes a third of the operation or more, and the trace's headline names it. Where a busy processor was arranged, a busy disk
/// may be the reason as well: not judged where by the kernel's figures a task may have waited for one for a third of the call.
pub(super) fn waits(trace: &Trace, record: &CallRecord, seen: Seen) -> Result<String, Wrong> {
    let times = trace.spans.iter().filter_map(|span| span.detail.time());
    let mut for_children = times
        .flat_map(|time| &time.waits)
        .filter(|wait| wait.reason == TimeReason::Child);
    if let Some(wait) = for_children.find(|wait| wait.by.starts_with(FORK)) {
        return Err(format!("what the runtime forked is not followed: {wait:?}").into());
    }
    let (reason, named) = match record.pod.network {
        Network::Locked => (TimeReason::FileLock, format!("/{LOCK}, held by {LOCK_HOLDER}")),
        Network::Crowded => (TimeReason::RunQueue, "the node's processors were busy".to_owned()),
        Network::Plain | Network::Slow | Network::Failing | Network::Hanging | Network::Served | Network::Two => {
            return Ok("none arranged".to_owned());
        }
    };
    if !seen.waits {
        return Ok("cannot be recorded on this node".to_owned());
    }
    let mut adds = operations(trace).filter(|(_, add)| add.command == CniCommand::Add && add.ifname == "eth0");
    let time = adds.next().and_then(|(_, add)| add.time.as_deref());
    let time = time.ok_or("nothing was recorded of the ADD")?;
    let disks_percent = record.run.disks_ns * 100 / record.run.duration_ns().max(1);
    let wrong = |text: String| match reason == TimeReason::RunQueue && disks_percent >= LEAST_PERCENT {
        true => Wrong::Busy(text),
        false => Wrong::Fact(text),
    };
    let percent = percent_of(time, reason);
    if percent < LEAST_PERCENT {
        return Err(wrong(format!(
            "{} is {percent} % of the ADD: {:?}",
            reason.as_str(),
            time.parts
        )));
    }
    if reason == TimeReason::FileLock {
        let longest = time.waits.iter().find(|wait| wait.reason == reason);
        let who = longest.map_or("", |wait| wait.who.as_str());
        if who != LOCKED_COMMAND {
            return Err(format!("{who:?} waited for the lock, not {LOCKED_COMMAND}").into());
        }
    }
    let headline = sandglass::view::verdict(trace, trace.root().end.unwrap_or(Timestamp(0)));
    if headline.contains(&named) {
        Ok(headline)
    } else {
        Err(wrong(format!(
            "the headline does not say {named:?}: {headline}; of the ADD {:?}, of the call {disks_percent} % for disks",
            time.parts
        )))
    }
}

fn percent_of(time: &TimeSpent, reason: TimeReason) -> u64 {
    let part = time.parts.iter().find(|part| part.0 == reason).map_or(0, |part| part.1);
    part * 100 / time.total_ns().max(1)
}

/// How `runc create` calls what it forks (libcontainer/nsenter/nsexec.c): `runc:[2:INIT]`.
const FORK: &str = "runc:[";
/// From here on a headline names a reason.
const LEAST_PERCENT: u64 = 33;
