//! Plants a secret in every place of a recording that an older agent or Windows may have written one, and in every text of an
//! `.etl` file, and replays both with all outputs on: OTLP, page, API, metrics, log, and another recording.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::written;

/// No two places have the same secret, so that a failure names its place. None looks random: names and places must do.
const SECRETS: [&str; 16] = [
    "argflagsecret",
    "argequalssecret",
    "argheadersecret",
    "argurlsecret",
    "argquerysecret",
    "argshellsecret",
    "envargssecret",
    "envvarsecret",
    "netconfsecret",
    "errmsgsecret",
    "errdetailsecret",
    "resultsecret",
    "labelsecret",
    "hnsjsonsecret",
    "hnsfieldsecret",
    "runtimelogsecret",
];

fn event(at: u64, kind: &str, fields: Value) -> String {
    let mut event = json!({ "at": at, "event": kind });
    event
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    event.to_string()
}

fn key(pid: u64) -> Value {
    json!({ "pid": pid, "start_ticks": pid })
}

/// A failing ADD with one command, then facts of Windows.
fn recording() -> String {
    let identity = json!({ "namespace": "shop", "name": "cart-0", "uid": "u-1", "labels": [["app", "cart"], ["vault-token", "labelsecret"]] });
    let env = json!([
        ["CNI_COMMAND", "ADD"],
        ["CNI_CONTAINERID", "a1b2c3"],
        ["CNI_NETNS", "/run/netns/x"],
        ["CNI_IFNAME", "eth0"],
        ["CNI_PATH", "/p"],
        [
            "CNI_ARGS",
            "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;API_TOKEN=envargssecret"
        ],
        ["CNI_REGISTRY_PASSWORD", "envvarsecret"]
    ]);
    let args = json!([
        "/p/curl",
        "--password",
        "argflagsecret",
        "--token=argequalssecret",
        "-H",
        "X-Api-Key: argheadersecret",
        "https://me:argurlsecret@api/x?sig=argquerysecret",
        "-c",
        "mysql --password argshellsecret -e x"
    ]);
    let header = json!({
        "recording": "sandglass", "version": 1, "agent": "0.1.0", "os": "Linux", "kernel": "6.1", "machine": "x86_64",
        "node": "n", "boot_id": "b", "clock": { "boot_ns": 1_000_000_000, "unix_ns": 1_795_257_360_000_000_000_u64 }
    });
    let second = 1_000_000_000;
    let lines = [
        header.to_string(),
        event(
            second,
            "process_executed",
            json!({
                "process": key(10), "parent": key(1), "parent_comm": "containerd", "path": "/p/bridge", "args": ["/p/bridge"], "env": env
            }),
        ),
        event(
            second + 1,
            "process_forked",
            json!({ "process": key(11), "parent": key(10) }),
        ),
        event(
            second + 2,
            "process_executed",
            json!({
                "process": key(11), "parent": key(10), "path": "/p/curl", "args": args, "env": env
            }),
        ),
        event(
            second + 3,
            "process_exited",
            json!({ "process": key(11), "how": { "code": 1 } }),
        ),
        event(
            second + 4,
            "plugin_spoke",
            json!({
                "process": key(10),
                "netconf": { "network": "token=netconfsecret", "type": "bridge", "version": "1.0.0", "chained": false },
                "error": { "code": 100, "msg": "GET https://api?token=errmsgsecret refused", "details": "{\"password\":\"errdetailsecret\"}" },
                "addresses": ["10.0.0.2/24", "resultsecret"]
            }),
        ),
        event(
            second + 5,
            "process_exited",
            json!({ "process": key(10), "how": { "code": 1 } }),
        ),
        event(
            second + 6,
            "sandbox_described",
            json!({ "sandbox": "a1b2c3", "identity": identity, "ready": true }),
        ),
        event(
            second + 7,
            "activity_seen",
            json!({
                "service": "hns", "name": "EndpointAttachShared", "pid": 4, "tid": 5,
                "step": { "noted": { "result": 2_147_942_405_u32, "message": "{\"Policies\":[{\"Password\":\"hnsjsonsecret\"}]}" } },
                "fields": [["callContext", "credential=hnsfieldsecret"]]
            }),
        ),
        event(
            second + 8,
            "runtime_said",
            json!({
                "run_failed": { "identity": { "namespace": "shop", "name": "cart-0" }, "message": "secret: runtimelogsecret" }
            }),
        ),
        event(60 * second, "tick", json!({})),
    ];
    lines.join("\n") + "\n"
}

/// Accepts OTLP requests and sends their bodies on.
fn collector(bodies: Sender<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let bodies = bodies.clone();
            std::thread::spawn(move || requests(stream.unwrap(), &bodies));
        }
    });
    address
}

