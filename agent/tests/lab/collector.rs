//! An OTLP collector over HTTP that keeps the bodies of what it accepts.
//!
//! Used by tests of the whole agent. Does not: decode a body, or speak gRPC (`sinks/otlp/tests/collector.rs` does).
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A running collector.
pub struct Collector {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    bodies: Mutex<Vec<Vec<u8>>>,
    requests: Mutex<usize>,
    /// The status of the request with this number.
    status: fn(usize) -> u16,
}

impl Collector {
    /// One that accepts every request.
    pub fn start() -> Collector {
        Collector::answering(|_| 200)
    }

    /// One that answers its requests, counted from 0, with these statuses.
    pub fn answering(status: fn(usize) -> u16) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            bodies: Mutex::default(),
            requests: Mutex::default(),
            status,
        });
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Collector { address, state }
    }

    /// Bodies of the requests that were accepted since the last call.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.state.bodies.lock().unwrap())
    }
}

/// Answers the requests of one connection until it is closed; `None` is its end.
fn serve(stream: TcpStream, state: &State) -> Option<()> {
    let mut answers = stream.try_clone().ok()?;
    let mut requests = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body).ok()?;
        let number = {
            let mut requests = state.requests.lock().unwrap();
            *requests += 1;
            *requests - 1
        };
        let status = (state.status)(number);
        if status == 200 {
            state.bodies.lock().unwrap().push(body);
        }
        let answer =
            format!("HTTP/1.1 {status} x\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n");
        answers.write_all(answer.as_bytes()).ok()?;
    }
}
