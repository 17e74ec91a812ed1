//! Prints what an `.etl` file holds: its session, what was lost, events by provider and name, and how fast it was read.
//!
//! For whoever develops this crate or wonders about a file: `cargo run --release --example etl_scan FILE..`, with
//! `--fields` also the fields of the first event of each name, with `--only=GUID` events of that provider alone.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use sandglass_etw::{Decoder, EtlError, EtlEvents, EtwEvent, Guid, ReadOptions};

fn main() -> ExitCode {
    let (flags, files): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|text| text.starts_with("--"));
    let fields = flags.iter().any(|flag| flag == "--fields");
    let only = flags.iter().find_map(|flag| flag.strip_prefix("--only=")?.parse().ok());
    let mut code = ExitCode::SUCCESS;
    for file in files {
        if let Err(error) = scan(Path::new(&file), fields, only) {
            eprintln!("error: {file}: {error}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn scan(path: &Path, with_fields: bool, only: Option<Guid>) -> Result<(), EtlError> {
    let started = Instant::now();
    let mut options = ReadOptions::default();
    if let Some(provider) = only {
        options.filter = options.filter.only([provider]);
    }
    let mut events = EtlEvents::open(path, options, Decoder::default())?;
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(event) = events.next_event()? {
        let count = names.entry(title(&event)).or_default();
        *count += 1;
        if with_fields && *count == 1 {
            println!("{event:#?}");
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let statistics = events.statistics();
    println!("{}", path.display());
    println!("{:?}\n{statistics:?}\n{:?}", events.session(), events.counts());
    for (name, count) in names {
        println!("{count:>9} {name}");
    }
    for (provider, count) in events.decoder().without_schema() {
        println!("{count:>9} {provider} without schema");
    }
    let megabytes = statistics.record_bytes as f64 / 1e6;
    println!(
        "{megabytes:.1} MB of records in {seconds:.3} s: {:.0} MB/s",
        megabytes / seconds
    );
    Ok(())
}

fn title(event: &EtwEvent) -> String {
    let provider = event.provider_name.as_deref().unwrap_or_default();
    let name = event.name.as_deref().unwrap_or_default();
    format!(
        "{} {provider} id {} v{} op {} {name}",
        event.provider, event.id, event.version, event.opcode
    )
}
