//! Measures the agent against its budgets (BUDGETS.md) and records the results.
//!
//! `make bench` runs it, as root if possible: parts that this machine does not allow are skipped, with the reason. Each part
//! is a module. Prints one table at the end; a full run also writes it, with a description of the machine, into the results
//! directory. Does not: fail when a budget is missed, unless `--check` is set.
#![cfg_attr(
    target_os = "linux",
    expect(
        clippy::print_stdout,
        clippy::print_stderr,
        reason = "a program whose output is its purpose"
    )
)]

#[cfg(target_os = "linux")]
mod add_overhead;
#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod alloc;
#[cfg(target_os = "linux")]
mod chain;
#[cfg(target_os = "linux")]
mod connect_cost;
#[cfg(target_os = "linux")]
mod conversations;
#[cfg(target_os = "linux")]
mod delivery;
#[cfg(target_os = "linux")]
mod dns_cost;
#[cfg(target_os = "linux")]
mod dns_talk;
#[cfg(target_os = "linux")]
mod estimate;
#[cfg(target_os = "linux")]
mod etl_throughput;
#[cfg(target_os = "linux")]
mod exec_cost;
#[cfg(target_os = "linux")]
mod fleet;
#[cfg(target_os = "linux")]
mod footprint;
#[cfg(target_os = "linux")]
mod history;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod lookup_cost;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod on_rig;
#[cfg(target_os = "linux")]
mod pace;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod processor;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod sandbox_overhead;
#[cfg(target_os = "linux")]
mod series;
#[cfg(target_os = "linux")]
mod service_node;
#[cfg(target_os = "linux")]
mod tcp_flow;
#[cfg(target_os = "linux")]
mod throughput;
#[cfg(target_os = "linux")]
mod unrelated_cost;
#[cfg(target_os = "linux")]
mod waits_cost;

#[cfg(target_os = "linux")]
pub use run::Effort;

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    run::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
