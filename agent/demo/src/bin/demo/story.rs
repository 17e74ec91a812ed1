//! `sandglass-demo --windows`: the traces of a Windows node, from an .etl file that is built in.

use std::path::PathBuf;

use sandglass::app::settings;
use sandglass::cli::{Print, ReplayArgs};
use sandglass::commands;
use sandglass::failure::Failure;
use sandglass::sources::replay::Replay;
use sandglass::sources::windows::file::EtlFile;

use crate::{Args, avoid_taken_port};

/// Replays the recording; without `--once` it serves the page until Ctrl-C.
pub async fn show(args: Args) -> Result<(), Failure> {
    let (_, mut config) = commands::configuration(&args.config)?;
    avoid_taken_port(&mut config);
    if config.node_name.is_empty() {
        "windows-demo".clone_into(&mut config.node_name);
    }
    let file = EtlFile::from_bytes("the demo's story", STORY.to_vec(), settings::activity_names(&config)?);
    let recording = Replay::Etl(Box::new(file?));
    let args = ReplayArgs {
        recording: PathBuf::new(),
        print: Print::Tree,
        serve: !args.once,
        export: false,
        record: None,
        anonymize: false,
        config: args.config,
    };
    commands::replay_from(recording, args, config).await
}

/// A plugin that waits for its agent, which waits for powershell.
const STORY: &[u8] = include_bytes!("../../../../recordings/windows-agent-powershell/events.etl");
