//! `sandglass watch`: a running agent's sandboxes on the terminal, live, with a bar of phases each.
//!
//! Talks to the agent's HTTP API like any other client. On a terminal it redraws in place; into a pipe, or with
//! `NO_COLOR`, it writes one line for each trace that ends. Does not: read the keyboard; Ctrl-C leaves.

mod client;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use sandglass_model::RootId;
use sandglass_model::phases::{Phase, human};
use serde::Deserialize;

use crate::platform::until_stopped;
use crate::terminal::{clean, colors, cut, paint, phase_bar, phase_key, size};
use crate::wall_clock::wall_ns;
pub use client::{Agent, WatchError};
use client::{Listening, Messages, StreamMessage};

/// What to watch, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// The agent.
    pub agent: Agent,
    /// Write the list once and leave.
    pub once: bool,
}

/// A list row, as far as it is shown.
#[derive(Clone, Debug, Deserialize)]
struct ReceivedRow {
    #[serde(flatten)]
    root: RootId,
    #[serde(default)]
    operation: Option<String>,
    #[serde(default)]
    sandbox: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    pod: String,
    start_unix_ns: String,
    duration_ns: u64,
    /// Without the time in which its programs did not use the network.
    #[serde(default)]
    busy_ns: Option<u64>,
    result: String,
    #[serde(default)]
    running: bool,
    #[serde(default)]
    verdict: String,
    #[serde(default)]
    phases: BTreeMap<Phase, u64>,
    #[serde(default)]
    attempt: u32,
    /// What a journey was to.
    #[serde(default)]
    target: Option<String>,
}

#[derive(Debug, Deserialize)]
struct List {
    rows: Vec<ReceivedRow>,
}

/// What the terminal shows.
#[derive(Debug, Default)]
struct Screen {
    node: String,
    /// Newest first.
    rows: Vec<ReceivedRow>,
    trouble: String,
}

