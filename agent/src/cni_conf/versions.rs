//! Whether a plugin supports a version of the specification, by the plugin's own word: CRI-O executes each plugin of a network
//! for it, and passes over a network of which one does not list exactly the network's version.
//!
//! Used by `doctor`, for CRI-O and where the node's root is the agent's; the running agent executes nothing. Sources:
//! `validatePlugin` of libcni's `api.go`, `GetVersionInfo` of `pkg/invoke/exec.go`, `Decode` of `pkg/version/plugin.go`, alike
//! from v0.8.1 to v1.3.1. Bounded in time and output, which CRI-O is not. Does not: execute a plugin for anything but VERSION.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::bounded::bounded;
use super::json::{Members, Value, folded};

/// Why CRI-O passes over a network because of this plugin; `None` when it does not.
pub(super) fn objection(kind: &str, binary: &Path, version: &str) -> Option<String> {
    let version = if version.is_empty() { "0.1.0" } else { version };
    match supported(binary) {
        Ok(versions) if versions.iter().any(|supported| supported == version) => None,
        Ok(versions) => Some(format!(
            "plugin {kind} does not support version {version}, only {}",
            versions.join(", ")
        )),
        Err(error) => Some(format!("plugin {kind} does not tell its versions: {error}")),
    }
}

/// The versions that a plugin lists.
fn supported(binary: &Path) -> Result<Vec<String>, String> {
    let (succeeded, output) = execute(binary)?;
    let members = match Value::parse(&output) {
        Ok(Value::Object(members)) => members,
        // `null` leaves the Go struct empty.
        Ok(Value::Null) => Members::new(),
        Ok(_) => return Err("its answer is no object".to_owned()),
        Err(_) => return Err("its answer is no JSON".to_owned()),
    };
    if !succeeded {
        return match (&*text(&members, "msg")?, &*text(&members, "details")?) {
            // A plugin older than the verb (specification 0.2.0).
            ("unknown CNI_COMMAND: VERSION", "") => Ok(vec!["0.1.0".to_owned()]),
            ("", _) => Err("it fails".to_owned()),
            (message, _) => Err(bounded(message)),
        };
    }
    let version = text(&members, "cniVersion")?;
    let listed = match folded(&members, "supportedVersions") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::List(values)) => values
            .iter()
            .map(|value| of_text("supportedVersions", Some(value)))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("its supportedVersions are no list".to_owned()),
    };
    match (&*version, listed.is_empty()) {
        ("", _) => Err("its answer has no cniVersion".to_owned()),
        ("0.2.0", true) => Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()]),
        (_, true) => Err("its answer has no supportedVersions".to_owned()),
        (_, false) => Ok(listed),
    }
}

fn text(members: &Members, key: &str) -> Result<String, String> {
    of_text(key, folded(members, key))
}

/// As Go decodes into a `string`: `null` leaves it empty.
fn of_text(key: &str, value: Option<&Value>) -> Result<String, String> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::Text(text)) => Ok(bounded(text)),
        Some(_) => Err(format!("a {key} in its answer is no text")),
    }
}

/// Whether it exited with 0, and what it wrote.
fn execute(binary: &Path) -> Result<(bool, Vec<u8>), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut child = Command::new(binary)
        .env_clear()
        .env("PATH", path)
        .env("CNI_COMMAND", "VERSION")
        .env("CNI_CONTAINERID", "")
        .env("CNI_NETNS", "dummy")
        .env("CNI_ARGS", "")
        .env("CNI_IFNAME", "dummy")
        .env("CNI_PATH", "dummy")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that reads nothing of it is as good.
        let _ = stdin.write_all(br#"{"cniVersion":"1.1.0"}"#);
    }
    // A reader of its own: a plugin may keep its output open, or fill the pipe.
    let stdout = child.stdout.take();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(MAX_ANSWER).read_to_end(&mut output);
        }
        let _ = sender.send(output);
    });
    let begin = Instant::now();
    let output = receiver.recv_timeout(TIMEOUT);
    let status = wait(&mut child, TIMEOUT.saturating_sub(begin.elapsed()));
    match (output, status) {
        (Ok(output), Some(succeeded)) => Ok((succeeded, output)),
        _ => {
            let _ = child.kill();
            let _ = child.wait();
            Err(format!("no answer within {} s", TIMEOUT.as_secs()))
        }
    }
}

/// Whether it exited with 0; `None` when it runs for longer.
fn wait(child: &mut Child, longest: Duration) -> Option<bool> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if begin.elapsed() < longest => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => return None,
        }
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER: u64 = 64 << 10;
