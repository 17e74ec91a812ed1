//! `sandglass watch`: a running agent's sandboxes on the terminal, live, with a bar of phases each.
//!
//! Talks to the agent's HTTP API like any other client. On a terminal it redraws in place; into a pipe, or with
//! `NO_COLOR`, it writes one line for each trace that ends. Does not: read the keyboard; Ctrl-C leaves.

mod client;
mod row;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sandglass_model::RootId;
use sandglass_model::phases::Phase;
use serde::Deserialize;

use crate::health::RefusedProcess;
use crate::platform::until_stopped;
use crate::terminal::{clean, colors, cut, paint, phase_key, size};
pub use client::{Agent, WatchError};
use client::{Listening, Messages, StreamMessage};
use row::ReceivedRow;

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The agent.
    pub agent: Agent,
    /// Write the list once and leave.
    pub once: bool,
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

/// What the agent that listens at `address` refused as plugin or runtime, newest first.
///
/// # Errors
/// No agent listens there, or its answer is not that of an agent.
pub async fn refused_by(mut address: SocketAddr, token: Option<String>) -> Result<Vec<RefusedProcess>, WatchError> {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    let agent = Agent {
        address: address.to_string(),
        token,
        // Which authority signed the page's certificate is not in the agent's configuration.
        tls: None,
    };
    let health: client::Refused = client::get(&agent, "/api/v1/health").await?;
    Ok(health.refused)
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
