//! Holds the one-way dependencies inside this crate: sources never import sinks or the correlator, sinks never import
//! sources. Between crates Cargo does that.
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

/// Files below `place` that mention one of `forbidden`.
fn offenders(place: &str, forbidden: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(place);
    let mut files = Vec::new();
    rust_files(&root, &mut files);
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
