//! Traces on a terminal: a waterfall with bars, and the one-line bar of phases.
//!
//! Used by the demo, `doctor` and `watch`. Pure: the caller passes width and colour, which [`size`] and [`colors`] read from
//! the terminal. All text from outside passes through [`clean`]: a pod's name must not move the cursor. Does not: know wide
//! characters; a line with CJK text may be longer than the width.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::IsTerminal;

use sandglass_model::event::ExitStatus;
use sandglass_model::phases::{Phase, human};
use sandglass_model::{Detail, Span, Status, Timestamp, Trace, registry};

use crate::platform::terminal_size;
use crate::view::{self, Readiness, ReadinessState};

/// A trace as a tree with bars, `width` cells wide, a line feed after each line. Open spans reach to the newest time
/// in the trace.
#[must_use]
pub fn render_waterfall(trace: &Trace, width: usize, color: bool) -> String {
    let Some(root) = trace.spans.first() else {
        return String::new();
    };
    let newest = trace.spans.iter().map(|span| span.end.unwrap_or(span.start)).max();
    let now = newest.unwrap_or_default();
    let ink = Ink { color };
    let labels = labels(trace);
    let width = width.clamp(MIN_WIDTH, 240);
    let longest = labels
        .iter()
        .map(|label| label.chars().count())
        .max()
        .unwrap_or_default();
    let names = longest.clamp(20, (width * 45 / 100).max(20));
    let endings: Vec<String> = trace.spans.iter().map(ending).collect();
    let tail = endings
        .iter()
        .map(|ending| ending.chars().count())
        .max()
        .unwrap_or_default();
    let bars = width.saturating_sub(names + TIME_CELLS + tail + 3).max(8);
    let scale = Scale {
        begin: root.start,
        total_ns: root.duration_ns(now).max(1),
        cells: bars,
    };

    let mut text = headline(trace, now, &ink);
    for (index, _) in trace.in_tree_order() {
        let (span, label, end) = (&trace.spans[index], &labels[index], &endings[index]);
        let bar = scale.bar(span, now, &ink);
        let time = human(span.duration_ns(now));
        let end = ink.paint(if span.end.is_none() { "33" } else { "31" }, end);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:<names$}  {bar} {time:>TIME_CELLS$}{end}", cut(label, names));
    }
    text
}

/// Phases of one trace as a bar of exactly `cells` cells (none when nothing was spent).
#[must_use]
pub fn phase_bar(phases: &BTreeMap<Phase, u64>, cells: usize, color: bool) -> String {
    let total: u64 = phases.values().sum();
    let ink = Ink { color };
    let mut bar = String::new();
    let (mut spent, mut drawn) = (0u64, 0usize);
    for (phase, ns) in phases {
        spent += ns;
        let to = portion(spent, total, cells);
        bar.push_str(&ink.phase(*phase, to - drawn));
        drawn = to;
    }
    bar
}

/// What the colours (or, without colour, the patterns) of these phases mean, on one line.
#[must_use]
pub fn phase_key(phases: &BTreeSet<Phase>, color: bool) -> String {
    let ink = Ink { color };
    let name = |phase: &Phase| format!("{} {}", ink.phase(*phase, 2), phase.as_str().replace('_', " "));
    phases.iter().map(name).collect::<Vec<_>>().join("   ")
}

/// Text that is safe on a terminal: control characters and direction overrides become `\xNN`.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control()
            || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            let _ = write!(safe, "\\x{:02x}", u32::from(char));
        } else {
            safe.push(char);
        }
    }
    safe
}

