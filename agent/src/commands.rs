//! Dispatch of the commands, one module each.
//!
//! Used by `main`. A command turns its arguments into options of the agent's parts, runs them, and reports how it ended.

mod console;
mod doctor;
mod flags;
mod native;
mod record;
mod reload;
mod replay;
mod run;

use clap::CommandFactory;

// For `sandglass-demo`, which composes an agent of its own.
pub use console::block_on;
pub use flags::{configuration, otlp_flags};
pub use replay::replay_from;

use crate::cli::{Cli, Command, ConfigArgs, WatchArgs};
use crate::failure::Failure;
use crate::tls::{self, TlsFiles};
use crate::watch::{self, Agent, WatchOptions};
use console::print;

/// Runs one command to its end.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => block_on(run::run(args)),
        Command::Service(args) => native::service(args),
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

async fn watch(args: WatchArgs) -> Result<(), Failure> {
    let token = match &args.token_file {
        None => None,
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(
                format!("cannot read the token {}: {error}", path.display()),
                "--token-file names the file with the token that the agent wants",
            )
        })?),
    };
    let files = TlsFiles {
        ca: args.ca_file,
        client: args.certificate_file.zip(args.key_file),
    };
    let (address, encrypted) = match args.address.strip_prefix("https://") {
        Some(address) => (address, true),
        None if args.address.starts_with("http://") && files != TlsFiles::default() => {
            return Err(Failure::usage(
                "certificates are for a page with https://, and the address begins with http://",
                "name the page https://HOST:PORT, or leave --ca-file, --certificate-file and --key-file out",
            ));
        }
        None => (
            args.address.strip_prefix("http://").unwrap_or(&args.address),
            files != TlsFiles::default(),
        ),
    };
    let options = WatchOptions {
        agent: Agent {
            address: address.trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()),
            tls: match encrypted {
                true => Some(tls::connector(&files, b"http/1.1")?),
                false => None,
            },
        },
        once: args.once,
    };
    Ok(watch::run(options).await?)
}

fn print_config(args: &ConfigArgs) -> Result<(), Failure> {
    let (layers, _) = configuration(args)?;
    let mut text = String::new();
    for (key, value, origin) in layers.keys() {
        text.push_str(&format!("{:<44} # {origin}\n", format!("{key}: {value}")));
    }
    print(&text)
}
