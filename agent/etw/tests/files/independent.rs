//! Files of our writer, read by readers that share no code with it: our research script, and two from a registry. Each
//! test reports itself as skipped where its reader cannot be had.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandglass_etw::raw::flags;
use sandglass_etw::writer::Session;
use sandglass_etw::{EtlReader, RawRecord, ReadOptions};

use crate::samples::{NAMES, sample};
use crate::story;

fn readers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers")
}

/// Runs a Python script; `None` when there is no Python.
fn python(script: &Path, arguments: &[&Path], path: &Path) -> Option<(bool, String)> {
    let output = Command::new("python3")
        .arg(script)
        .args(arguments)
        .env("PYTHONPATH", path)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), text))
}

/// The story as a file on disk.
fn story_file(directory: &Path, compressed: bool, keep: fn(&RawRecord) -> bool) -> PathBuf {
    let session = Session {
        buffer_bytes: 4096,
        compressed,
        ..Session::default()
    };
    let path = directory.join("story.etl");
    std::fs::write(&path, story::file_of(session, true, keep)).unwrap();
    path
}

/// Where a package from the registry is, installed on first use; `None` when it cannot be.
fn package(name: &str) -> Option<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let ready = place.join(".complete");
    if ready.exists() {
        return Some(place);
    }
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
        ])
        .arg(&place)
        .arg(name)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    std::fs::write(ready, []).ok()?;
    Some(place)
}

#[test]
fn research_script_finds_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    for compressed in [false, true] {
        let file = story_file(directory.path(), compressed, |_| true);
        let Some((good, text)) = python(&readers().join("etlscan.py"), &[&file], Path::new("")) else {
            eprintln!("SKIPPED research_script_finds_what_was_written: no python3");
            return;
        };
        assert!(good, "{text}");
        for part in [
            "bad 0",
            "(('0c885e0d', 'EndpointActivity'), 2)",
            "(('0c885e0d', 'RequestHandler'), 2)",
            "(('2acb92c0', 'LogrusEntry'), 1)",
            "('hdr0x13', 12)",
            "('hdr0x14', 5)",
            "('hdr0xf', 1)",
            "('sys0x2 grp0x03 op1', 1)",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

#[test]
fn etl_parser_finds_what_was_written() {
    let name = "etl_parser_finds_what_was_written";
    let Some(place) = package("etl-parser==1.0.1") else {
        eprintln!("SKIPPED {name}: the package etl-parser cannot be installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    // It knows neither compressed buffers nor WPP messages.
    let file = story_file(directory.path(), false, |record| {
        record.header.flags & flags::TRACE_MESSAGE == 0
    });
    let (good, text) = python(&readers().join("with_etl_parser.py"), &[&file], &place).unwrap();
    assert!(good, "{text}");
    check_lines(&text, false);
}

#[test]
fn dissect_finds_what_was_written() {
    let name = "dissect_finds_what_was_written";
    let Some(place) = package("dissect.etl==3.14") else {
        eprintln!("SKIPPED {name}: the package dissect.etl cannot be installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    for compressed in [false, true] {
        let file = story_file(directory.path(), compressed, |_| true);
        let (good, text) = python(&readers().join("with_dissect.py"), &[&file], &place).unwrap();
        assert!(good, "{text}");
        check_lines(&text, true);
    }
}

/// Each reader's script prints one line an event: provider, id, and what else it decodes.
fn check_lines(text: &str, with_times: bool) {
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(count("0c885e0d-6eb6-476c-a048-2457eed3a5c1"), 6, "{text}");
    assert_eq!(count("1c95126e-7eea-49a9-a3fe-a378b03ddb4d 3006"), 1, "{text}");
    assert_eq!(count("66c07ecd-6667-43fc-93f8-05cf07f446ec 1001"), 1, "{text}");
    assert_eq!(count("sdnbridge.exe"), 2, "{text}");
    if with_times {
        assert_eq!(count("1760000000003 "), 1, "{text}");
    }
}

/// Real files: the same events at the same times. The two left out make the package give up.
#[test]
fn dissect_agrees_on_real_files() {
    let name = "dissect_agrees_on_real_files";
    let Some(place) = package("dissect.etl==3.14") else {
        eprintln!("SKIPPED {name}: the package dissect.etl cannot be installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let left_out = ["ShutdownPerfDiagLogger", "net.4.5.2", "TraceLoggingTester"];
    for name in NAMES
        .iter()
        .filter(|name| !left_out.iter().any(|part| name.contains(part)))
    {
        let path = directory.path().join("sample.etl");
        std::fs::write(&path, sample(name)).unwrap();
        let (good, text) = python(&readers().join("with_dissect.py"), &[&path], &place).unwrap();
        assert!(good, "{name}: {text}");
        let mut theirs: Vec<String> = text
            .lines()
            // Provider, id and time stand before the payload.
            .map(|line| line.splitn(4, ' ').take(3).collect::<Vec<_>>().join(" "))
            .filter(|line| !line.contains(" - "))
            .collect();
        let mut reader = EtlReader::new(Cursor::new(sample(name)), ReadOptions::default()).unwrap();
        let mut ours = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            let header = record.header;
            if header.flags & flags::CLASSIC_HEADER == 0 {
                let milliseconds = (header.at_ns + 500_000) / 1_000_000;
                ours.push(format!("{} {} {milliseconds}", header.provider, header.id));
            }
        }
        theirs.sort();
        ours.sort();
        assert!(!ours.is_empty());
        assert_eq!(ours, theirs, "{name}");
    }
}
