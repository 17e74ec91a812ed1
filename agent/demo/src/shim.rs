//! A plugin that only sends requests to a daemon of its node and waits for the answers, and that daemon: both are the binary
//! `sandglass-demo` under other names.
//!
//! Used by the network [`crate::networks::Network::Served`]. As Cilium's and Multus' (thick) do, they speak HTTP over a unix socket,
//! two requests over one connection: what the daemon knows of the pod, which it has to look up, and then the endpoint, for which the
//! daemon runs a command. The first request lasts until the agent has found the plugin slow, so that it follows the second one from
//! its begin although it does not know the plugin's name. Does not: use threads of the demo, so that its requests are between
//! processes as on a node.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde_json::{Value, json};

use crate::networks::{DAEMON, SHIM_PLUGIN, VERSIONS};

/// How long the daemon looks the pod up: longer than `waits.after` (50 ms) and the agent's next poll (25 ms).
const LOOKUP: Duration = Duration::from_millis(250);

/// What this program does when it was executed as the plugin or as the daemon; `None` under any other name.
#[must_use]
pub fn run() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let program = arguments.next()?;
    let outcome = match Path::new(&program).file_name().and_then(OsStr::to_str)? {
        SHIM_PLUGIN => plugin(),
        DAEMON => {
            let mut argument = || arguments.next().unwrap_or_default();
            let (socket, command) = (argument(), argument());
            UnixListener::bind(Path::new(&socket)).and_then(|listener| serve(&listener, &command))
        }
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // As the CNI specification has errors: from 100 on a plugin's own.
            let error = json!({"cniVersion": "1.0.0", "code": 100, "msg": error.to_string()});
            // Without a reader the exit code remains.
            let _ = writeln!(io::stdout(), "{error}");
            ExitCode::FAILURE
        }
    })
}

// === the plugin ===

fn plugin() -> io::Result<()> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    match variable("CNI_COMMAND").as_str() {
        "VERSION" => writeln!(io::stdout(), "{VERSIONS}"),
        "ADD" => add(&variable("CNI_CONTAINERID"), &variable("CNI_ARGS")),
        // What the daemon knows of a pod ends with the daemon, which ends with the pods' making.
        _ => Ok(()),
    }
}

/// Hands on the result that the daemon answers with, and notes its clock as the script plugins do.
fn add(container: &str, arguments: &str) -> io::Result<()> {
    let begin = uptime()?;
    let configuration: Value = serde_json::from_reader(io::stdin())?;
    let path = |key: &str| Path::new(configuration[key].as_str().unwrap_or_default());
    let uid = arguments.split(';').find_map(|one| one.strip_prefix("K8S_POD_UID="));
    let note = path("clock").join(uid.unwrap_or("none"));
    fs::write(&note, &begin)?;
    let stream = UnixStream::connect(path("socket"))?;
    let mut connection = Connection(BufReader::new(stream));
    connection.request(&format!("GET /identity/{container}"), "")?;
    let result = configuration["prevResult"].to_string();
    let answer = connection.request(&format!("PUT /endpoint/{container}"), &result)?;
    fs::write(&note, format!("{begin} {}", uptime()?))?;
    writeln!(io::stdout(), "{answer}")
}

/// The boot clock in hundredths of seconds, as text (proc(5)).
fn uptime() -> io::Result<String> {
    let text = fs::read_to_string("/proc/uptime")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

// === the daemon ===

/// Serves until it is killed.
fn serve(listener: &UnixListener, command: &OsStr) -> io::Result<()> {
    for stream in listener.incoming() {
        let (stream, command) = (stream?, command.to_owned());
        std::thread::spawn(move || {
            let mut connection = Connection(BufReader::new(stream));
            // A client that is gone, or that sends anything else, is served no more.
            while let Ok((head, body)) = connection.receive() {
                if answer(&mut connection, &command, &head, &body).is_err() {
                    break;
                }
            }
        });
    }
    Ok(())
}

fn answer(connection: &mut Connection, command: &OsStr, head: &str, body: &str) -> io::Result<()> {
    let request = head.trim_end_matches(" HTTP/1.1");
    let (what, container) = request.rsplit_once('/').unwrap_or_default();
    match what {
        "GET /identity" => {
            // A real one asks the API server.
            std::thread::sleep(LOOKUP);
            connection.send("HTTP/1.1 200 OK", &json!({"identity": container}).to_string())
        }
        "PUT /endpoint" if Command::new(command).arg(container).status()?.success() => {
            connection.send("HTTP/1.1 201 Created", body)
        }
        _ => connection.send("HTTP/1.1 500 Internal Server Error", ""),
    }
}

// === HTTP ===

/// One end of a connection, for messages of HTTP/1.1 (RFC 9112) that state their length.
struct Connection(BufReader<UnixStream>);

impl Connection {
    /// Sends a request and returns the body of the answer.
    fn request(&mut self, line: &str, body: &str) -> io::Result<String> {
        self.send(&format!("{line} HTTP/1.1\r\nHost: localhost"), body)?;
        let (head, body) = self.receive()?;
        match head.split(' ').nth(1) {
            Some(status) if status.starts_with('2') => Ok(body),
            _ => Err(io::Error::other(format!("the daemon answered {head}"))),
        }
    }

    /// In one piece, as one message of the socket.
    fn send(&mut self, head: &str, body: &str) -> io::Result<()> {
        let message = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        self.0.get_mut().write_all(message.as_bytes())
    }

    /// The first line of a message and its body.
    fn receive(&mut self) -> io::Result<(String, String)> {
        let (mut first, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some(bytes) = line.strip_prefix("Content-Length: ") {
                length = bytes.parse().map_err(io::Error::other)?;
            }
            if first.is_empty() {
                line.clone_into(&mut first);
            }
        }
        let mut body = String::new();
        self.0.by_ref().take(length).read_to_string(&mut body)?;
        Ok((first, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_answers_both_requests_of_one_connection() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("daemon.sock");
        // Bound here: the file is there before the socket listens, and a connection in between is refused.
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || serve(&listener, OsStr::new("true")));
        let mut connection = Connection(BufReader::new(UnixStream::connect(&socket).unwrap()));
        let known = connection.request("GET /identity/abc", "").unwrap();
        assert_eq!(known, r#"{"identity":"abc"}"#);
        let result = r#"{"cniVersion":"1.0.0"}"#;
        assert_eq!(connection.request("PUT /endpoint/abc", result).unwrap(), result);
        assert!(connection.request("GET /nothing", "").is_err());
    }
}
