//! Requests to the runtime to make a sandbox, as this machine's kernel shows them: this process is the runtime and its caller, and
//! reads and writes HTTP/2 in pieces of any length. What is reported is held against what was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use prost::Message as _;
use sandglass::app::settings::default_source;
use sandglass::cri::messages::{PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest};
use sandglass::sources::linux::LinuxOptions;
use sandglass_model::cri::{SandboxOutcome, SandboxRequest, SandboxResponse};
use sandglass_model::{Body, Event, Timestamp};

use crate::trust::{nobody, works};
use crate::watch::Watch;

/// A source that reads the socket at this path; `None` where this machine cannot.
fn watch(test: &str, socket: &Path) -> Option<Watch> {
    let options = LinuxOptions {
        cri_sockets: vec![socket.to_owned()],
        ..default_source().unwrap()
    };
    let watch = Watch::with(test, options)?;
    let status = watch.health.probes().into_iter().find(|probe| probe.probe == "cri");
    let status = status.unwrap();
    if !status.attached {
        eprintln!("SKIPPED {test}: {}", status.consequence);
        return None;
    }
    Some(watch)
}

const PYTHON: &str = "/usr/bin/python3";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
/// The kernel side needs so many bytes of a message at once.
const AT_ONCE: usize = 16;
/// The usual longest frame.
const FRAME_MAX: usize = 16_384;

fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(content.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(content);
    bytes
}

/// A message of gRPC.
fn grpc(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend(message);
    bytes
}

/// Request number `number`, with so many bytes that are not to be copied.
fn request(number: u32, more: usize) -> Vec<u8> {
    let request = RunPodSandboxRequest {
        config: Some(PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: format!("{}-{number}", "n".repeat(number as usize * 7 % 240 + 1)),
                uid: format!("uid-{number}"),
                namespace: "shop".to_owned(),
                attempt: number % 3,
            }),
            hostname: "h".repeat(more),
            ..PodSandboxConfig::default()
        }),
        runtime_handler: "runc".to_owned(),
    };
    grpc(&request.encode_to_vec())
}

/// A request that is none to make a sandbox; texts that look like one lie where a pod's author may put them.
fn other(number: u32) -> Vec<u8> {
    let mut message = vec![0x0a, 64];
    message.extend([b'a'; 64]);
    message.push(0x12);
    match number % 3 {
        0 => message.extend(request(900 + number, 100)),
        1 => message.extend([b'x'; 60_000]),
        // The second frame begins with it.
        _ => {
            message.resize(FRAME_MAX - 5, b'x');
            message.extend(request(900 + number, 100));
        }
    }
    grpc(&message)
}

/// Numbers that look random and are the same each time (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

