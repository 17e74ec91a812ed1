//! One module a command; each turns its arguments into parts and says how it ended.

mod doctor;
mod record;
mod replay;
mod run;
#[cfg(windows)]
mod service;

use std::io::Write;

use clap::CommandFactory;

// For `sandglass-demo`, which composes an agent of its own.
pub use replay::replay_from;
pub use run::otlp_flags;

use crate::cli::{Cli, Command, ConfigArgs, WatchArgs};
use crate::config::{Config, Layers};
use crate::failure::{Failure, NO_THREADS};
use crate::watch::{self, WatchOptions};

/// Runs one command to its end.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => block_on(run::run(args)),
        #[cfg(windows)]
        Command::Service(args) => service::service(args),
        Command::Watch(args) => block_on(watch(args)),
        Command::Replay(args) => block_on(replay::replay(args)),
        Command::Record(args) => block_on(record::record(args)),
        Command::Doctor(args) => block_on(doctor::doctor(args)),
        Command::PrintConfig(args) => print_config(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sandglass", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Man { directory } => std::fs::create_dir_all(&directory)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), &directory))
            .map_err(|error| {
                Failure::runtime(
                    format!("cannot write man pages into {}: {error}", directory.display()),
                    "give a directory you may write",
                )
            }),
    }
}

/// The layers and the configuration that the flags select.
pub fn configuration(args: &ConfigArgs) -> Result<(Layers, Config), Failure> {
    let mut layers = Layers::default();
    if let Some(path) = &args.config {
        layers.file(path)?;
    }
    for (flag, key, value) in [
        ("--listen", "http.address", &args.listen),
        ("--node-name", "node_name", &args.node_name),
        ("--otlp-endpoint", "otlp.endpoint", &args.otlp_endpoint),
        ("--otlp-protocol", "otlp.protocol", &args.otlp_protocol),
        ("--cri-endpoint", "cri.endpoint", &args.cri_endpoint),
    ] {
        if let Some(value) = value {
            layers.flag(flag, key, value)?;
        }
    }
    for pair in &args.set {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Failure::usage(
                format!("--set {pair:?} has no value"),
                "write --set KEY=VALUE",
            ));
        };
        layers.flag("--set", key, value)?;
    }
    let config = layers.resolve()?;
    Ok((layers, config))
}

async fn watch(args: WatchArgs) -> Result<(), Failure> {
    let options = WatchOptions {
        address: host_and_port(&args.address).to_owned(),
        once: args.once,
    };
    Ok(watch::run(options).await?)
}

/// The agent's address, also out of the address of its page.
fn host_and_port(address: &str) -> &str {
    address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/')
}

fn print_config(args: &ConfigArgs) -> Result<(), Failure> {
    let (layers, _) = configuration(args)?;
    let mut text = String::new();
    for (key, value, origin) in layers.keys() {
        text.push_str(&format!("{:<44} # {origin}\n", format!("{key}: {value}")));
    }
    print(&text)
}

/// Writes to standard output; a reader that has gone away is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::runtime(
            format!("cannot write to standard output: {error}"),
            "what it is redirected to must have room and be writable",
        )),
        _ => Ok(()),
    }
}

/// Runs a command on a small runtime: the agent's work is done by a thread of its own, not by tasks.
pub fn block_on<F: Future<Output = Result<(), Failure>>>(command: F) -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("cannot start the runtime: {error}"), NO_THREADS))?
        .block_on(command)
}
