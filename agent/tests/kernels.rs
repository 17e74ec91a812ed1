//! Other kernels than this machine's, booted in QEMU without acceleration: the verifier of each must take every program,
//! and the programs must report the same. And this kernel's siblings as nodes have them: with other flavours, privileges, address
//! families and security modules.
//!
//! `scripts/kernels.sh` fetches the kernels into the cache; `kernels/machines.rs` has the machines. What a machine needs and is not
//! there (a kernel, busybox, QEMU, AppArmor's parser) skips that machine, by name.
//! Those of arm64 run a static agent of that architecture, which `SANDGLASS_ARM64_AGENT` names (`scripts/image.sh arm64` builds it).
//! `BLESS=1` writes what the machines reported into docs/systems.md (`kernels/table.rs`).
//! `SANDGLASS_MACHINE` names one machine to be booted alone; its console is then printed.
//! Does not: repeat the probes' own tests, or measure; such a machine is about fourteen times slower.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

#[path = "kernels/archive.rs"]
mod archive;
#[path = "kernels/boot.rs"]
mod boot;
#[path = "kernels/judge.rs"]
mod judge;
#[path = "kernels/machines.rs"]
mod machines;
#[path = "kernels/table.rs"]
mod table;

use boot::Parts;
use machines::{MACHINES, Machine};

#[test]
fn every_probe_works_on_other_kernels() -> Result<()> {
    let name = "every_probe_works_on_other_kernels";
    let others = boot::others();
    let machines = MACHINES.iter().filter(|machine| !machine.is_arm64()).chain(&others);
    every_machine(
        name,
        &machines.collect::<Vec<_>>(),
        Path::new(env!("CARGO_BIN_EXE_sandglass")),
    )
}

#[test]
fn every_probe_works_on_kernels_of_arm64() -> Result<()> {
    let name = "every_probe_works_on_kernels_of_arm64";
    let Some(agent) = std::env::var_os("SANDGLASS_ARM64_AGENT") else {
        eprintln!("SKIPPED {name}: SANDGLASS_ARM64_AGENT names no static agent (scripts/image.sh arm64)");
        return Ok(());
    };
    let machines: Vec<&Machine> = MACHINES.iter().filter(|machine| machine.is_arm64()).collect();
    every_machine(name, &machines, Path::new(&agent))
}

#[test]
fn the_table_of_systems_is_that_of_the_machines() -> Result<()> {
    let strangers = table::strangers();
    ensure!(strangers.is_empty(), "reports of no machine: {strangers:?}");
    let page = table::page()?;
    if table::blesses() {
        fs::write(table::page_file(), &page)?;
    }
    ensure!(
        fs::read_to_string(table::page_file())? == page,
        "docs/systems.md is not what docs/systems/*.json and kernels/machines.rs come to; BLESS=1 writes it:\n{page}"
    );
    Ok(())
}

/// Boots each machine, and judges what the agent reports there.
#[expect(clippy::print_stderr, clippy::print_stdout, reason = "what a test skips and takes")]
fn every_machine(test: &str, machines: &[&Machine], agent: &Path) -> Result<()> {
    let only = std::env::var("SANDGLASS_MACHINE").ok();
    let wanted = machines
        .iter()
        .filter(|machine| only.as_deref().is_none_or(|only| machine.name == only));
    let parts: Vec<_> = wanted.map(|machine| (machine, Parts::of(machine, agent))).collect();
    if let Some((_, Err(missing))) = parts.first()
        && parts.iter().all(|(_, parts)| parts.is_err())
    {
        eprintln!("SKIPPED {test}: {missing}");
        return Ok(());
    }
    for (machine, parts) in parts {
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
        let console = boot::boot(machine, &parts)?;
        let verdict = judge::judge(machine, &console).with_context(|| format!("{}\n{console}", machine.name))?;
        if !verdict.tracked {
            eprintln!(
                "NOT RUN {test}::{name}::conntrack: without nft of the machine's architecture no connection is tracked"
            );
        }
        if table::blesses() {
            table::write(machine, &verdict)?;
        } else {
            table::agrees(machine, &verdict).with_context(|| machine.name.to_owned())?;
        }
        if only.is_some() {
            println!("{console}");
        }
        println!(
            "{} ({}): as expected, {:?}",
            machine.name,
            verdict.release,
            begin.elapsed()
        );
        for (scene, rungs) in machine.scenes.iter().zip(&verdict.rungs) {
            println!("    {}: {rungs:?}", scene.name);
        }
    }
    if table::blesses() {
        fs::write(table::page_file(), table::page()?)?;
    }
    Ok(())
}
