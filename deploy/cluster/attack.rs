//! What a hostile pod tries against the agent in the cluster test: forge plugins and runtimes, hold connections, reach the page.
//!
//! Part of the program `pod.rs`; `agent/tests/cluster/attacks.rs` runs it and judges what came of it. Each command prints what it
//! did and fails only where it could not try. Does not: judge.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

#[repr(C)]
struct Limit {
    current: u64,
    maximum: u64,
}

unsafe extern "C" {
    fn unshare(flags: i32) -> i32;
    fn getrlimit(resource: i32, limit: *mut Limit) -> i32;
    fn setrlimit(resource: i32, limit: *const Limit) -> i32;
}

const CLONE_NEWUSER: i32 = 0x1000_0000;
const RLIMIT_NOFILE: i32 = 7;
/// Threads of an attack.
const THREADS: usize = 4;
/// What a runtime's own processes are called.
const RUNTIMES: [&str; 4] = ["runc", "crun", "conmon", "containerd-shim-runc-v2"];

/// All that follows is in a user namespace of its own, with every capability there. Says so where the node allows none.
pub fn enter_user_namespace() {
    // SAFETY: takes no pointer; the process has one thread.
    if unsafe { unshare(CLONE_NEWUSER) } != 0 {
        println!("user namespace: not allowed: {}", std::io::Error::last_os_error());
        exit(0);
    }
    for (file, line) in [("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")] {
        fs::write(format!("/proc/self/{file}"), line).expect(file);
    }
    println!("user namespace: entered");
}

/// `count` plugins, each of another name and for another sandbox, then processes with the names of runtimes.
pub fn forge(count: usize) {
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let path = format!("/forged-{number}");
                    symlink("/pod", &path).expect("symlink");
                    plugin(&path, number);
                    fs::remove_file(&path).expect("remove");
                }
            });
        }
    });
    for name in RUNTIMES {
        let path = format!("/{name}");
        fs::copy("/pod", &path).expect("copy");
        // Whatever the program makes of them, the arguments are those of a runtime. With a plugin's environment it would pass for a
        // plugin first.
        let mut runtime = command(&path);
        runtime.args(["--root", "/r", "create", "forged-victim"]);
        runtime.status().expect(name);
    }
    println!("forged {count} in {} ms", begin.elapsed().as_millis());
}

/// With a plugin's environment.
fn plugin(path: &str, number: usize) {
    let mut plugin = command(path);
    plugin.args(["exit", "0"]).envs([
        ("CNI_COMMAND", "ADD"),
        ("CNI_NETNS", "/proc/1/ns/net"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=coredns-victim"),
    ]);
    plugin.env("CNI_CONTAINERID", format!("forged-{number}"));
    plugin.status().expect(path);
}

/// Under the trace of the attacker's choice.
fn command(path: &str) -> Command {
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    command.env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    command
}

/// Keeps `count` connections for so long, and makes each again when it is cut.
pub fn hold(address: SocketAddr, count: usize, length: Duration) {
    let mut limit = Limit { current: 0, maximum: 0 };
    // SAFETY: both get a valid struct of the C library's layout.
    unsafe {
        getrlimit(RLIMIT_NOFILE, &mut limit);
        limit.current = limit.maximum;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    let (made, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = Instant::now() + length;
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut held: Vec<Option<TcpStream>> = (0..count / THREADS).map(|_| None).collect();
                while Instant::now() < end {
                    for (number, slot) in held.iter_mut().enumerate() {
                        if slot.as_mut().is_none_or(is_cut) {
                            *slot = connect(address, number);
                            made.fetch_add(usize::from(slot.is_some()), Ordering::Relaxed);
                        }
                    }
                    let open = held.iter().flatten().count() * THREADS;
                    most.fetch_max(open, Ordering::Relaxed);
                    sleep(Duration::from_millis(50));
                }
            });
        }
    });
    println!("held {} at most, made {}", most.into_inner(), made.into_inner());
}

/// Idle, in the middle of its headers, half closed, or one that does not read its answer.
fn connect(address: SocketAddr, number: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
    let sent: &[u8] = match number % 4 {
        0 => b"",
        1 => b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        2 => b"GET /heal",
        _ => b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    };
    stream.write_all(sent).ok()?;
    if number % 4 == 2 {
        stream.shutdown(Shutdown::Write).ok()?;
    }
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// Whether the agent has closed it. An answer stays unread.
fn is_cut(stream: &mut TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Prints the status of an answer, or why there is none.
pub fn get(address: SocketAddr, path: &str, host: &str) {
    let outcome = status(address, path, host).unwrap_or_else(|error| error.to_string());
    println!("{address}{path} as {host}: {outcome}");
}

fn status(address: SocketAddr, path: &str, host: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.lines().next().unwrap_or("no answer").to_owned())
}
