//! What threads that concern no plugin pay while one is slow: kernel time per switch of a processor, wake-up, message and lock.
//!
//! A plugin sleeps, so that the programs of waits, locks and requests are attached. Beside it two threads pass a byte to each
//! other through pipes and through a unix socket, and one locks a file. From the kernel's run-time statistics, per program; the mean of
//! a run, since other processes of the machine run the programs too, and are as unrelated.
//! Does not: subtract the cost of the measurement (two clock reads), or contend for locks of the kernel.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sandglass::app::settings::default_source;
use sandglass::sources::linux::LinuxOptions;

use crate::Effort;
use crate::probe::{Probe, Runs, since};
use crate::report::{Figure, Outcome, Unit, median};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let options = LinuxOptions {
        waits_after: Some(Duration::ZERO),
        connect: false,
        conntrack: false,
        dns: false,
        drops: false,
        ..default_source()?
    };
    let probe = match Probe::attach_with(options)? {
        Ok(probe) => probe,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let _plugin = Plugin::start()?;
    attached(&probe)?;
    let passes = effort.pick(20_000, 500);
    let mut rounds: Vec<Vec<Runs>> = Vec::new();
    for _ in 0..ROUNDS {
        let before = probe.runs();
        play(passes)?;
        rounds.push(since(&before, &probe.runs()));
    }
    let mut figures = Vec::new();
    for (program, what, budget) in PROGRAMS {
        let of = |round: &Vec<Runs>| {
            round
                .iter()
                .find(|runs| runs.program == program && runs.count > 0)
                .cloned()
        };
        let means: Vec<f64> = rounds
            .iter()
            .filter_map(of)
            .map(|runs| runs.ns as f64 / runs.count as f64)
            .collect();
        if means.is_empty() {
            continue;
        }
        let figure = Figure::new(
            format!("kernel time per unrelated {what} while a plugin is slow"),
            median(&means),
            Unit::Nanoseconds,
        )
        .remark(format!("{program}, {} rounds", means.len()));
        figures.push(match budget {
            Some(budget) => figure.at_most(budget),
            None => figure,
        });
    }
    ensure!(figures.len() >= 2, "no program of waits ran");
    Ok(Outcome::Figures(figures))
}

/// A process that counts as a plugin and sleeps. Ended when dropped.
struct Plugin {
    process: Child,
}

impl Plugin {
    fn start() -> Result<Plugin> {
        let process = Command::new("/bin/sleep")
            .arg("600")
            .env_clear()
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", "unrelated")
            .env("CNI_NETNS", "/var/run/netns/none")
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run /bin/sleep")?;
        Ok(Plugin { process })
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until the programs run.
fn attached(probe: &Probe) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        let runs = probe.runs();
        if runs.iter().any(|runs| runs.program == "on_switch" && runs.count > 0) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the programs of waits were not attached within 10 s: are they refused here (sandglass doctor)?")
}

/// Passes a byte to and fro, and locks a file, so many times each.
fn play(passes: u32) -> Result<()> {
    let (far_reader, near_writer) = std::io::pipe()?;
    let (near_reader, far_writer) = std::io::pipe()?;
    pass((near_reader, near_writer), (far_reader, far_writer), passes)?;
    let (near, far) = UnixStream::pair()?;
    pass((near.try_clone()?, near), (far.try_clone()?, far), passes)?;
    let file: File = tempfile::tempfile()?;
    for _ in 0..passes {
        file.lock()?;
        file.unlock()?;
    }
    Ok(())
}

fn pass<R, W>(mut near: (R, W), mut far: (R, W), passes: u32) -> Result<()>
where
    R: Read + Send,
    W: Write + Send,
{
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> std::io::Result<()> {
            let mut byte = [0];
            for _ in 0..passes {
                far.0.read_exact(&mut byte)?;
                far.1.write_all(&byte)?;
            }
            Ok(())
        });
        let mut byte = [0];
        for _ in 0..passes {
            near.1.write_all(&byte)?;
            near.0.read_exact(&mut byte)?;
        }
        match echo.join() {
            Ok(outcome) => Ok(outcome?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Programs, what each run of them is for, and what it may cost with the statistics' own time.
const PROGRAMS: [(&str, &str, Option<f64>); 5] = [
    ("on_switch", "switch of a processor", Some(WITH_STATISTICS_NS)),
    ("on_waking", "wake-up", Some(WITH_STATISTICS_NS)),
    ("on_flock", "lock of a file", None),
    ("on_sock_send", "message that is sent", None),
    ("on_sock_receive", "message that is received", None),
];
/// Rounds, so that a busy moment of the machine does not decide.
const ROUNDS: u32 = 10;
/// 60 ns, and 57 of the statistics themselves.
const WITH_STATISTICS_NS: f64 = 117.0;