fn requests(stream: TcpStream, bodies: &Sender<Vec<u8>>) {
    let mut into = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        bodies.send(body).unwrap();
        into.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-type: application/x-protobuf\r\n\r\n")
            .unwrap();
    }
}

fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

fn assert_clean(secrets: &[&str], place: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in {place}:\n{text}");
    }
}

#[test]
fn no_output_holds_a_planted_secret() {
    let directory = tempfile::tempdir().unwrap();
    let planted = directory.path().join("planted.jsonl");
    fs::write(&planted, recording()).unwrap();
    scan(&planted, &SECRETS, "cart-0");
}

/// What a node's ETW sessions logged, as the Windows source reads it.
#[test]
fn no_output_of_an_etl_file_holds_a_planted_secret() {
    let directory = tempfile::tempdir().unwrap();
    let planted = directory.path().join("planted.etl");
    fs::write(&planted, written::file()).unwrap();
    scan(&planted, &written::SECRETS, "web-0");
}

/// Replays a file in which all of these are planted, and looks for them in everything that leaves the agent. The printed spans
/// must name the pod `shown`.
fn scan(planted: &Path, secrets: &[&str], shown: &str) {
    let content = fs::read(planted).unwrap();
    for secret in secrets {
        assert!(written::contains(&content, secret), "{secret} is planted");
    }
    let assert_clean = |place: &str, bytes: &[u8]| assert_clean(secrets, place, bytes);
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy.jsonl");
    let (bodies, received) = channel();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .args([
            "replay",
            "--print",
            "spans",
            "--serve",
            "--listen",
            "127.0.0.1:0",
            "--export",
            "--otlp-endpoint",
        ])
        .arg(format!("http://{}", collector(bodies)))
        .args(["--set", "otlp.compression=none", "--record"])
        .arg(&copy)
        .arg(planted)
        .env_clear()
        .env("SANDGLASS_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(fs::File::create(directory.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    let mut printed = String::new();
    let mut reader = BufReader::new(agent.stdout.take().unwrap());
    let address: SocketAddr = loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the agent ended: {printed}");
        if let Some(rest) = line.strip_prefix("http://") {
            break rest.split('/').next().unwrap().trim().parse().unwrap();
        }
        printed.push_str(&line);
    };
    assert!(printed.contains(shown) && printed.contains("***"), "{printed}");
    assert_clean("the printed spans", printed.as_bytes());
    // The last line says what was exported.
    let ids: Vec<String> = printed
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["trace_id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let mut paths: Vec<String> = ids.iter().map(|id| format!("/api/v1/traces/{id}")).collect();
    paths.extend(
        [
            "/",
            "/metrics",
            "/api/v1/sandboxes",
            "/api/v1/operations",
            "/api/v1/network",
            "/api/v1/known",
            "/api/v1/health",
        ]
        .map(str::to_owned),
    );
    for path in paths {
        let answer = get(address, &path);
        assert!(
            answer.starts_with(b"HTTP/1.1 200"),
            "{path}: {}",
            String::from_utf8_lossy(&answer)
        );
        assert_clean(&path, &answer);
    }
    // The traces were exported before the page was served.
    let exported: Vec<Vec<u8>> = received.try_iter().collect();
    assert!(!exported.is_empty(), "nothing was exported");
    exported.iter().for_each(|body| assert_clean("OTLP", body));
    // Gone already is as good.
    let _ = agent.kill();
    agent.wait().unwrap();
    assert_clean("the recording", &fs::read(&copy).unwrap());
    assert_clean("the log", &fs::read(directory.path().join("log")).unwrap());
    assert_private(&copy);
}

/// The setting reaches the arguments and nothing else.
#[test]
fn arguments_can_be_kept_or_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let planted = directory.path().join("planted.jsonl");
    fs::write(&planted, recording()).unwrap();
    let spans = |setting: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_sandglass"))
            .args([
                "replay",
                "--print",
                "spans",
                "--set",
                &format!("commands.arguments={setting}"),
            ])
            .arg(&planted)
            .env_clear()
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (masked, full, none) = (spans("masked"), spans("full"), spans("none"));
    assert!(masked.contains("--password") && masked.contains("--token=***"));
    assert!(full.contains("argflagsecret") && full.contains("argshellsecret"));
    assert!(none.contains("/p/curl") && !none.contains("--password"));
    for secret in SECRETS.iter().filter(|secret| !secret.starts_with("arg")) {
        assert!(!full.contains(secret), "{secret}");
    }
}

#[cfg(unix)]
fn assert_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[cfg(not(unix))]
fn assert_private(_: &Path) {}
