//! One trace as the terminal shows it: two lines of a screen, or one of a log.
//!
//! Used by `watch` and by its client, which parses rows from the agent's JSON. Fields that an older agent lacks have a default.
//! Does not: choose rows, or know the terminal's size.

use std::collections::BTreeMap;

use sandglass_model::RootId;
use sandglass_model::phases::{Phase, human};
use serde::Deserialize;

use crate::terminal::{clean, cut, paint, phase_bar};
use crate::wall_clock::wall_ns;

/// A list row, as far as it is shown.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ReceivedRow {
    #[serde(flatten)]
    pub(super) root: RootId,
    #[serde(default)]
    pub(super) operation: Option<String>,
    #[serde(default)]
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) pod: String,
    pub(super) start_unix_ns: String,
    pub(super) duration_ns: u64,
    /// Without the time in which its programs did not use the network.
    #[serde(default)]
    pub(super) busy_ns: Option<u64>,
    pub(super) result: String,
    #[serde(default)]
    pub(super) running: bool,
    #[serde(default)]
    pub(super) verdict: String,
    #[serde(default)]
    pub(super) phases: BTreeMap<Phase, u64>,
    #[serde(default)]
    pub(super) attempt: u32,
    /// What a journey was to.
    #[serde(default)]
    pub(super) target: Option<String>,
}

impl ReceivedRow {
    /// Its begin, nanoseconds since 1970; 0 when the text is no number.
    pub(super) fn start(&self) -> u64 {
        self.start_unix_ns.parse().unwrap_or_default()
    }

    /// No more of it will come.
    pub(super) fn ended(&self) -> bool {
        !self.running && self.result != "waiting"
    }

    /// Pod, or as much as is known of the sandbox, with the verb of an operation and the target of a journey.
    pub(super) fn who(&self) -> String {
        let name = if self.pod.is_empty() {
            self.sandbox.chars().take(12).collect()
        } else {
            self.pod.clone()
        };
        let mut who = if self.namespace.is_empty() {
            name
        } else {
            format!("{}/{name}", self.namespace)
        };
        if let Some(operation) = &self.operation {
            who = format!("{operation} {who}");
        }
        if let Some(target) = &self.target {
            let owner = if who.is_empty() { "node" } else { &who };
            who = format!("{owner} › {target}");
        }
        clean(&who)
    }

    /// Its name in at most `cells` cells; the attempt number is never cut.
    pub(super) fn label(&self, cells: usize) -> String {
        if self.attempt < 2 {
            return cut(&self.who(), cells);
        }
        let attempt = format!(" #{}", self.attempt);
        format!("{}{attempt}", cut(&self.who(), cells.saturating_sub(attempt.len())))
    }

    /// The time that is shown: of a trace that runs, until now by this machine's clock, if that is more than the agent reported.
    pub(super) fn took_ns(&self) -> u64 {
        if self.running {
            self.duration_ns.max(wall_ns().saturating_sub(self.start()))
        } else {
            self.busy_ns()
        }
    }

    /// Without the time in which programs sent nothing; agents before that field report the whole only.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns.unwrap_or(self.duration_ns)
    }

    /// Two lines: who, bar, time; and the verdict.
    pub(super) fn block(&self, width: usize, longest_ns: u64, color: bool) -> [String; 2] {
        let (mark, code) = match self.result.as_str() {
            "ok" => ("●", "32"),
            "failed" => ("✕", "31"),
            "waiting" => ("○", "32"),
            _ => ("◌", "33"),
        };
        let names = (width / 3).clamp(16, 44);
        let bars = width.saturating_sub(names + 14).max(6);
        // Cube root, as on the page: 200 ms can still be distinguished beside 10 s.
        let share = (self.busy_ns() as f64 / longest_ns.max(1) as f64).min(1.0).cbrt();
        let cells = ((bars as f64 * share).round() as usize).clamp(1, bars);
        // The time until a program uses its network is not the node's.
        let mut phases = self.phases.clone();
        phases.remove(&Phase::Application);
        let bar = phase_bar(&phases, cells, color);
        let drawn = if phases.is_empty() { 0 } else { cells };
        let first = format!(
            "{} {:<names$} {bar}{:rest$} {:>9}",
            paint(mark, code, color),
            self.label(names),
            "",
            human(self.took_ns()),
            rest = bars - drawn,
        );
        let verdict = cut(&clean(&self.verdict), width.saturating_sub(3));
        let verdict = paint(&verdict, if self.result == "failed" { "31" } else { "2" }, color);
        [first, format!("  {verdict}")]
    }

    /// One line for a log.
    pub(super) fn line(&self, width: usize, color: bool) -> String {
        let who = self.label((width / 2).max(40));
        let verdict = clean(&self.verdict);
        format!(
            "{:>9}  {:<7} {who}  {}",
            human(self.took_ns()),
            self.result,
            paint(&verdict, "2", color)
        )
    }
}
