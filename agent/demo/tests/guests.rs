//! Whole pods on other kernels: a machine that QEMU emulates, with cgroup v2 alone and with the containerd, runc and CNI plugins of
//! this one, on which the demo's node makes pod sandboxes and the agent traces them.
//!
//! The machines and the table of docs/systems.md are those of the test `kernels`, whose modules boot them
//! (`agent/tests/kernels/machines.rs`). The test has two sides: here it boots the machines, and there, where its own
//! executable is what the machine runs, it makes and judges the pods (`guests/inside.rs`). What a machine needs and is not here skips
//! that machine, by name. Does not: judge durations; such a machine is about fourteen times slower.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

#[path = "../../tests/kernels/archive.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod archive;
#[path = "../../tests/kernels/boot.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod boot;
#[path = "../../tests/kernels/console.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod console;
#[path = "guests/contents.rs"]
mod contents;
#[path = "guests/inside.rs"]
mod inside;
#[path = "guests/judge.rs"]
mod judge;
#[path = "../../tests/kernels/machines.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod machines;
#[allow(dead_code, reason = "each test binary uses its own part")]
mod rig;
#[path = "../../tests/kernels/run.rs"]
mod run;
#[path = "../../tests/kernels/table.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod table;

use contents::Parts;
use machines::{MACHINES, Machine};

/// Name of the test, by which the machine runs it.
const TEST: &str = "pods_of_containerd_are_traced_on_other_kernels";

#[test]
fn pods_of_containerd_are_traced_on_other_kernels() -> anyhow::Result<()> {
    if std::env::var_os(inside::MARK).is_some() {
        inside::pods();
        return Ok(());
    }
    let machines: Vec<&Machine> = MACHINES.iter().filter(|machine| machine.has_pods()).collect();
    let boots = |machine: &Machine, parts: &Parts| {
        boot::boot(
            machine,
            &parts.kernel,
            contents::archive(machine, parts)?,
            &contents::BOUNDS,
        )
    };
    run::every_machine(TEST, &machines, Parts::of, boots, judge::judge)
}
