//! Holds the one-way dependencies inside this crate: sources never import sinks or the correlator, sinks never import
//! sources, the view renders what the store keeps and nothing below it renders; no modules import one another in a circle.
//! Between crates Cargo does that, as long as no crate of the agent names one that only tests, benchmarks or the demo may use.
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

/// The module path of a file: `sources/linux/dns.rs` is `sources::linux::dns`. A folder's `mod.rs` is the folder's.
fn module(file: &Path, root: &Path) -> Vec<String> {
    let below = file.strip_prefix(root).unwrap().with_extension("");
    let parts = below.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| part != "mod").collect()
}

/// The paths that `tree`, the text of a use declaration behind `prefix`, stands for, without braces.
fn expanded(prefix: &str, tree: &str) -> Vec<String> {
    let Some((head, inside)) = tree.split_once('{') else {
        return vec![format!("{prefix}{tree}")];
    };
    let inside = inside.trim_end().strip_suffix('}').unwrap();
    let (mut depth, mut begin, mut paths) = (0, 0, Vec::new());
    for (at, byte) in inside.bytes().chain([b',']).enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                paths.extend(expanded(&format!("{prefix}{head}"), inside[begin..at].trim()));
                begin = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// The modules of `modules` that a file imports from, leaving out its own ancestors and descendants.
fn imported(own: &[String], text: &str, modules: &[Vec<String>]) -> Vec<Vec<String>> {
    let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
    let mut declarations = Vec::new();
    let mut lines = code.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let begin = ["use ", "pub use ", "pub(super) use ", "pub(crate) use "];
        let Some(begun) = begin.iter().find_map(|begin| line.strip_prefix(begin)) else {
            continue;
        };
        let mut declaration = begun.to_owned();
        while !declaration.ends_with(';') {
            declaration.push_str(lines.next().unwrap());
        }
        declarations.push(declaration);
    }
    let paths = declarations
        .iter()
        .flat_map(|declaration| expanded("", declaration.trim_end_matches(';')));
    let absolute = paths.filter_map(|path| {
        let mut base = own.to_vec();
        let mut parts = path.split("::").map(str::trim).peekable();
        match parts.next()? {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                base.pop();
                while parts.next_if_eq(&"super").is_some() {
                    base.pop();
                }
            }
            _ => return None,
        }
        base.extend(parts.map(str::to_owned));
        // The file that has the name: that of the longest module path in front of it.
        let owner = modules.iter().filter(|module| base.starts_with(module));
        owner.max_by_key(|module| module.len()).cloned()
    });
    absolute
        .filter(|other| !other.is_empty() && !own.starts_with(other) && !other.starts_with(own))
        .collect()
}

#[test]
fn no_modules_import_one_another_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    files.retain(|file| !file.to_string_lossy().contains("tests"));
    let modules: Vec<Vec<String>> = files.iter().map(|file| module(file, &root)).collect();
    let mut arrows: Vec<(usize, Vec<usize>)> = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let text = fs::read_to_string(file).unwrap();
        let to = imported(&modules[at], &text, &modules);
        let place = |other: &Vec<String>| modules.iter().position(|module| module == other).unwrap();
        arrows.push((at, to.iter().map(place).collect()));
    }
    assert!(
        arrows.iter().map(|(_, to)| to.len()).sum::<usize>() > 300,
        "few imports are found"
    );
    // What imports nothing that is left is in no circle; what remains at the end is.
    loop {
        let left: Vec<usize> = arrows.iter().map(|(at, _)| *at).collect();
        let before = arrows.len();
        arrows.retain(|(_, to)| to.iter().any(|other| left.contains(other)));
        if arrows.len() == before {
            break;
        }
    }
    let circles: Vec<String> = arrows.iter().map(|(at, _)| modules[*at].join("::")).collect();
    assert_eq!(circles, Vec::<String>::new());
}

#[test]
fn the_agent_is_built_without_the_demo_and_the_lab() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for package in ["agent", "agent/model", "agent/correlator", "agent/etw", "probes"] {
        let manifest = fs::read_to_string(repository.join(package).join("Cargo.toml")).unwrap();
        // Dependencies of tests are not in the agent's binary; the demo depends on the agent, so it is not even one of those.
        let (mut section, mut built_in) = ("", Vec::new());
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let for_tests = section.contains("dev-dependencies");
            for (name, allowed) in [
                ("sandglass-demo", false),
                ("sandglass-lab", for_tests),
                ("sandglass-fake-etw", for_tests),
            ] {
                if line.starts_with(name) && !allowed {
                    built_in.push(name);
                }
            }
        }
        assert!(built_in.is_empty(), "{package}: {built_in:?}");
    }
}
