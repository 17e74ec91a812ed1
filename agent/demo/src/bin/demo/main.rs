//! The binary `sandglass-demo`: real pod sandboxes on a private node, traced by the agent in this process.
//!
//! `make demo` builds and runs it. It parses the command line, sets up logs and ends with the agent's exit codes.
//! On a system other than Linux only `--windows` works, which replays a recording. Under two other names it is a plugin of the demo
//! and that plugin's daemon.

#[cfg(target_os = "linux")]
mod observe;
mod story;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sandglass::cli::{self, ConfigArgs};
use sandglass::commands;
use sandglass::config::{Config, HttpConfig};
use sandglass::failure::Failure;
use sandglass::log;

/// Makes pod sandboxes in a private containerd and shows their traces.
#[derive(Debug, Parser)]
#[command(name = "sandglass-demo", version)]
struct Args {
    /// Configuration of the agent
    #[command(flatten)]
    config: ConfigArgs,
    /// Check every sandbox and end: exit 0 only if all were traced completely
    #[arg(long)]
    once: bool,
    /// Bring up Prometheus, with the project's rules and alerts, and Jaeger beside it
    #[arg(long)]
    observability: bool,
    /// Show a Windows node's story instead, replayed from an .etl file, on any machine
    #[arg(long, conflicts_with = "record")]
    windows: bool,
    /// Also record every event into this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = sandglass_demo::shim::run() {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return cli::refuse(&error),
    };
    // A replay ends with a result on standard output; its warnings would only repeat that.
    let usual = if args.windows { log::quiet() } else { log::info() };
    let on_terminal = std::io::stderr().is_terminal();
    log::start(usual, log::to_stderr(), on_terminal);
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            #[expect(clippy::print_stderr, reason = "the one place where a failed command speaks")]
            {
                eprintln!("error: {failure}");
            }
            ExitCode::from(failure.exit().code())
        }
    }
}

fn run(args: Args) -> Result<(), Failure> {
    if args.windows {
        return commands::block_on(story::show(args));
    }
    #[cfg(target_os = "linux")]
    return commands::block_on(observe::demo(args));
    #[cfg(not(target_os = "linux"))]
    Err(Failure::new(
        sandglass::failure::ExitReason::Unavailable,
        "the demo needs Linux: it makes real pod sandboxes there",
        "--windows replays a recording instead",
    ))
}

/// An agent may run on this machine already: unless the user chose an address, the demo takes a free port then.
fn avoid_taken_port(config: &mut Config) {
    let address = &mut config.http.address;
    if *address == HttpConfig::default().address && std::net::TcpListener::bind(*address).is_err() {
        address.set_port(0);
    }
}
