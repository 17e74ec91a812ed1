//! What runs in the cluster test's pods, as one static program: pause, serve, ask, look up, attack.
//!
//! Compiled by itself for musl (`test.sh`), since an image without libraries is wanted. Without arguments it is the
//! sandbox's pause container. Does not: anything a test does not name.

mod attack;

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::exit;
use std::thread::sleep;
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn signal(number: i32, action: extern "C" fn(i32)) -> usize;
    fn _exit(code: i32) -> !;
}

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// As process 1 it would not end by a signal otherwise.
extern "C" fn end(_: i32) {
    // SAFETY: async-signal-safe, and ends the process.
    unsafe { _exit(0) }
}

fn main() {
    for number in [SIGINT, SIGTERM] {
        // SAFETY: the action only calls _exit.
        unsafe { signal(number, end) };
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] | ["pause"] => loop {
            sleep(Duration::from_secs(3600));
        },
        ["exit", code] => exit(code.parse().unwrap_or(64)),
        ["serve", address] => serve(address),
        // Until it answers: the rules of a new Service take a moment.
        ["ask", address] => until(address, ask),
        ["lookup", name] => until(name, lookup),
        ["forge", count] => attack::forge(number(count)),
        ["forge-in-user-namespace", count] => {
            attack::enter_user_namespace();
            attack::forge(number(count));
        }
        ["hold", at, count, seconds] => {
            attack::hold(address(at), number(count), Duration::from_secs(number(seconds) as u64));
        }
        ["get", at, path, host] => attack::get(address(at), path, host),
        _ => {
            eprintln!(
                "usage: pod [pause | exit CODE | serve ADDRESS | ask ADDRESS | lookup NAME | forge COUNT | \
                 forge-in-user-namespace COUNT | hold ADDRESS COUNT SECONDS | get ADDRESS PATH HOST]"
            );
            exit(64)
        }
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn serve(address: &str) {
    let listener = TcpListener::bind(address).expect("listen");
    for mut stream in listener.incoming().flatten() {
        let _ = stream.write_all(b"here\n");
    }
}

fn until(what: &str, attempt: fn(&str) -> Result<String, String>) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match attempt(what) {
            Ok(answer) => {
                println!("{what}: {answer}");
                return;
            }
            Err(error) if Instant::now() >= end => {
                eprintln!("{what}: {error}");
                exit(1)
            }
            Err(_) => sleep(Duration::from_millis(300)),
        }
    }
}

fn ask(address: &str) -> Result<String, String> {
    let address: SocketAddr = address.parse().map_err(|error| format!("{error}"))?;
    // A connection that began before kube-proxy's rules were there is never translated, however often its SYN is repeated:
    // conntrack decides once. Another one, from another port, is.
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.set_read_timeout(Some(Duration::from_secs(2))).map_err(|error| error.to_string())?;
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    if answer == "here\n" { Ok("answered".to_owned()) } else { Err(format!("answered {answer:?}")) }
}

fn lookup(name: &str) -> Result<String, String> {
    let mut found = (name, 80).to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().map(|address| address.ip().to_string()).ok_or_else(|| "no address".to_owned())
}
