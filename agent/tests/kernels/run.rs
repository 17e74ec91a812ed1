//! Boots the machines of a test, two at a time, and holds what each reports against what it must report.
//!
//! Used by the tests `kernels` and, in the demo's crate, `guests`. Does not: know what is on a machine.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context as _, Error, Result, anyhow};

use super::boot::Booted;
use super::console::{Verdict, WAITS, lines};
use super::machines::{Machine, Scene};
use super::table;

/// Boots each machine with its parts, whose error names what is missing, and judges its console.
#[expect(clippy::print_stderr, reason = "what a test skips")]
pub fn every_machine<P: Send>(
    test: &str,
    machines: &[&Machine],
    parts: impl Fn(&Machine) -> Result<P, String>,
    boot: impl Fn(&Machine, &P) -> Result<Booted> + Sync,
    judge: impl Fn(&Machine, &str) -> Result<Verdict> + Sync,
) -> Result<()> {
    let only = env::var("SANDGLASS_MACHINE").ok();
    let wanted = machines
        .iter()
        .filter(|machine| only.as_deref().is_none_or(|only| machine.name == only));
    let parts: Vec<_> = wanted.map(|machine| (machine, parts(machine))).collect();
    if let Some((_, Err(missing))) = parts.first()
        && parts.iter().all(|(_, parts)| parts.is_err())
    {
        eprintln!("SKIPPED {test}: {missing}");
        return Ok(());
    }
    // Of all tests of this binary: four emulated processors on two take so long that what the agent counts is not what happened.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = Mutex::new(parts.into_iter());
    // A machine mostly waits, and emulation takes one processor: two of them take half the time.
    let boots = || -> Result<()> {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((machine, parts)) = next else { return Ok(()) };
            // scripts/count.sh takes names of these characters.
            let name = machine
                .name
                .replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
            let parts = match parts {
                Ok(parts) => parts,
                Err(missing) => {
                    eprintln!("NOT RUN {test}::{name}: {missing}");
                    continue;
                }
            };
            let begin = Instant::now();
            let booted = boot(machine, &parts)?;
            let console = &booted.console;
            let verdict = judge(machine, console).map_err(|error| failed(machine, error, console))?;
            if !verdict.tracked {
                eprintln!(
                    "NOT RUN {test}::{name}::conntrack: without nft of the machine's architecture no connection is tracked"
                );
            }
            let waits = machine.scenes.iter().any(Scene::is_to_wait);
            let waited_for = lines(console, "waits for: ").next().filter(|_| waits);
            for reason in WAITS {
                if waited_for.is_some_and(|list| !list.split(' ').any(|wait| wait == reason)) {
                    eprintln!(
                        "NOT RUN {test}::{name}::{reason}: no flock or CNI plugins of the machine's architecture, or no disk"
                    );
                }
            }
            reported(machine, &verdict, begin, &booted, only.is_some())?;
        }
    };
    thread::scope(|scope| {
        let beside = scope.spawn(boots);
        let here = boots();
        let there = beside.join().unwrap_or_else(|panic| resume_unwind(panic));
        here.and(there)
    })?;
    if table::blesses() {
        fs::write(table::page_file(), table::page()?)?;
    }
    Ok(())
}

/// The error of a machine: what was wrong, then what it printed about a test of its own, then all that it printed. What was wrong comes
/// first: only some lines are repeated at the end of a run (`scripts/failures.sh`). Indented, so that what counts the results of tests
/// here does not count those of the machine (`scripts/count.sh`).
fn failed(machine: &Machine, error: Error, console: &str) -> Error {
    let wrong = console.split_once("panicked at ").map_or("", |(_, panic)| {
        panic.split_once("\nnote: ").map_or(panic, |(panic, _)| panic)
    });
    let indented = |text: &str| text.replace('\n', "\n    ");
    anyhow!(
        "{}: {}\n    {}\n    {}\n",
        machine.name,
        indented(&format!("{error:#}")),
        indented(wrong),
        indented(console)
    )
}

/// Compares the report with the machine's file, or writes it, and prints it; with `whole` all that came over the serial line, too.
#[expect(clippy::print_stdout, reason = "what a machine took")]
fn reported(machine: &Machine, verdict: &Verdict, begin: Instant, booted: &Booted, whole: bool) -> Result<()> {
    if table::blesses() {
        table::write(machine, verdict)?;
    } else {
        table::agrees(machine, verdict).with_context(|| machine.name.to_owned())?;
    }
    if whole {
        println!("{}", booted.console);
    }
    println!(
        "{} ({}): as expected, {:.1?}, {:.1?} of processors",
        machine.name,
        verdict.release,
        begin.elapsed(),
        booted.processors
    );
    for (scene, ran) in machine.scenes.iter().zip(&verdict.scenes) {
        println!("    {}: {:?}", scene.name, ran.rungs);
    }
    Ok(())
}
