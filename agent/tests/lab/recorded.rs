//! Writes what a test saw as a recording, when `RECORD_INTO` names a directory: golden recordings are made so.
//!
//! Used by the lab's watch and by the tests of conntrack. Does not: choose which events tell the story; they do.

use std::path::Path;

use sandglass::sinks::recording::Recorder;
use sandglass::sources::clock;
use sandglass_model::Event;
use sandglass_model::recording::Header;

/// Whether recordings are made: some last longer then, so that they hold how it ended.
pub fn wanted() -> bool {
    std::env::var_os("RECORD_INTO").is_some()
}

/// Writes `TEST.jsonl`, if wanted; an older one goes.
pub fn record<'a>(test: &str, events: impl IntoIterator<Item = &'a Event>) {
    let Some(directory) = std::env::var_os("RECORD_INTO") else {
        return;
    };
    let path = Path::new(&directory).join(format!("{test}.jsonl"));
    let _ = std::fs::remove_file(&path);
    let facts = clock::node_facts();
    let header = Header {
        os: facts.os,
        kernel: facts.kernel,
        machine: facts.machine,
        node: "node".to_owned(),
        ..Header::new(env!("CARGO_PKG_VERSION"), facts.boot_id, clock::anchor())
    };
    let mut recorder = Recorder::create(&path, &header).unwrap();
    for event in events {
        recorder.record(event);
    }
    recorder.finish().unwrap();
}
