//! An HTTP server for the judges: what it answers is the test's.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::Value;

use super::text;

/// Answers requests on an address of its own, which it returns; a request without an answer is not found. `answer` gets path and query, and the
/// body as JSON.
pub fn serve(answer: impl Fn(&str, &Value) -> Option<String> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Some((path, body)) = request(&mut stream) else {
                continue;
            };
            let (status, answer) = match answer(&path, &body) {
                Some(answer) => ("200 OK", answer),
                None => ("404 Not Found", r#"{"message": "not found"}"#.to_owned()),
            };
            let length = answer.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all((head + &answer).as_bytes());
        }
    });
    format!("http://{address}")
}

/// Reads a request: its path, and its body as JSON.
fn request(stream: &mut TcpStream) -> Option<(String, Value)> {
    let mut read = Vec::new();
    let mut chunk = [0; 4_096];
    loop {
        let count = stream.read(&mut chunk).ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&chunk[..count]);
        let all = text(&read);
        let Some((head, body)) = all.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.to_lowercase();
        let length = length.split_once("content-length: ").map_or(0, |(_, rest)| {
            rest.lines().next().unwrap_or_default().trim().parse().unwrap()
        });
        if body.len() >= length {
            let path = head.split(' ').nth(1)?.to_owned();
            return Some((path, serde_json::from_str(body).unwrap_or_default()));
        }
    }
}
