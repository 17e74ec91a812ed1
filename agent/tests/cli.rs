//! The real binary as its users and those who mean it ill meet it: exit codes, hints, replay of good and bad files.
//!
//! Nothing here needs a privilege: what only root can see is tested end to end.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "lab/served.rs"]
mod served;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use served::Served;

fn sandglass(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Fails with this code, prints `part` in one error, and ends with one hint; no log lines before, nothing printed.
fn assert_refused(args: &[&str], code: i32, part: &str) {
    let output = sandglass(args);
    let stderr = err(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.contains(part),
        "{args:?}: {stderr}"
    );
    assert_eq!(stderr.matches("error: ").count(), 1, "{args:?}: {stderr}");
    assert_eq!(stderr.matches("hint: ").count(), 1, "{args:?}: {stderr}");
    assert!(
        stderr.lines().last().unwrap().starts_with("hint: "),
        "{args:?}: {stderr}"
    );
    assert!(output.stdout.is_empty(), "{args:?}: {}", out(&output));
}

/// A directory with the files of one test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

const HEADER: &str = r#"{"recording":"sandglass","version":1,"agent":"0.1.0","os":"Linux","kernel":"6.1","machine":"x86_64","node":"n","boot_id":"b","clock":{"boot_ns":1000000000,"unix_ns":1795257360000000000}}"#;

/// One ADD by a caller without Kubernetes, with one command in it, and one of a pod that fails.
fn recording() -> String {
    let env = |id: &str, args: &str| {
        format!(
            r#"[["CNI_COMMAND","ADD"],["CNI_CONTAINERID","{id}"],["CNI_NETNS","/run/netns/x"],["CNI_IFNAME","eth0"],["CNI_PATH","/p"],["CNI_ARGS","{args}"]]"#
        )
    };
    let executed = |at: u64, pid: u32, parent: u32, path: &str, env: &str| {
        format!(
            r#"{{"at":{at},"event":"process_executed","process":{{"pid":{pid},"start_ticks":{pid}}},"parent":{{"pid":{parent},"start_ticks":{parent}}},"parent_comm":"caller","path":"{path}","args":["{path}"],"env":{env},"cgroup":"/","netns":1}}"#
        )
    };
    let exited = |at: u64, pid: u32, code: u32| {
        format!(
            r#"{{"at":{at},"event":"process_exited","process":{{"pid":{pid},"start_ticks":{pid}}},"how":{{"code":{code}}}}}"#
        )
    };
    let (cnitool, pod) = (
        env("cnitool-1", ""),
        env("pod-1", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart"),
    );
    let lines = [
        HEADER.to_owned(),
        executed(2_000_000_000, 10, 9, "/p/bridge", &cnitool),
        executed(2_010_000_000, 11, 10, "/sbin/iptables", &cnitool),
        exited(2_020_000_000, 11, 0),
        exited(2_030_000_000, 10, 0),
        executed(3_000_000_000, 20, 9, "/p/broken", &pod),
        exited(3_040_000_000, 20, 1),
        r#"{"at":60000000000,"event":"tick"}"#.to_owned(),
    ];
    lines.join("\n") + "\n"
}

#[test]
fn wrong_arguments_end_with_64_and_a_hint() {
    assert_refused(&["bogus"], 64, "unrecognized subcommand");
    assert_refused(&["run", "--bogus"], 64, "unexpected argument");
    assert_refused(&["replay"], 64, "required arguments");
    assert_refused(&["replay", "x", "--print", "everything"], 64, "invalid value");
    assert_refused(&["completions", "teletype"], 64, "invalid value");
    assert_eq!(sandglass(&[]).status.code(), Some(64));
    for flags in [&["--help"][..], &["--version"], &["run", "--help"]] {
        let output = sandglass(flags);
        assert!(output.status.success() && output.stderr.is_empty(), "{flags:?}");
    }
}

#[test]
fn a_bad_configuration_ends_with_64_and_names_its_key() {
    let files = Files::new();
    for (text, part) in [
        ("http:\n  addres: 1\n", "unknown configuration key \"http.addres\""),
        ("http: [\n", "line"),
        ("http: 5\n", "line 1"),
        ("store:\n  max_traces: many\n", "line 2"),
        ("- a\n", "mapping"),
        ("store: {}\nstore: {}\n", "the key \"store\" stands a second time"),
    ] {
        let path = files.put("config.yaml", text);
        for command in ["run", "print-config", "doctor"] {
            assert_refused(&[command, "--config", &path], 64, part);
        }
    }
    assert_refused(&["print-config", "--config", "/nonexistent"], 64, "/nonexistent");
    assert_refused(&["print-config", "--set", "store"], 64, "has no value");
    assert_refused(
        &["run", "--listen", "127.0.0.1:80000"],
        64,
        "http.address (flag --listen)",
    );
    assert_refused(
        &["run", "--listen", "127.0.0.1:0", "--cri-endpoint", "ftp://x"],
        64,
        "cri.endpoint",
    );
    // The one at fault, not the other.
    let two = [
        "print-config",
        "--set",
        "correlation.settle=abc",
        "--set",
        "store.max_traces=5",
    ];
    assert_refused(&two, 64, "correlation.settle (flag --set)");
}

#[test]
fn print_config_shows_each_key_with_its_origin_and_no_secret() {
    let files = Files::new();
    let text = "store:\n  max_traces: 5\notlp:\n  headers:\n    authorization: Bearer s3cret\n";
    let path = files.put("config.yaml", text);
    let output = sandglass(&[
        "print-config",
        "--config",
        &path,
        "--listen",
        "127.0.0.1:1",
        "--set",
        "otlp.batch_spans=7",
    ]);
    let shown = out(&output);
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(
        line("store.max_traces: 5").ends_with(&format!("# file {path}")),
        "{shown}"
    );
    assert!(
        line("http.address: \"127.0.0.1:1\"").ends_with("# flag --listen"),
        "{shown}"
    );
    assert!(line("otlp.batch_spans: 7").ends_with("# flag --set"), "{shown}");
    assert!(line("correlation.settle:").ends_with("# default"), "{shown}");
    assert!(!shown.contains("s3cret") && shown.contains("authorization"), "{shown}");
}

#[test]
fn what_is_no_recording_is_refused() {
    let files = Files::new();
    assert_refused(&["replay", "/nonexistent"], 1, "/nonexistent");
    assert_refused(&["replay", "/"], 1, "cannot read recording");
    for content in [&b""[..], b"{}\n", b"\xff\xfe\n", b"hello\n", &[0; 4096]] {
        let path = files.put("bad.jsonl", content);
        assert_refused(&["replay", &path], 64, "not a sandglass recording");
    }
    let newer = files.put("newer.jsonl", HEADER.replace("\"version\":1", "\"version\":99"));
    assert_refused(&["replay", &newer], 64, "format version 99");
}

#[test]
fn an_etl_file_is_known_by_its_content() {
    let files = Files::new();
    let story = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/windows-agent-powershell/events.etl");
    let renamed = files.put("events.jsonl", fs::read(story).unwrap());
    let tree = sandglass(&["replay", &renamed]);
    assert!(tree.status.success(), "{}", err(&tree));
    assert!(out(&tree).contains("command powershell"), "{}", out(&tree));
    // Samples of sessions that know nothing of pods.
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("etw/samples/s4_WindowsUpdate.20251008.etl");
    let nothing = sandglass(&["replay", sample.to_str().unwrap()]);
    assert!(nothing.status.success() && nothing.stdout.is_empty());
    assert!(err(&nothing).contains("the session lost events"), "{}", err(&nothing));
}

#[test]
fn a_users_table_says_which_activities_are_noise() {
    let files = Files::new();
    let story = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/windows-l2bridge/events.etl");
    let story = story.to_str().unwrap();
    let with = |table: &str| format!("windows.activities={}", files.put("names.tsv", table));
    let set = with("\u{feff}# ours\r\nhns\tEndpointAttachShared\tignore\r\n");
    let [plain, fewer] = [&["replay", story][..], &["replay", story, "--set", &set]].map(|args| out(&sandglass(args)));
    assert!(plain.contains("hns EndpointAttachShared"), "{plain}");
    assert!(
        !fewer.contains("hns EndpointAttachShared") && fewer.contains("hns EndpointActivity"),
        "{fewer}"
    );
    assert!(out(&sandglass(&["print-config", "--set", &set])).contains("names.tsv"));
    for (table, part) in [
        ("hns\tA\tspan\nhns A ignore\n", "names.tsv: line 2: the first column"),
        ("hns\tA\tsometimes\n", "line 1: the third column is not span or ignore"),
    ] {
        assert_refused(&["replay", story, "--set", &with(table)], 64, part);
    }
    for path in ["/nonexistent/names.tsv", "/"] {
        let set = format!("windows.activities={path}");
        assert_refused(&["replay", story, "--set", &set], 64, "cannot read the activity names");
    }
}

#[test]
fn an_address_in_use_and_an_export_to_nowhere_are_clear_errors() {
    let files = Files::new();
    let path = files.put("good.jsonl", recording());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let quiet = ["replay", &path, "--print", "nothing"];
    let with = |more: &[&'static str]| [&quiet[..], more].concat();
    assert_refused(
        &[&quiet[..], &["--serve", "--listen", &address]].concat(),
        1,
        "Address already in use",
    );
    assert_refused(&["run", "--listen", &address], 1, "Address already in use");
    assert_refused(&with(&["--export"]), 64, "no OTLP endpoint");
    assert_refused(&with(&["--export", "--otlp-endpoint", "nowhere"]), 64, "otlp.endpoint");
    let refusing = format!("http://{}", refusing_server());
    let export = [&quiet[..], &["--export", "--otlp-endpoint", &refusing]].concat();
    assert_refused(&export, 1, "spans did not reach");
    assert_refused(&["watch", "127.0.0.1:1", "--once"], 1, "cannot reach an agent");
    assert_refused(
        &["watch", "http://127.0.0.1:1/", "--once"],
        1,
        "cannot reach an agent at 127.0.0.1:1",
    );
    let https = ["watch", "https://127.0.0.1:1/", "--once", "--ca-file", "/no/ca.pem"];
    assert_refused(&https, 1, "cannot read certificate authorities from /no/ca.pem");
    let http = ["watch", "http://127.0.0.1:1/", "--once", "--ca-file", "/no/ca.pem"];
    assert_refused(&http, 64, "certificates are for a page with https://");
}

#[test]
fn a_recording_that_is_served_is_alive_and_ready() {
    let files = Files::new();
    let path = files.put("good.jsonl", recording());
    let served = Served::start(Path::new(&path));
    let address = served.address;
    let answers = ["/healthz", "/readyz"].map(|path| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// Answers every request with 405, as a server that is no collector does.
fn refusing_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 64 << 10];
            let _ = stream.read(&mut request);
            let _ =
                stream.write_all(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    address
}

#[test]
fn nothing_to_write_to_is_a_clear_error() {
    assert_refused(&["man", "/dev/null/x"], 1, "cannot write man pages");
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        eprintln!("SKIPPED nothing_to_write_to_is_a_clear_error: no /dev/full");
        return;
    };
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .arg("print-config")
        .stdout(full)
        .output()
        .unwrap();
    let stderr = err(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("standard output") && stderr.contains("hint:"),
        "{stderr}"
    );
}

#[test]
fn a_recording_gives_the_same_text_every_time() {
    let files = Files::new();
    let path = files.put("good.jsonl", recording());
    for what in ["tree", "spans", "metrics", "nothing"] {
        let first = sandglass(&["replay", &path, "--print", what]);
        assert!(
            first.status.success() && first.stderr.is_empty(),
            "{what}: {}",
            err(&first)
        );
        for _ in 0..3 {
            assert_eq!(
                first.stdout,
                sandglass(&["replay", &path, "--print", what]).stdout,
                "{what}"
            );
        }
    }
    let tree = out(&sandglass(&["replay", &path]));
    for part in ["cnitool-1", "command iptables", "shop/cart", "plugin broken"] {
        assert!(tree.contains(part), "{part}: {tree}");
    }
}

#[test]
fn damage_costs_only_the_lines_it_hits() {
    let files = Files::new();
    let good = recording();
    let reference = out(&sandglass(&[
        "replay",
        &files.put("good.jsonl", &good),
        "--print",
        "spans",
    ]));
    let deep = "[".repeat(100_000);
    let huge = "x".repeat(2 << 20);
    for (name, line) in [
        ("text", "{]"),
        ("nul", "\0\0\0"),
        ("deep", deep.as_str()),
        ("huge", huge.as_str()),
        ("number", r#"{"at":99999999999999999999999,"event":"tick"}"#),
        ("unknown", r#"{"at":5,"event":"never_heard_of"}"#),
    ] {
        let (header, events) = good.split_once('\n').unwrap();
        let path = files.put("damaged.jsonl", format!("{header}\n{line}\n{events}"));
        let output = sandglass(&["replay", &path, "--print", "spans"]);
        assert!(output.status.success(), "{name}: {}", err(&output));
        assert_eq!(out(&output), reference, "{name}");
        let stderr = err(&output);
        assert!(stderr.contains("skipped") && stderr.len() < 2_000, "{name}: {stderr}");
    }
    let windows = files.put("crlf.jsonl", good.replace('\n', "\r\n"));
    assert_eq!(out(&sandglass(&["replay", &windows, "--print", "spans"])), reference);
}

#[test]
fn no_damage_makes_it_panic() {
    let files = Files::new();
    let good = recording().into_bytes();
    let first_event = HEADER.len() + 1;
    for round in 0..60_usize {
        let mut bytes = good.clone();
        match round % 3 {
            0 => bytes.truncate(bytes.len() * round / 60),
            1 => {
                for step in 0..=round {
                    let at = (step * 7_919 + round * 104_729) % bytes.len();
                    bytes[at] ^= 1 << (step % 8);
                }
            }
            _ => {
                let at = first_event + (round * 15_485_863) % (bytes.len() - first_event);
                bytes.drain(at..(at + round).min(good.len()));
            }
        }
        let path = files.put("mutated.jsonl", bytes);
        let output = sandglass(&["replay", &path]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => {}
            Some(64) => assert!(stderr.contains("hint:"), "round {round}: {stderr}"),
            other => panic!("round {round}: {other:?}: {stderr}"),
        }
        assert!(!stderr.contains("panicked"), "round {round}: {stderr}");
    }
}

#[test]
fn every_metric_has_help_a_known_type_and_a_name_by_the_rules() {
    let files = Files::new();
    let path = files.put("good.jsonl", recording());
    let text = out(&sandglass(&["replay", &path, "--print", "metrics"]));
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped: BTreeSet<&str> = BTreeSet::new();
    let mut samples = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (family, help) = rest.split_once(' ').unwrap();
            assert!(
                help.ends_with('.') && !help.ends_with("..") && help.len() > 10,
                "{line}"
            );
            assert!(helped.insert(family), "{family} has help twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (family, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram", "info"].contains(&kind), "{line}");
            assert!(families.insert(family, kind).is_none(), "{family} is there twice");
            assert!(helped.contains(family), "{family} has no help");
            assert_name(family);
        } else if line == "# EOF" {
            assert!(lines.peek().is_none(), "text after the end");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let belongs = families.iter().any(|(family, kind)| {
                let endings: &[&str] = match *kind {
                    "counter" => &["_total"],
                    "histogram" => &["_sum", "_count", "_bucket"],
                    "info" => &["_info"],
                    _ => &[""],
                };
                endings.iter().any(|ending| name == format!("{family}{ending}"))
            });
            assert!(belongs, "{line} belongs to no family");
            samples += 1;
        }
    }
    assert!(
        text.ends_with("# EOF\n") && families.len() >= 10 && samples >= 30,
        "{text}"
    );
    for count in [
        r#"sandglass_cni_operation_duration_seconds_count{operation="ADD",network="unknown",result="success"} 1"#,
        r#"sandglass_cni_operation_duration_seconds_count{operation="ADD",network="unknown",result="error"} 1"#,
    ] {
        assert!(text.contains(count), "{count}\n{text}");
    }
}

/// Prefix, lower case, base units, no ending that a type adds by itself.
fn assert_name(family: &str) {
    let name = family
        .strip_prefix("sandglass_")
        .unwrap_or_else(|| panic!("{family} has no prefix"));
    assert!(
        name.chars().all(|char| char.is_ascii_lowercase() || char == '_') && !name.contains("__"),
        "{family}"
    );
    for wrong in [
        "_total",
        "_count",
        "_sum",
        "_bucket",
        "_info_info",
        "_ms",
        "_ns",
        "_us",
        "_milliseconds",
        "_kb",
        "_mb",
    ] {
        assert!(!name.ends_with(wrong), "{family} ends with {wrong}");
    }
    for (part, unit) in [("duration", "_seconds"), ("latency", "_seconds"), ("memory", "_bytes")] {
        assert!(
            !name.contains(part) || name.ends_with(unit),
            "{family} is not in {unit}"
        );
    }
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let commands = [
        "run",
        "watch",
        "replay",
        "record",
        "doctor",
        "print-config",
        "completions",
        "man",
    ];
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = out(&sandglass(&["completions", shell]));
        for command in commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let files = Files::new();
    let directory = files.path("new/man");
    let output = sandglass(&["man", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    assert_page(&directory.join("sandglass.1"));
    for command in commands {
        assert_page(&directory.join(format!("sandglass-{command}.1")));
    }
}

fn assert_page(path: &Path) {
    let page = fs::read_to_string(path).unwrap();
    assert!(page.contains(".TH") && page.contains(".SH NAME"), "{}", path.display());
}
