//! The course of a simulation: phases in which every agent plays its stories at a steady rate, and a gateway that restarts in one.
//!
//! Agents take turns, so that the fleet's load is even. Simulated time passes at a fixed pace of real time; where the machine cannot
//! keep up, the phase takes longer, and what it took is what is reported. Does not: count what arrived.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::gateway::{Gateway, Usage};
use super::players::{Made, Player};
use super::stories::Mix;

/// A phase.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// Stories of each agent.
    pub stories: u64,
    /// Simulated time between two of an agent.
    pub every: Duration,
    /// The gateway is away: from when on and for how long, in simulated time of the phase.
    pub away: Option<(Duration, Duration)>,
}

/// What a phase took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// Simulated time.
    pub simulated: Duration,
    /// Real time.
    pub real: Duration,
    /// Sandboxes made.
    pub sandboxes: u64,
    /// Processor time and memory.
    pub used: Usage,
}

impl Phase {
    /// Simulated time of the whole phase.
    #[must_use]
    pub fn simulated(&self) -> Duration {
        self.every.mul_f64(self.stories as f64)
    }

    /// When an agent plays a story, in simulated time of the phase; both count from 0.
    fn due(&self, agent: usize, agents: usize, story: u64) -> Duration {
        self.every.mul_f64(story as f64 + agent as f64 / agents as f64)
    }
}

/// Plays a phase. `before` is how many stories each agent has played.
pub fn play(
    phase: Phase,
    pace: f64,
    before: u64,
    mix: &Mix,
    players: &mut [Player],
    gateway: &Arc<Mutex<Gateway>>,
    made: &mut Made,
) -> Result<Took> {
    let (used, sandboxes) = (usage(gateway)?, made.sandboxes);
    let begin = Instant::now();
    let restart = phase.away.map(|(from, away)| {
        let gateway = Arc::clone(gateway);
        let (from, away) = (from.mul_f64(pace), away.mul_f64(pace));
        std::thread::spawn(move || restart(&gateway, from, away))
    });
    let agents = players.len();
    for story in 0..phase.stories {
        for (agent, player) in players.iter_mut().enumerate() {
            let due = phase.due(agent, agents, story).mul_f64(pace);
            // Sleeping for each would wake the processor thousands of times a second.
            if let Some(early) = due.checked_sub(begin.elapsed() + STEP) {
                std::thread::sleep(early + STEP);
            }
            player.play(mix, before + story, unix_ns(), made);
        }
    }
    let real = begin.elapsed();
    if let Some(restart) = restart {
        restart
            .join()
            .ok()
            .context("the thread that restarts the gateway panicked")??;
    }
    let after = usage(gateway)?;
    Ok(Took {
        simulated: phase.simulated(),
        real,
        sandboxes: made.sandboxes - sandboxes,
        used: Usage {
            gateway: after.gateway.saturating_sub(used.gateway),
            back_end: after.back_end.saturating_sub(used.back_end),
            gateway_bytes: after.gateway_bytes,
        },
    })
}

fn restart(gateway: &Mutex<Gateway>, from: Duration, away: Duration) -> Result<()> {
    std::thread::sleep(from);
    let mut gateway = gateway.lock().unwrap_or_else(PoisonError::into_inner);
    gateway.interrupt()?;
    std::thread::sleep(away);
    gateway.resume()
}

/// Usage now; waits while the gateway is away.
pub fn usage(gateway: &Mutex<Gateway>) -> Result<Usage> {
    gateway.lock().unwrap_or_else(PoisonError::into_inner).usage()
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Shortest sleep.
const STEP: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_take_turns_at_their_rate() {
        let phase = Phase {
            stories: 300,
            every: Duration::from_secs(2),
            away: None,
        };
        assert_eq!(phase.simulated(), Duration::from_secs(600));
        assert_eq!(phase.due(0, 4, 0), Duration::ZERO);
        assert_eq!(phase.due(3, 4, 0), Duration::from_millis(1_500));
        assert_eq!(phase.due(0, 4, 1), Duration::from_secs(2));
        let all: Vec<Duration> = (0..5)
            .flat_map(|story| (0..4).map(move |agent| phase.due(agent, 4, story)))
            .collect();
        assert!(all.is_sorted());
    }
}
