//! The binary: parses the command line, sets up the log, runs one command, ends with its exit code.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::Parser;
use sandglass::cli::{self, Cli, Command};
use sandglass::log_file::{self, LogFile};
use sandglass::{commands, log, resident};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

fn main() -> ExitCode {
    resident::keep_small();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            return cli::refuse(&error);
        }
    };
    let (writer, on_terminal) = log_writer(&cli.command);
    log::start(usual_lines(&cli.command), writer, on_terminal);
    let is_service = is_service(&cli.command);
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if is_service {
                tracing::error!("{failure}");
            }
            #[expect(clippy::print_stderr, reason = "the one place where a failed command prints")]
            {
                eprintln!("error: {failure}");
            }
            ExitCode::from(failure.exit().code())
        }
    }
}

/// Where the log goes, and whether that shows colours. A service has no standard error.
fn log_writer(command: &Command) -> (BoxMakeWriter, bool) {
    if is_service(command) {
        let path = log_file::of_service(std::env::var_os("ProgramData").map(Into::into));
        // A service whose log file cannot be opened runs without a log.
        if let Ok(file) = LogFile::open(&path, log_file::MAX_BYTES) {
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            return (BoxMakeWriter::new(Mutex::new(file)), false);
        }
    }
    (log::to_stderr(), std::io::stderr().is_terminal())
}

fn is_service(command: &Command) -> bool {
    matches!(command, Command::Service(_))
}

/// The log filter without `SANDGLASS_LOG`. `replay` ends with a result that names what failed, so its log repeats none.
fn usual_lines(command: &Command) -> Targets {
    match command {
        Command::Replay(_) => log::quiet(),
        _ => log::info(),
    }
}
