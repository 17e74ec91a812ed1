//! A DNS server that does what the name requests, well or badly.
//!
//! The first label says what: see [`plan`]. Only names below `test` are known; all others do not exist, which is what a
//! search path is answered. Does not: cache, or read more of a query than its first question.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use super::{ELSEWHERE, Lab, SERVER, SERVER_V6, inside};

/// The running server.
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    counts: Arc<Mutex<HashMap<(String, u16), u32>>>,
}

struct Sockets {
    udp: [UdpSocket; 2],
    elsewhere: UdpSocket,
    tcp: TcpListener,
}

/// What to answer: so long after the query, this.
#[derive(Clone)]
enum Plan {
    Answer(Duration, Reply),
    Silence,
}

#[derive(Clone)]
enum Reply {
    /// So many addresses.
    Addresses(u8),
    Code(u16),
    Truncated,
    Garbage,
    /// For another question's id, and later the right one.
    WrongId,
    FromElsewhere,
    ExtendedCode,
}

/// What the name requests; `times` is how often it was queried before.
fn plan(name: &str, times: u32, tcp: bool) -> Plan {
    let now = |reply| Plan::Answer(Duration::ZERO, reply);
    let Some(name) = name.strip_suffix(".test") else {
        return now(Reply::Code(3));
    };
    let first = name.split('.').next().unwrap_or_default();
    match first {
        "ok" => now(Reply::Addresses(1)),
        "none" => now(Reply::Code(3)),
        "nodata" => now(Reply::Addresses(0)),
        "servfail" => now(Reply::Code(2)),
        "refused" => now(Reply::Code(5)),
        "badvers" => now(Reply::ExtendedCode),
        "silent" => Plan::Silence,
        "once" if times == 0 => Plan::Silence,
        "once" => now(Reply::Addresses(1)),
        "late" => Plan::Answer(Duration::from_millis(300), Reply::Addresses(1)),
        "tc" if tcp => now(Reply::Addresses(60)),
        "tc" => now(Reply::Truncated),
        "garbage" => now(Reply::Garbage),
        "wrongid" => now(Reply::WrongId),
        "elsewhere" => now(Reply::FromElsewhere),
        _ => now(Reply::Code(3)),
    }
}

impl Server {
    pub fn start(lab: &Lab) -> Server {
        Server::on_port(lab, 53)
    }

    pub fn on_port(lab: &Lab, port: u16) -> Server {
        let Sockets { udp, elsewhere, tcp } = inside(&lab.server(), move || Sockets {
            udp: [SERVER, SERVER_V6].map(|address| UdpSocket::bind((address, port)).unwrap()),
            elsewhere: UdpSocket::bind((ELSEWHERE, port)).unwrap(),
            tcp: TcpListener::bind(("::", port)).unwrap(),
        });
        tcp.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Mutex::new(HashMap::new()));
        let mut threads: Vec<JoinHandle<()>> = udp
            .into_iter()
            .map(|udp| {
                udp.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                let elsewhere = elsewhere.try_clone().unwrap();
                let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
                spawn(move || serve_udp(&udp, &elsewhere, &stop, &counts))
            })
            .collect();
        threads.push(spawn({
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            move || serve_tcp(&tcp, &stop, &counts)
        }));
        Server { stop, threads, counts }
    }

    /// How many queries came for a name and type.
    pub fn query_count(&self, name: &str, kind: u16) -> u32 {
        let counts = self.counts.lock().unwrap();
        counts.get(&(name.to_owned(), kind)).copied().unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

type QueryCounts = Mutex<HashMap<(String, u16), u32>>;

fn serve_udp(udp: &UdpSocket, elsewhere: &UdpSocket, stop: &AtomicBool, counts: &QueryCounts) {
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        let Ok((len, client)) = udp.recv_from(&mut buffer) else {
            continue;
        };
        let query = &buffer[..len];
        let Some(question) = Question::read(query) else {
            continue;
        };
        let Plan::Answer(delay, reply) = plan(&question.name, question.count(counts), false) else {
            continue;
        };
        let answer = answer(query, &question, &reply);
        match reply {
            Reply::FromElsewhere => {
                elsewhere.send_to(&answer, client).unwrap();
            }
            Reply::WrongId => {
                let mut wrong = answer.clone();
                wrong[1] ^= 0xff;
                udp.send_to(&wrong, client).unwrap();
                later(udp, client, answer, Duration::from_millis(200));
            }
            _ if delay.is_zero() => drop(udp.send_to(&answer, client)),
            _ => later(udp, client, answer, delay),
        }
    }
}

