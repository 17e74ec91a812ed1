//! Holds the arrows between the parts of the correlator: no room knows another, and what rooms share knows no room.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test, which reads the sources of the crate"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms: a file and a folder of that name. Whatever else lies in `src` is shared by all rooms.
const ROOMS: [&str; 4] = ["plugins", "sandboxes", "traffic", "windows"];
/// What stands above the rooms: the crate's root, the router, the stage before it and the copies for display.
const ABOVE: [&str; 4] = ["lib", "correlator", "reorder", "snapshots"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Rust files below `directory`, as paths relative to `src`.
fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path.strip_prefix(source()).unwrap().to_owned());
        }
    }
}

/// The part that a file belongs to: the first component of its path.
fn part_of(file: &Path) -> String {
    let first = file.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Parts of the crate that the text names, in imports and in paths, outside of comments and tests.
fn parts_named(text: &str) -> BTreeSet<String> {
    let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut parts = BTreeSet::new();
    for line in lines {
        for rest in line.split("crate::").skip(1) {
            let name = rest.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            parts.extend(name.take(1).filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    parts
}

/// Every arrow from a file to a part that it must not know.
fn offenders() -> Vec<String> {
    let mut files = Vec::new();
    rust_files(&source(), &mut files);
    let mut offenders = Vec::new();
    for file in files {
        let part = part_of(&file);
        if ABOVE.contains(&part.as_str()) {
            continue;
        }
        let text = fs::read_to_string(source().join(&file)).unwrap();
        for named in parts_named(&text) {
            let forbidden = ABOVE.contains(&named.as_str()) || ROOMS.contains(&named.as_str());
            if forbidden && named != part && !named.starts_with(char::is_uppercase) {
                offenders.push(format!("{} -> {named}", file.display()));
            }
        }
    }
    offenders.sort();
    offenders
}

#[test]
fn no_room_knows_another_and_what_they_share_knows_none() {
    assert_eq!(offenders(), Vec::<String>::new());
}

#[test]
fn every_room_is_there() {
    for room in ROOMS {
        assert!(source().join(format!("{room}.rs")).is_file(), "{room}.rs");
        assert!(source().join(room).is_dir(), "{room}/");
    }
}

#[test]
fn an_arrow_is_found_wherever_it_stands() {
    let text = "use crate::plugins::Plugins;\n// crate::windows::no\nfn f(x: &crate::traffic::Traffic) {}\n";
    let parts: Vec<String> = parts_named(text).into_iter().collect();
    assert_eq!(parts, ["plugins", "traffic"]);
}

/// Rooms hold their state in private fields: no field of a room's type is visible outside of its folder.
#[test]
fn fields_of_rooms_are_private() {
    for room in ROOMS {
        let text = fs::read_to_string(source().join(format!("{room}.rs"))).unwrap();
        let body = text.split("pub(crate) struct ").nth(1).unwrap();
        let fields = body.split("\n}").next().unwrap();
        assert!(!fields.contains("\n    pub"), "{room}.rs: {fields}");
    }
}
