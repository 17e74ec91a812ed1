//! Holds the arrows between the parts of the correlator: no room knows another, what rooms share knows no room, and no
//! files import one another in a circle, inside a room neither.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test, which reads the sources of the crate"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms: a file and a folder of that name. Whatever else lies in `src` is shared by all rooms.
const ROOMS: [&str; 6] = ["daemons", "plugins", "sandboxes", "traffic", "waits", "windows"];
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

/// The module path of a file below `src`: `traffic/lookup.rs` is `traffic::lookup`.
fn module_of(file: &Path) -> String {
    let parts = file.with_extension("");
    let parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
    parts.collect::<Vec<String>>().join("::")
}

/// Modules of `modules` that the file of module `own` names in imports and in paths that begin at the crate's root,
/// outside of comments and tests: of `crate::a::b::{c, D}` the longest that exist, such as `a::b::c` and `a::b`.
fn modules_named(own: &str, text: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let children = format!("crate::{own}::");
    let code = lines.collect::<Vec<&str>>().join("\n").replace("self::", &children);
    let mut named = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let path = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
        let end = rest.find(|letter| !path(letter)).unwrap_or(rest.len());
        let (base, rest) = rest.split_at(end);
        let braced = rest.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let items = braced.map_or("", |(inside, _)| inside);
        assert!(
            !items.contains('{'),
            "{own}: an import is nested deeper than this test reads"
        );
        for item in items.split(',') {
            let mut path = format!("{base}{}", item.trim());
            // Behind the module stands what is imported from it.
            while !modules.contains(&path) {
                let Some((module, _)) = path.rsplit_once("::") else {
                    break;
                };
                path.truncate(module.len());
            }
            if modules.contains(&path) && path != own {
                named.insert(path);
            }
        }
    }
    named
}

/// What `arrows`, from each module to those that it names, has left when every module that names nothing which is left
/// is taken away, again and again: modules of circles, and those that lead to them.
fn in_circles(mut arrows: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let left: BTreeSet<String> = arrows.keys().cloned().collect();
        arrows.retain(|_, named| !named.is_disjoint(&left));
        if arrows.len() == left.len() {
            return left.into_iter().collect();
        }
    }
}

#[test]
fn no_files_import_one_another_in_a_circle() {
    let mut files = Vec::new();
    rust_files(&source(), &mut files);
    // The crate's root re-exports what is above the rooms, and everything could name it.
    files.retain(|file| file != Path::new("lib.rs"));
    let modules: BTreeSet<String> = files.iter().map(|file| module_of(file)).collect();
    let arrows: BTreeMap<String, BTreeSet<String>> = files
        .iter()
        .map(|file| {
            let text = fs::read_to_string(source().join(file)).unwrap();
            assert!(
                !text.contains("super::super"),
                "{}: a path that is not read here",
                file.display()
            );
            let own = module_of(file);
            let named = modules_named(&own, &text, &modules);
            (own, named)
        })
        .collect();
    let count: usize = arrows.values().map(BTreeSet::len).sum();
    assert!(count > 300, "{count} arrows are few");
    assert_eq!(in_circles(arrows), Vec::<String>::new());
}

#[test]
fn a_circle_is_found_through_braces_children_and_paths() {
    let modules: BTreeSet<String> = ["a", "a::b", "a::c", "d", "e"].map(str::to_owned).into();
    let texts = [
        ("a", "use self::b::{X, Y};\n"),
        ("a::b", "use crate::a::{Room, c};\nuse crate::d::D;\n"),
        (
            "a::c",
            "// use crate::a::b;\nfn f() -> crate::e::E {}\n#[cfg(test)]\nmod tests { use crate::a; }\n",
        ),
        ("d", "use std::fmt;\n"),
        ("e", "use crate::d::inner::D;\n"),
    ];
    let arrows: BTreeMap<String, BTreeSet<String>> = texts
        .map(|(own, text)| (own.to_owned(), modules_named(own, text, &modules)))
        .into();
    let named = |own: &str| arrows[own].iter().map(String::as_str).collect::<Vec<&str>>();
    assert_eq!(named("a"), ["a::b"]);
    assert_eq!(named("a::b"), ["a", "a::c", "d"]);
    assert_eq!(named("a::c"), ["e"]);
    assert_eq!(named("e"), ["d"]);
    assert_eq!(in_circles(arrows), ["a", "a::b"]);
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