fn later(udp: &UdpSocket, client: SocketAddr, answer: Vec<u8>, delay: Duration) {
    let udp = udp.try_clone().unwrap();
    spawn(move || {
        sleep(delay);
        let _ = udp.send_to(&answer, client);
    });
}

fn serve_tcp(tcp: &TcpListener, stop: &AtomicBool, counts: &QueryCounts) {
    while !stop.load(Ordering::Relaxed) {
        match tcp.accept() {
            Ok((connection, _)) => drop(serve_connection(connection, counts)),
            Err(_) => sleep(Duration::from_millis(2)),
        }
    }
}

fn serve_connection(mut connection: TcpStream, counts: &QueryCounts) -> std::io::Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    connection.set_nodelay(true)?;
    loop {
        let mut prefix = [0; 2];
        connection.read_exact(&mut prefix)?;
        let mut query = vec![0; usize::from(u16::from_be_bytes(prefix))];
        connection.read_exact(&mut query)?;
        let Some(question) = Question::read(&query) else {
            continue;
        };
        let Plan::Answer(_, reply) = plan(&question.name, question.count(counts), true) else {
            continue;
        };
        let answer = answer(&query, &question, &reply);
        let len = u16::try_from(answer.len()).unwrap();
        let framed = [&len.to_be_bytes()[..], &answer].concat();
        // In two segments: what comes in pieces must be put together.
        let (front, back) = framed.split_at(framed.len() / 2);
        connection.write_all(front)?;
        sleep(Duration::from_millis(5));
        connection.write_all(back)?;
    }
}

struct Question {
    name: String,
    kind: u16,
    /// Behind the question.
    end: usize,
}

impl Question {
    fn read(query: &[u8]) -> Option<Question> {
        let mut at = 12;
        let mut labels = Vec::new();
        loop {
            let len = usize::from(*query.get(at)?);
            if len == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(query.get(at + 1..at + 1 + len)?).into_owned());
            at += 1 + len;
        }
        let kind = u16::from_be_bytes([*query.get(at + 1)?, *query.get(at + 2)?]);
        Some(Question {
            name: labels.join("."),
            kind,
            end: at + 5,
        })
    }

    fn count(&self, counts: &QueryCounts) -> u32 {
        let mut counts = counts.lock().unwrap();
        let times = counts.entry((self.name.clone(), self.kind)).or_default();
        *times += 1;
        *times - 1
    }
}

fn answer(query: &[u8], question: &Question, reply: &Reply) -> Vec<u8> {
    let (flags, records, extended): (u16, u8, bool) = match reply {
        Reply::Garbage => return b"\xde\xad\xbe\xef no answer at all".to_vec(),
        Reply::Addresses(count) => (0x8180, *count, false),
        Reply::WrongId | Reply::FromElsewhere => (0x8180, 1, false),
        Reply::Code(code) => (0x8180 | code, 0, false),
        Reply::Truncated => (0x8380, 0, false),
        Reply::ExtendedCode => (0x8180, 0, true),
    };
    // Only addresses are known.
    let records = if matches!(question.kind, 1 | 28) { records } else { 0 };
    let mut answer = query[..2].to_vec();
    answer.extend(flags.to_be_bytes());
    for count in [1, u16::from(records), 0, u16::from(extended)] {
        answer.extend(count.to_be_bytes());
    }
    answer.extend(&query[12..question.end]);
    for number in 0..records {
        answer.extend([0xc0, 12]);
        answer.extend(question.kind.to_be_bytes());
        answer.extend([0, 1, 0, 0, 0, 60]);
        match question.kind {
            1 => answer.extend([0, 4, 10, 153, 9, number]),
            _ => {
                answer.extend([0, 16, 0xfd, 0, 1, 0x53]);
                answer.extend([0; 11]);
                answer.push(number);
            }
        }
    }
    if extended {
        // BADVERS is 16: nothing in the header's four bits, 1 in the upper eight.
        answer.extend([0, 0, 41, 4, 208, 1, 0, 0, 0, 0, 0]);
    }
    answer
}