/// Shows the agent's sandboxes until Ctrl-C, or once. A reader of the pipe that has enough is no error.
pub async fn run(options: WatchOptions) -> Result<(), WatchError> {
    match show(options).await {
        Err(WatchError::Write { source }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

async fn show(options: WatchOptions) -> Result<(), WatchError> {
    let mut screen = Screen::default();
    screen.load(&options.agent).await?;
    let color = colors();
    if options.once {
        let (width, _) = size();
        return write(&screen.lines(width, usize::MAX, color).join("\n"), "\n");
    }
    if color && io::stdout().is_terminal() {
        // The alternate screen, without cursor and line wrap: what was on the terminal before is back afterwards.
        write("\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l", "")?;
        let outcome = tokio::select! {
            outcome = screen.live(&options.agent) => outcome,
            () = until_stopped() => Ok(()),
        };
        write("\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l", "")?;
        outcome
    } else {
        tokio::select! {
            outcome = screen.log(&options.agent) => outcome,
            () = until_stopped() => Ok(()),
        }
    }
}

impl Screen {
    async fn load(&mut self, agent: &Agent) -> Result<(), WatchError> {
        let path = format!("/api/v1/sandboxes?kind=all&limit={MAX_ROWS}");
        let list: List = client::get(agent, &path).await?;
        self.rows = list.rows;
        if self.node.is_empty() {
            let health: client::NodeHealth = client::get(agent, "/api/v1/health").await?;
            self.node = health.node.name;
        }
        Ok(())
    }

    /// Redraws at every change, and a few times a second while something runs.
    async fn live(&mut self, agent: &Agent) -> Result<(), WatchError> {
        let mut messages = Listening::start(agent.clone());
        let mut clock = tokio::time::interval(Duration::from_millis(250));
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut changed = true;
        loop {
            tokio::select! {
                message = messages.next() => {
                    self.take(message, agent).await;
                    changed = true;
                }
                _ = clock.tick() => {
                    if changed || self.rows.iter().any(|row| row.running) {
                        let (width, height) = size();
                        self.draw(width, height)?;
                        changed = false;
                    }
                }
            }
        }
    }

    /// One line for each trace that ends.
    async fn log(&mut self, agent: &Agent) -> Result<(), WatchError> {
        let (width, _) = size();
        for row in self.rows.iter().rev().filter(|row| row.ended()) {
            write(&row.line(width, false), "\n")?;
        }
        let mut messages = Messages::new(agent.clone());
        let ended = self.rows.iter().filter(|row| row.ended());
        let mut shown: Vec<RootId> = ended.map(|row| row.root).collect();
        loop {
            match messages.next().await {
                StreamMessage::Row(row) if row.ended() && !shown.contains(&row.root) => {
                    write(&row.line(width, false), "\n")?;
                    shown.push(row.root);
                    if shown.len() > 2 * MAX_ROWS {
                        shown.drain(..MAX_ROWS);
                    }
                }
                StreamMessage::Broken(error) => {
                    tracing::warn!(%error, "the connection to the agent is broken; trying again")
                }
                StreamMessage::Row(_) | StreamMessage::Node(_) | StreamMessage::Connected | StreamMessage::Reload => {}
            }
        }
    }

    async fn take(&mut self, message: StreamMessage, agent: &Agent) {
        match message {
            StreamMessage::Row(row) => self.put(*row),
            StreamMessage::Node(name) => self.node = name,
            StreamMessage::Connected | StreamMessage::Reload => {
                // Changes in between were missed.
                self.trouble = self
                    .load(agent)
                    .await
                    .err()
                    .map(|error| error.to_string())
                    .unwrap_or_default();
            }
            StreamMessage::Broken(error) => self.trouble = format!("{error}; trying again"),
        }
    }

    fn put(&mut self, row: ReceivedRow) {
        match self.rows.iter_mut().find(|known| known.root == row.root) {
            Some(known) => *known = row,
            None => {
                self.rows.insert(0, row);
                self.rows.sort_by_key(|row| std::cmp::Reverse(row.start()));
                self.rows.truncate(MAX_ROWS);
            }
        }
    }

    fn draw(&self, width: usize, height: usize) -> Result<(), WatchError> {
        let mut frame = String::from("\u{1b}[H");
        for line in self.lines(width, height.saturating_sub(1), true) {
            // Over the old line, then what it had more: no flicker.
            let _ = write!(frame, "{line}\u{1b}[K\r\n");
        }
        frame.push_str("\u{1b}[J");
        write(&frame, "")
    }

    /// The phases in the bars.
    fn phases(&self) -> BTreeSet<Phase> {
        let phases = self.rows.iter().flat_map(|row| row.phases.keys().copied());
        phases.filter(|phase| *phase != Phase::Application).collect()
    }

    fn lines(&self, width: usize, height: usize, color: bool) -> Vec<String> {
        let running = self.rows.iter().filter(|row| row.running).count();
        let failed = self.rows.iter().filter(|row| row.result == "failed").count();
        let waiting = self.rows.iter().filter(|row| row.result == "waiting").count();
        let mut head = paint("sandglass", "1", color);
        if !self.node.is_empty() {
            let _ = write!(head, " on {}", clean(&self.node));
        }
        let _ = write!(
            head,
            "   {} traces, {failed} failed, {running} running",
            self.rows.len()
        );
        if waiting > 0 {
            let _ = write!(head, ", {waiting} without traffic yet");
        }
        let mut lines = vec![head];
        if self.trouble.is_empty() {
            lines.push(phase_key(&self.phases(), color));
        } else {
            lines.push(paint(&cut(&clean(&self.trouble), width), "31", color));
        }
        lines.push(String::new());
        if self.rows.is_empty() {
            lines.push("no sandbox yet: the next pod created on this node appears here".to_owned());
        }
        // Each row takes two lines.
        let room = height.saturating_sub(lines.len()) / 2;
        let longest = self
            .rows
            .iter()
            .filter(|row| !row.running)
            .map(ReceivedRow::busy_ns)
            .max();
        for row in self.rows.iter().take(room) {
            lines.extend(row.block(width, longest.unwrap_or(1), color));
        }
        lines
    }
}

impl ReceivedRow {
    fn start(&self) -> u64 {
        self.start_unix_ns.parse().unwrap_or_default()
    }

    /// No more of it will come.
    fn ended(&self) -> bool {
        !self.running && self.result != "waiting"
    }

    fn who(&self) -> String {
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
    fn label(&self, cells: usize) -> String {
        if self.attempt < 2 {
            return cut(&self.who(), cells);
        }
        let attempt = format!(" #{}", self.attempt);
        format!("{}{attempt}", cut(&self.who(), cells.saturating_sub(attempt.len())))
    }

    fn took_ns(&self) -> u64 {
        if self.running {
            self.duration_ns.max(wall_ns().saturating_sub(self.start()))
        } else {
            self.busy_ns()
        }
    }

    fn busy_ns(&self) -> u64 {
        self.busy_ns.unwrap_or(self.duration_ns)
    }

    /// Two lines: who, bar, time; and the verdict.
    fn block(&self, width: usize, longest_ns: u64, color: bool) -> [String; 2] {
        let (mark, code) = match self.result.as_str() {
            "ok" => ("●", "32"),
            "failed" => ("✕", "31"),
            "waiting" => ("○", "32"),
            _ => ("◌", "33"),
        };
        let names = (width / 3).clamp(16, 44);
        let bars = width.saturating_sub(names + 14).max(6);
        // Cube root, as on the page: 200 ms can still be told apart beside 10 s.
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
    fn line(&self, width: usize, color: bool) -> String {
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

fn write(text: &str, end: &str) -> Result<(), WatchError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.write_all(end.as_bytes()))
        .and_then(|()| out.flush())
        .map_err(|source| WatchError::Write { source })
}

const MAX_ROWS: usize = 200;

#[cfg(test)]
mod tests;
