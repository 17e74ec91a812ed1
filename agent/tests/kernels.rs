//! Other kernels than this machine's, booted in QEMU without acceleration: the verifier of each must take every program,
//! and the programs must report the same. And this kernel's siblings as nodes have them: with other flavours, privileges, address
//! families and security modules.
//!
//! `scripts/kernels.sh` fetches the kernels into the cache; `kernels/machines.rs` has the machines. What a machine needs and is not
//! there (a kernel, busybox, QEMU, AppArmor's parser, SELinux' policy) skips that machine, by name.
//! Those of x86_64 run the agent of the tests' build, or the static one that `SANDGLASS_AMD64_AGENT` names: `.ci/run` has that of the image, which is
//! what nodes run.
//! Those of arm64 run a static agent of that architecture, which `SANDGLASS_ARM64_AGENT` names: `scripts/static.sh arm64 foreign` builds
//! it and prints its path, and `scripts/test.sh` does both.
//! Machines with containerd are booted by the test `guests` of the demo's crate.
//! `BLESS=1` writes what the machines reported into docs/systems.md (`kernels/table.rs`).
//! `SANDGLASS_MACHINE` names one machine to be booted alone; its console is then printed.
//! Does not: repeat the probes' own tests, or measure; such a machine is about fourteen times slower.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "kernels/archive.rs"]
mod archive;
#[path = "kernels/boot.rs"]
mod boot;
#[path = "kernels/console.rs"]
mod console;
#[path = "kernels/contents.rs"]
mod contents;
#[path = "kernels/judge.rs"]
mod judge;
#[path = "kernels/machines.rs"]
mod machines;
#[path = "kernels/run.rs"]
mod run;
#[path = "kernels/suspend.rs"]
mod suspend;
#[path = "kernels/table.rs"]
mod table;

use contents::Parts;
use machines::{MACHINES, Machine};

#[test]
fn every_probe_works_on_other_kernels() -> Result<()> {
    let name = "every_probe_works_on_other_kernels";
    let others = boot::others(&machines::X86_64);
    let ours = |machine: &&Machine| !machine.is_arm64() && !machine.has_pods();
    let machines = MACHINES.iter().filter(ours).chain(&others);
    let named = std::env::var_os("SANDGLASS_AMD64_AGENT");
    let agent = named
        .as_deref()
        .map_or(Path::new(env!("CARGO_BIN_EXE_sandglass")), Path::new);
    every_machine(name, &machines.collect::<Vec<_>>(), agent)
}

#[test]
fn every_probe_works_on_kernels_of_arm64() -> Result<()> {
    let name = "every_probe_works_on_kernels_of_arm64";
    let Some(agent) = std::env::var_os("SANDGLASS_ARM64_AGENT") else {
        eprintln!("SKIPPED {name}: SANDGLASS_ARM64_AGENT names no static agent (scripts/static.sh arm64 foreign)");
        return Ok(());
    };
    let others = boot::others(&machines::ARM64);
    let machines = MACHINES.iter().filter(|machine| machine.is_arm64()).chain(&others);
    every_machine(name, &machines.collect::<Vec<_>>(), Path::new(&agent))
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
fn every_machine(test: &str, machines: &[&Machine], agent: &Path) -> Result<()> {
    let parts = |machine: &Machine| Parts::of(machine, agent);
    let boots = |machine: &Machine, parts: &Parts| {
        let archive = contents::archive(machine, parts)?;
        boot::boot(machine, &parts.kernel, archive, &contents::bounds(machine)?)
    };
    run::every_machine(test, machines, parts, boots, judge::judge)
}
