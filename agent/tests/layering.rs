//! Holds the one-way dependencies inside this crate: sources never import sinks or the correlator, sinks never import
//! sources, the view renders what the store keeps and nothing below it renders. Between crates Cargo does that.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Files of module `place` that mention one of `forbidden`: the file of that name, and those in the folder.
fn offenders(place: &str, forbidden: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(place);
    let mut files = Vec::new();
    files.extend(Some(root.with_extension("rs")).filter(|file| file.exists()));
    if root.is_dir() {
        rust_files(&root, &mut files);
    }
    assert!(!files.is_empty(), "{} holds no Rust file", root.display());
    let mut offenders = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
        for word in forbidden {
            if code
                .lines()
                .any(|line| !line.trim_start().starts_with("//") && line.contains(word))
            {
                offenders.push(format!("{}: {word}", file.display()));
            }
        }
    }
    offenders
}

#[test]
fn sources_import_neither_sinks_nor_the_correlator() {
    let forbidden = ["crate::sinks", "sandglass_correlator", "crate::http", "crate::pipeline"];
    assert_eq!(offenders("sources", &forbidden), Vec::<String>::new());
}

#[test]
fn sinks_do_not_import_sources() {
    assert_eq!(
        offenders("sinks", &["crate::sources", "crate::pipeline", "sandglass_probes"]),
        Vec::<String>::new()
    );
}

#[test]
fn sinks_render_nothing_for_people() {
    let forbidden = ["crate::view", "crate::http", "crate::watch", "crate::terminal"];
    assert_eq!(offenders("sinks", &forbidden), Vec::<String>::new());
}

#[test]
fn the_view_reads_the_store_and_knows_no_one_who_shows_it() {
    let forbidden = [
        "crate::sources",
        "crate::pipeline",
        "crate::http",
        "crate::watch",
        "crate::terminal",
        "crate::sinks::otlp",
        "crate::sinks::prometheus",
        "crate::sinks::recording",
        "sandglass_correlator",
    ];
    assert_eq!(offenders("view", &forbidden), Vec::<String>::new());
}

#[test]
fn the_page_and_the_terminal_show_the_view() {
    // `StoreSize`, how full the store is, is a figure of the agent's health and not a view of traces.
    let forbidden = [
        "sinks::store::hour",
        "sinks::store::index",
        "store::Kept",
        "sandglass_correlator",
    ];
    for place in ["http", "watch", "terminal"] {
        assert_eq!(offenders(place, &forbidden), Vec::<String>::new());
    }
}