/// At most `cells` characters, with an ellipsis when something was cut.
#[must_use]
pub fn cut(text: &str, cells: usize) -> String {
    if text.chars().count() <= cells {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(cells.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Paints `text` when `color` is set; `code` is a list of SGR parameters.
#[must_use]
pub fn paint(text: &str, code: &str, color: bool) -> String {
    Ink { color }.paint(code, text)
}

/// Columns and rows of the terminal behind standard output; `COLUMNS` and `LINES`, or 80 and 24, when there is none.
#[must_use]
pub fn size() -> (usize, usize) {
    let from = |name: &str, otherwise| {
        let value = std::env::var(name).ok().and_then(|value| value.parse().ok());
        value.filter(|cells| (20..=1_000).contains(cells)).unwrap_or(otherwise)
    };
    let (columns, rows) = terminal_size().unwrap_or((80, 24));
    (from("COLUMNS", columns), from("LINES", rows))
}

/// Whether to colour standard output: it is a terminal that is not dumb, and `NO_COLOR` (<https://no-color.org>) is
/// not set.
#[must_use]
pub fn colors() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The trace's owner, its outcome and its verdict.
fn headline(trace: &Trace, now: Timestamp, ink: &Ink) -> String {
    let root = trace.root();
    let identity = &trace.identity;
    let sandbox = trace.sandbox.as_ref().map_or("", |sandbox| sandbox.0.as_str());
    let who = match (identity.namespace.is_empty(), identity.name.is_empty()) {
        (_, true) => cut(&clean(sandbox), 12),
        (true, false) => clean(&identity.name),
        (false, false) => format!("{}/{}", clean(&identity.namespace), clean(&identity.name)),
    };
    let outcome = match (&root.status, trace.closed) {
        (_, false) => ink.paint("33", "running"),
        (Status::Unset, true) => ink.paint("32", "ok"),
        (Status::Error { .. }, true) => ink.paint("31", "failed"),
    };
    let mut line = format!("{}  {}  {outcome}", ink.paint("1", &who), human(root.duration_ns(now)));
    let attempt = view::attempt(root);
    if attempt > 1 {
        let _ = write!(line, "  attempt {attempt}");
    }
    if trace.incomplete {
        line.push_str("  incomplete");
    }
    if !identity.name.is_empty() && !sandbox.is_empty() {
        let short: String = clean(sandbox).chars().take(12).collect();
        line.push_str(&ink.paint("2", &format!("  sandbox {short}")));
    }
    let _ = write!(line, "\n{}\n", clean(&view::verdict(trace, now)));
    if let Some(network) = Readiness::of(trace) {
        let _ = writeln!(line, "{}{}", readiness(&network), left_out(root));
    }
    line
}

/// When a sandbox's network proved usable, and how much of that the network itself took.
fn readiness(network: &Readiness) -> String {
    let created = format!("sandbox created after {}", human(network.created_ns));
    let (Some(first), Some(wait)) = (network.first_attempt_ns, network.wait_ns) else {
        return format!("{created}; its network is not used yet");
    };
    let how = match network.state {
        ReadinessState::Ready => "network usable",
        ReadinessState::Waiting => "network not usable yet,",
        ReadinessState::Failed => "network not usable",
    };
    format!(
        "{created}; first packet {} later; {how} {} after that",
        human(first.saturating_sub(network.created_ns)),
        human(wait)
    )
}

/// How much of what a sandbox tried is not in its tree.
fn left_out(root: &Span) -> String {
    match &root.detail {
        Detail::Sandbox(sandbox) if sandbox.attempts_left_out > 0 => {
            format!("; {} more attempts are not shown", sandbox.attempts_left_out)
        }
        _ => String::new(),
    }
}

/// Names with the branches of the tree before them.
fn labels(trace: &Trace) -> Vec<String> {
    let spans = &trace.spans;
    let last_child = |index: usize| {
        let (parent, place) = (spans[index].parent, (spans[index].start, index));
        !spans
            .iter()
            .enumerate()
            .any(|(other, span)| span.parent == parent && (span.start, other) > place)
    };
    (0..spans.len())
        .map(|index| {
            let mut branches = Vec::new();
            let mut at = index;
            while let Some(parent) = spans[at].parent.filter(|&parent| parent < at) {
                branches.push(match (at == index, last_child(at)) {
                    (true, true) => "└─ ",
                    (true, false) => "├─ ",
                    (false, true) => "   ",
                    (false, false) => "│  ",
                });
                at = parent;
            }
            branches.reverse();
            format!("{}{}", branches.concat(), clean(&label(&spans[index])))
        })
        .collect()
}

fn label(span: &Span) -> String {
    let name = registry::name(span);
    match &span.detail {
        Detail::Operation(operation) => [name.as_str(), &operation.ifname, &operation.network]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" "),
        Detail::Command(command) if command.process.args.len() > 1 => {
            format!("{name} {}", command.process.args.join_rest())
        }
        Detail::Lookup(lookup) => format!("{name} {}", clean(&lookup.name)),
        Detail::Connect(connect) => format!("{name} {}", connect.remote),
        _ => name,
    }
}

/// How a span that failed ended, or that it has not ended; what went badly in a lookup or connection.
fn ending(span: &Span) -> String {
    if span.end.is_none() {
        return " ...".to_owned();
    }
    let mut ending = failure(span);
    let (again, cause) = match &span.detail {
        Detail::Lookup(lookup) => (lookup.retransmissions, lookup.cause.as_ref()),
        Detail::Connect(connect) => (connect.retransmits, connect.cause.as_ref()),
        _ => (0, None),
    };
    if again > 0 {
        let _ = write!(ending, " ↻{again}");
    }
    if let Some(cause) = cause {
        let _ = write!(ending, " {}", clean(&cause.cause.replace('_', " ")));
    }
    ending
}

fn failure(span: &Span) -> String {
    let Status::Error { class, .. } = &span.status else {
        return String::new();
    };
    match span.process().and_then(|process| process.exit) {
        Some(ExitStatus::Code(code)) if code != 0 => format!(" ✕ exit {code}"),
        Some(ExitStatus::Signal(signal)) => format!(" ✕ signal {signal}"),
        // A frame only repeats what failed in it.
        Some(ExitStatus::Code(_) | ExitStatus::Unknown) | None if span.detail.is_frame() => " ✕".to_owned(),
        Some(ExitStatus::Code(_) | ExitStatus::Unknown) | None => format!(" ✕ {}", clean(class)),
    }
}

struct Scale {
    begin: Timestamp,
    total_ns: u64,
    cells: usize,
}

impl Scale {
    fn bar(&self, span: &Span, now: Timestamp, ink: &Ink) -> String {
        let from = portion(span.start.since(self.begin), self.total_ns, self.cells).min(self.cells - 1);
        let end = span.end.unwrap_or(now).since(self.begin);
        // The shortest span still shows.
        let to = portion(end, self.total_ns, self.cells).clamp(from + 1, self.cells);
        let frame = span.detail.is_frame();
        let bar = ink.bar(Phase::of(span), to - from, if frame { "━" } else { "█" });
        format!("{:from$}{bar}{:rest$}", "", "", rest = self.cells - to)
    }
}

/// `cells * part / total`, rounded to the nearest.
fn portion(part: u64, total: u64, cells: usize) -> usize {
    let scaled = (u128::from(part) * cells as u128 + u128::from(total / 2)) / u128::from(total.max(1));
    usize::try_from(scaled).unwrap_or(cells).min(cells)
}

struct Ink {
    color: bool,
}

impl Ink {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    fn phase(&self, phase: Phase, cells: usize) -> String {
        self.bar(phase, cells, "█")
    }

    /// Colours near those of the page; patterns where there are none.
    fn bar(&self, phase: Phase, cells: usize, block: &str) -> String {
        let (code, pattern) = match phase {
            Phase::Runtime => ("38;5;245", "░"),
            Phase::BetweenPlugins => ("38;5;180", "·"),
            Phase::Plugin => ("38;5;67", "█"),
            Phase::Delegate => ("38;5;98", "▓"),
            Phase::Command => ("38;5;172", "▒"),
            Phase::Application => ("38;5;240", "┄"),
            Phase::Lookup => ("38;5;72", "▞"),
            Phase::Connect => ("38;5;74", "▚"),
            Phase::Hns => ("38;5;132", "▛"),
            Phase::Hcs => ("38;5;101", "▜"),
            Phase::Daemon => ("38;5;133", "▙"),
            Phase::VnicWait => ("38;5;167", "▄"),
        };
        self.paint(code, &(if self.color { block } else { pattern }).repeat(cells))
    }
}

const TIME_CELLS: usize = 8;
const MIN_WIDTH: usize = 50;

#[cfg(test)]
mod tests;
