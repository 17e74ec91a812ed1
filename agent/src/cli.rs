//! The command line: every command and flag, as data.
//!
//! `commands` runs them. The help, the shell completions and the man pages are generated from these definitions.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::defaults::PAGE_ADDRESS;
use crate::failure::ExitReason;

/// Shows, for every Kubernetes pod sandbox, where its network set-up time went.
#[derive(Debug, Parser)]
#[command(name = "sandglass", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Trace the sandboxes of this node and serve page, API and metrics
    Run(RunArgs),
    /// Like run, started by the service control manager of Windows
    #[command(hide = true)]
    Service(RunArgs),
    /// Show the sandboxes of a running agent in the terminal, live
    Watch(WatchArgs),
    /// Turn a recording into traces, on any machine
    Replay(ReplayArgs),
    /// Record the events of this node into a file, until Ctrl-C
    Record(RecordArgs),
    /// Report what the agent can observe on this node, and check its CNI configuration and its CRI
    Doctor(DoctorArgs),
    /// Show every configuration key with its value and the origin of the value
    PrintConfig(ConfigArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    Man {
        /// Directory; created when absent
        directory: PathBuf,
    },
}

/// Flags that select and override configuration.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigArgs {
    /// Configuration file (YAML)
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port of metrics and health; page and API are at the next port of loopback
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Address and port of page and API; beyond loopback they need page.token_file or page.client_ca_file
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub page_listen: Option<String>,
    /// Name of the node on spans
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// OTLP endpoint, e.g. http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// OTLP protocol: http/protobuf or grpc
    #[arg(long, value_name = "PROTOCOL")]
    pub otlp_protocol: Option<String>,
    /// CRI socket or tcp:// address
    #[arg(long, value_name = "ENDPOINT")]
    pub cri_endpoint: Option<String>,
    /// Any other key, e.g. correlation.settle=1s
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// `sandglass run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Also record every event into this file
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// `sandglass watch`
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Address of the running agent's page; with https:// in front where it has a certificate
    #[arg(default_value_t = PAGE_ADDRESS.to_string(), value_name = "ADDRESS:PORT")]
    pub address: String,
    /// File with the token that the agent wants (its page.token_file)
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the authorities that may have signed the page's certificate, in place of the system's
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// PEM file with a client certificate, for an agent that wants one (its page.client_ca_file)
    #[arg(long, value_name = "FILE", requires = "key_file")]
    pub certificate_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "certificate_file")]
    pub key_file: Option<PathBuf>,
    /// Print once and end
    #[arg(long)]
    pub once: bool,
}

/// `sandglass replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The recording, or an .etl file of a Windows node
    #[arg(value_name = "FILE")]
    pub recording: PathBuf,
    /// What to print
    #[arg(long, value_enum, default_value_t = Print::Tree)]
    pub print: Print,
    /// Serve the page with the replayed traces until Ctrl-C
    #[arg(long)]
    pub serve: bool,
    /// Export the traces to the OTLP endpoint
    #[arg(long)]
    pub export: bool,
    /// Also write the events into this file: an .etl file becomes a recording
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Replace names and addresses in that file, so that it can be shown to others
    #[arg(long, requires = "record")]
    pub anonymize: bool,
    /// Configuration
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// What `replay` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Print {
    /// One indented tree a trace
    Tree,
    /// One JSON object a trace
    Spans,
    /// The metrics, as /metrics serves them
    Metrics,
    /// Nothing
    Nothing,
}

/// `sandglass record`
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// File to write; must not exist
    #[arg(value_name = "FILE")]
    pub recording: PathBuf,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Replace names and addresses, so that the file can be shown to others
    #[arg(long)]
    pub anonymize: bool,
    /// Configuration
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// `sandglass doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Configuration
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints help, or an error in the arguments with a hint as every error has one; returns the exit code.
pub fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        // Printing help to a closed pipe is no failure.
        let _ = error.print();
        return match error.exit_code() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(ExitReason::Usage.code()),
        };
    }
    let text = error.render();
    let text = match std::io::stderr().is_terminal() {
        true => text.ansi().to_string(),
        false => text.to_string(),
    };
    let text = text.replace(
        "For more information, try",
        "hint: for the commands and flags there are, try",
    );
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(ExitReason::Usage.code())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
