//! The person on call: takes what Alertmanager sends, and remembers it.
//!
//! Does not: judge it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// Takes what Alertmanager sends.
pub struct Receiver {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&received);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                let body = loop {
                    let mut chunk = [0; 8192];
                    let read = stream.read(&mut chunk).unwrap();
                    request.extend_from_slice(&chunk[..read]);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else {
                        continue;
                    };
                    let length = head.to_ascii_lowercase();
                    let length: usize = length
                        .split("content-length: ")
                        .nth(1)
                        .unwrap()
                        .lines()
                        .next()
                        .unwrap()
                        .parse()
                        .unwrap();
                    if body.len() >= length {
                        break body.to_owned();
                    }
                };
                let message: Value = serde_json::from_str(&body).unwrap();
                shared
                    .lock()
                    .unwrap()
                    .extend(message["alerts"].as_array().unwrap().iter().cloned());
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    .unwrap();
            }
        });
        Receiver { address, received }
    }

    /// The newest message about an alert in a state.
    pub fn newest(&self, name: &str, status: &str) -> Option<Value> {
        let received = self.received.lock().unwrap();
        let fits = |alert: &&Value| alert["labels"]["alertname"] == name && alert["status"] == status;
        received.iter().rev().find(fits).cloned()
    }

    /// Everything received, in order.
    pub fn all(&self) -> Vec<Value> {
        self.received.lock().unwrap().clone()
    }
}