/// Both ends of a connection to a listening socket.
fn connected(listener: &UnixListener, path: &Path) -> (UnixStream, UnixStream) {
    let client = UnixStream::connect(path).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Reads so many bytes in pieces. Returns where the pieces end.
fn read_in_pieces(server: &mut UnixStream, len: usize, mut piece: impl FnMut() -> usize) -> Vec<usize> {
    let mut room = vec![0; 65_536];
    let mut ends = vec![0];
    while ends[ends.len() - 1] < len {
        let got = server.read(&mut room[..piece()]).unwrap();
        assert!(got > 0);
        ends.push(ends[ends.len() - 1] + got);
    }
    ends
}

/// Whether a piece ends within these bytes.
fn is_cut(ends: &[usize], from: usize, len: usize) -> bool {
    ends.iter().any(|end| (from + 1..from + len).contains(end))
}

fn requests(events: &[Event]) -> Vec<(Timestamp, SandboxRequest)> {
    let of = |event: &Event| match &event.body {
        Body::SandboxRequested(request) => Some((event.at, (**request).clone())),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn responses(events: &[Event]) -> Vec<SandboxResponse> {
    let of = |event: &Event| match &event.body {
        Body::SandboxResponded(response) => Some((**response).clone()),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// What is counted otherwise in two tables.
fn differing<K: Ord + std::fmt::Debug>(found: &BTreeMap<K, usize>, wanted: &BTreeMap<K, usize>) -> Vec<String> {
    let keys: BTreeSet<&K> = found.keys().chain(wanted.keys()).collect();
    let differ = keys.into_iter().filter(|key| found.get(key) != wanted.get(key));
    differ
        .map(|key| format!("{key:?}: found {:?}, wanted {:?}", found.get(key), wanted.get(key)))
        .collect()
}

/// What a caller sends: requests to make sandboxes among others, each stream's frames mixed with those of the next one. With where
/// each request's message begins.
fn conversation(numbers: &mut Numbers, round: u32) -> (Vec<u8>, BTreeMap<u32, usize>) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0; 12]));
    let mut begins = BTreeMap::new();
    let mut rest: Vec<u8> = Vec::new();
    for stream in (1..240).step_by(2) {
        let number = round * 1_000 + stream / 2;
        let is_request = !number.is_multiple_of(3);
        let message = match is_request {
            true => request(number, [10, 700, 20_000][number as usize % 3]),
            false => other(number),
        };
        bytes.extend(frame(HEADERS, 4, stream, &vec![7; numbers.next(200)]));
        if numbers.next(4) == 0 {
            // The windows of both ends, and a ping.
            bytes.extend(frame(8, 0, 0, &[0, 0, 1, 0]));
            bytes.extend(frame(6, 0, 0, &[9; 8]));
        }
        if is_request {
            begins.insert(number, bytes.len() + 9);
        }
        let mut frames = message.chunks(FRAME_MAX).peekable();
        let mut is_first = true;
        while let Some(content) = frames.next() {
            let flags = if frames.peek().is_none() { END_STREAM } else { 0 };
            let to = if is_first { &mut bytes } else { &mut rest };
            to.extend(frame(DATA, flags, stream, content));
            is_first = false;
        }
        // What is left of the messages before comes behind the next one's begin.
        if numbers.next(3) == 0 {
            bytes.append(&mut rest);
        }
    }
    bytes.append(&mut rest);
    (bytes, begins)
}

#[test]
fn requests_are_read_in_pieces_of_any_length_and_nothing_else_is() {
    let test = "requests_are_read_in_pieces_of_any_length_and_nothing_else_is";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let Some(watch) = watch(test, &path) else { return };
    let mut numbers = Numbers(7);
    let (mut wanted, mut made) = (BTreeMap::new(), BTreeMap::new());
    for (round, longest) in (0..).zip([65_536, 32_768, 4_096, 900, 150]) {
        let (sent, begins) = conversation(&mut numbers, round);
        let (mut client, mut server) = connected(&listener, &path);
        let ends = std::thread::scope(|scope| {
            scope.spawn(|| client.write_all(&sent).unwrap());
            // The first one begins the connection, which has to be seen.
            let mut is_first = true;
            read_in_pieces(&mut server, sent.len(), || {
                let least = if std::mem::take(&mut is_first) { 4 } else { 1 };
                numbers.next(longest) + least
            })
        });
        let is_read = |begin: &usize| !is_cut(&ends, *begin, AT_ONCE);
        let read: Vec<u32> = begins
            .iter()
            .filter(|(_, begin)| is_read(begin))
            .map(|(number, _)| *number)
            .collect();
        assert!(
            longest < 200 || read.len() * 10 > begins.len() * 9,
            "{} of {}",
            read.len(),
            begins.len()
        );
        // Every response in frames of its own, some of them in one write.
        let mut written = Vec::new();
        let mut ids = BTreeMap::new();
        for number in begins.keys() {
            let stream = number % 1_000 * 2 + 1;
            let id = format!("{longest:032x}{number:032x}");
            let mut message = vec![0x0a, 64];
            message.extend(id.as_bytes());
            if number % 5 != 0 {
                written.extend(frame(HEADERS, 4, stream, &[3; 14]));
                ids.insert(*number, (id, written.len() + 9));
                written.extend(frame(DATA, 0, stream, &grpc(&message)));
            }
            written.extend(frame(HEADERS, 4 | END_STREAM, stream, &[3; 24]));
        }
        let mut cuts = vec![0];
        std::thread::scope(|scope| {
            scope.spawn(|| client.read_exact(&mut vec![0; written.len()]).unwrap());
            while cuts[cuts.len() - 1] < written.len() {
                let from = cuts[cuts.len() - 1];
                let piece = (numbers.next(longest) + 1).min(written.len() - from);
                cuts.push(from + server.write(&written[from..from + piece]).unwrap());
            }
        });
        for number in read {
            *wanted.entry(number).or_insert(0) += 1;
            let whole = ids.get(&number).filter(|(_, begin)| !is_cut(&cuts, *begin, 5 + 2 + 64));
            let outcome = if ids.contains_key(&number) {
                SandboxOutcome::Made
            } else {
                SandboxOutcome::Failed
            };
            let id = whole.map(|(id, _)| id.clone());
            *made.entry((number, format!("{outcome:?}"), id)).or_insert(0) += 1;
        }
    }
    let total: usize = wanted.values().sum();
    // What does not come is named below.
    for _ in 0..100 {
        if watch.wait("any event", |events| Some(responses(events).len())) >= total {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let events = watch.finish();
    let mut found = BTreeMap::new();
    let mut open = BTreeMap::new();
    for (at, request) in requests(&events) {
        let number: u32 = request.pod.uid["uid-".len()..].parse().unwrap();
        let name = format!("{}-{number}", "n".repeat(number as usize * 7 % 240 + 1));
        assert_eq!((request.pod.name, &*request.pod.namespace), (name, "shop"));
        assert_eq!((request.stream, request.attempt), (number % 1_000 * 2 + 1, number % 3));
        assert_eq!(request.runtime.pid, std::process::id());
        *found.entry(number).or_insert(0) += 1;
        assert_eq!(
            open.insert((at, request.stream), number),
            None,
            "one request is reported twice"
        );
    }
    assert_eq!(differing(&found, &wanted), Vec::<String>::new());
    let mut responded = BTreeMap::new();
    for response in responses(&events) {
        let number = open.remove(&(response.requested, response.stream)).unwrap();
        let id = response.sandbox.map(|id| id.0);
        *responded
            .entry((number, format!("{:?}", response.outcome), id))
            .or_insert(0) += 1;
    }
    assert_eq!(differing(&responded, &made), Vec::<String>::new());
    // Nothing of a request but its metadata is anywhere.
    let text = format!("{events:?}");
    assert!(!text.contains("hhhhhhhh") && !text.contains("xxxxxxxx"));
}

#[test]
fn a_withdrawn_request_and_another_socket_with_the_same_words() {
    let test = "a_withdrawn_request_and_another_socket_with_the_same_words";
    let folder = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (folder.path().join("cri.sock"), folder.path().join("other.sock"));
    let (listener, stranger) = (
        UnixListener::bind(&path).unwrap(),
        UnixListener::bind(&elsewhere).unwrap(),
    );
    let Some(watch) = watch(test, &path) else { return };
    let mut room = vec![0; 65_536];
    let sent = frame(DATA, END_STREAM, 1, &request(1, 10));
    for (listener, path) in [(&stranger, &elsewhere), (&listener, &path)] {
        // The connection is older than its first request: its begin was not seen.
        let (mut client, mut server) = connected(listener, path);
        client.write_all(&sent).unwrap();
        assert_eq!(server.read(&mut room).unwrap(), sent.len());
        client.write_all(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
        assert_eq!(server.read(&mut room).unwrap(), 13);
        // Too late.
        server.write_all(&frame(HEADERS, 4 | END_STREAM, 1, &[3; 24])).unwrap();
    }
    watch.wait("the response", |events| (!responses(events).is_empty()).then_some(()));
    let events = watch.finish();
    assert_eq!(requests(&events).len(), 1);
    let outcomes: Vec<SandboxOutcome> = responses(&events).iter().map(|response| response.outcome).collect();
    assert_eq!(outcomes, [SandboxOutcome::Withdrawn]);
}

/// A process that listens at `path`, reads what the first caller sends, and ends.
fn runtime(wrapper: &[&str], path: &Path) -> std::process::Child {
    const READ: &str = "import os, socket, sys\n\
        listener = socket.socket(socket.AF_UNIX)\n\
        listener.bind(sys.argv[1])\n\
        listener.listen()\n\
        print('listens', flush=True)\n\
        caller = listener.accept()[0]\n\
        while os.read(caller.fileno(), 65536): pass\n";
    let words = [wrapper, &[PYTHON, "-c", READ]].concat();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "listens\n");
    child
}

#[test]
fn a_process_that_could_be_no_runtime_is_not_believed() {
    let test = "a_process_that_could_be_no_runtime_is_not_believed";
    if !works(test, &nobody()) || !works(test, &[PYTHON, "-c", "pass"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let path: PathBuf = folder.path().join("cri.sock");
    // The agent takes the socket for the runtime's, whoever made it.
    let wrappers = [nobody(), vec!["nice"]];
    let mut children = Vec::new();
    let mut watched = None;
    for (number, wrapper) in (0..).zip(&wrappers) {
        let _ = std::fs::remove_file(&path);
        children.push(runtime(wrapper, &path));
        match &watched {
            None => watched = watch(test, &path),
            // It looks for the socket once a second.
            Some(_) => std::thread::sleep(Duration::from_millis(2_500)),
        }
        if watched.is_none() {
            break;
        }
        let mut client = UnixStream::connect(&path).unwrap();
        client
            .write_all(&frame(DATA, END_STREAM, 1, &request(number, 10)))
            .unwrap();
    }
    if let Some(watch) = watched {
        let of_trusted = |events: &[Event]| {
            requests(events)
                .into_iter()
                .find(|(_, request)| request.pod.uid == "uid-1")
        };
        watch.wait("the request to a trusted process", |events| {
            of_trusted(events).map(|_| ())
        });
        assert_eq!(requests(&watch.finish()).len(), 1);
    }
    for mut child in children {
        let _ = child.kill();
        child.wait().unwrap();
    }
}
