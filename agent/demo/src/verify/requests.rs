//! The requests of a plugin to its daemon, against what was arranged: the daemon, and the command that it ran for the pod.
//!
//! Does not: look at other networks' plugins, which send none.

use sandglass_model::daemons::RequestTransport;
use sandglass_model::phases::human;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{Confidence, DaemonDetail, Detail, RequestBegin, Span, Trace};
use sandglass_model::{Timestamp, registry};

use super::network::Seen;
use super::{Wrong, plugins};
use crate::networks::{DAEMON, Network, SERVED_COMMAND, SHIM_PLUGIN};
use crate::pods::CallRecord;

/// The longest request went to the daemon and was answered, what the daemon ran for it lies below it, and the trace's headline names
/// plugin, daemon and what that one waited for.
pub(super) fn requests(trace: &Trace, record: &CallRecord, seen: Seen) -> Result<String, Wrong> {
    if record.pod.network != Network::Served {
        return Ok("none arranged".to_owned());
    }
    if !seen.requests {
        return Ok("cannot be followed on this node".to_owned());
    }
    let shim = plugins(trace).find(|(_, plugin)| *plugin.plugin == *SHIM_PLUGIN);
    let (shim, _) = shim.ok_or_else(|| format!("no {SHIM_PLUGIN}"))?;
    let of_shim = trace.spans.iter().enumerate().filter_map(|(index, span)| {
        let request = span.detail.as_daemon().filter(|_| span.parent == Some(shim))?;
        Some((index, span.duration_ns(Timestamp(0)), request))
    });
    let longest = of_shim.max_by_key(|(_, duration, _)| *duration);
    let (index, _, request) = longest.ok_or("no request")?;
    to_daemon(request, record.run.pressure_ns)?;
    let command = below(trace, index, SERVED_COMMAND)?;
    let attribution = trace.spans[command].process().and_then(|process| process.attribution);
    // Its arguments have the container's id.
    if attribution.map(|how| how.confidence()) != Some(Confidence::Certain) {
        return Err(format!("{SERVED_COMMAND} is there by {attribution:?}").into());
    }
    below(trace, command, "sleep")?;
    headline(trace, record.run.pressure_ns, seen)
}

fn to_daemon(request: &DaemonDetail, pressure_ns: u64) -> Result<(), Wrong> {
    if request.begin != RequestBegin::Sent {
        let late = format!("the request was followed late: {:?}", request.begin);
        return Err(if pressure_ns > LATE_NS {
            let pressure = human(pressure_ns);
            Wrong::Busy(format!("{late}; tasks waited {pressure} for processors and disks"))
        } else {
            Wrong::Fact(late)
        });
    }
    if (&*request.name, request.transport) != (DAEMON, RequestTransport::Unix) {
        return Err(format!("the request is to {:?} by {}", request.name, request.transport.as_str()).into());
    }
    if request.unanswered {
        return Err("the request has no answer".into());
    }
    Ok(())
}

/// Index of the command `name` directly below the span `parent`.
fn below(trace: &Trace, parent: usize, name: &str) -> Result<usize, Wrong> {
    let is_it = |span: &Span| match &span.detail {
        Detail::Command(command) => span.parent == Some(parent) && *command.name == *name,
        _ => false,
    };
    let found = trace.spans.iter().position(is_it);
    found.ok_or_else(|| format!("no {name} below the request").into())
}

fn headline(trace: &Trace, pressure_ns: u64, seen: Seen) -> Result<String, Wrong> {
    let end = trace.root().end.unwrap_or(Timestamp(0));
    let headline = sandglass::view::verdict(trace, end);
    // Without the waits it names what took the daemon's time.
    let slept = if seen.waits {
        "sleep waited "
    } else {
        "command sleep took "
    };
    let named = [
        format!("plugin {SHIM_PLUGIN} waited "),
        format!(" for {DAEMON}, whose {slept}"),
    ];
    if named.iter().all(|named| headline.contains(named)) {
        return Ok(headline);
    }
    if headline.contains("processors were busy") && pressure_ns > LATE_NS {
        return Err(Wrong::Busy(headline));
    }
    let times = trace.spans.iter().filter_map(|span| {
        let time = span.detail.time()?;
        Some(format!("{}: {time:?}", registry::name(span)))
    });
    let times: Vec<String> = times.collect();
    Err(format!("the headline does not say {named:?}: {headline}\n{}", times.join("\n")).into())
}

/// How long tasks of the node waited at least where the agent is excused. The plugin's first request leaves it about 0.2 s to attach
/// its programs.
const LATE_NS: u64 = 100 * MILLISECOND;
