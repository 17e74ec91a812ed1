//! tshark on the pod's interface: an independent eye on the same packets.
//!
//! Does not: agree with anything by construction: it captures with libpcap and reads DNS with Wireshark's dissector.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use sandglass::sources::clock;
use sandglass_model::ClockAnchor;

use super::watch::Seen;
use super::{Lab, has};

/// A running capture.
pub struct Oracle {
    capture: Child,
    file: PathBuf,
    directory: tempfile::TempDir,
    anchor: ClockAnchor,
}

/// A finished capture.
pub struct Capture {
    pub file: PathBuf,
    _directory: tempfile::TempDir,
}

/// One message as tshark reads it.
#[derive(Clone, Debug)]
pub struct Witnessed {
    pub unix_ns: u64,
    pub id: u16,
    pub answer: bool,
    pub name: String,
    pub kind: u16,
    pub tcp: bool,
    pub client_port: u16,
    pub rcode: u16,
}

impl Oracle {
    /// Starts to capture; `None` with a `SKIPPED` line without tshark.
    pub fn start(test: &str, lab: &Lab) -> Option<Oracle> {
        if !has(test, "tshark") || !has(test, "dumpcap") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("capture.pcapng");
        let path = file.to_string_lossy().into_owned();
        let program = ["dumpcap", "-q", "-i", "eth0", "-f", "port 53", "-w", &path];
        let mut capture = lab
            .command(&lab.pod(), &program)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(capture.stderr.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.starts_with("File:")), "dumpcap does not begin");
        // It is not to block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Oracle {
            capture,
            file,
            directory,
            anchor: clock::anchor(),
        })
    }

    /// Ends the capture; the file is there as long as the result.
    pub fn stop(mut self) -> Capture {
        self.end();
        Capture {
            file: self.file,
            _directory: self.directory,
        }
    }

    fn end(&mut self) {
        // What is on its way to the file.
        std::thread::sleep(std::time::Duration::from_millis(700));
        let pid = rustix::process::Pid::from_child(&self.capture);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.capture.wait().unwrap();
    }

    /// Ends the capture and reads it.
    pub fn finish(mut self) -> Vec<Witnessed> {
        self.end();
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&self.file).args([
            "-Y",
            "dns",
            "-T",
            "fields",
            "-E",
            "separator=|",
            "-E",
            "occurrence=a",
        ]);
        for field in [
            "frame.time_epoch",
            "dns.id",
            "dns.flags.response",
            "dns.qry.name",
            "dns.qry.type",
            "ip.proto",
            "udp.srcport",
            "udp.dstport",
            "tcp.srcport",
            "tcp.dstport",
            "dns.flags.rcode",
            "ipv6.nxt",
        ] {
            command.args(["-e", field]);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().flat_map(messages).collect()
    }

    /// Compares: the same messages, and the same time between a query and its answer. Returns the differences of latencies.
    pub fn agrees(self, seen: &[Seen]) -> Vec<u64> {
        let anchor = self.anchor;
        let witnessed = self.finish();
        let key = |id: u16, answer: bool, port: u16, kind: u16, tcp: bool, name: &str| {
            (id, answer, port, kind, tcp, name.to_ascii_lowercase())
        };
        let mut ours: Vec<_> = seen
            .iter()
            .map(|seen| {
                let message = &seen.message;
                let tcp = message.transport == sandglass_model::network::Transport::Tcp;
                let key = key(
                    message.id,
                    seen.is_answer(),
                    message.client.port(),
                    seen.kind(),
                    tcp,
                    seen.name(),
                );
                (key, anchor.unix_ns(seen.at))
            })
            .collect();
        let mut theirs: Vec<_> = witnessed
            .iter()
            .map(|one| {
                (
                    key(one.id, one.answer, one.client_port, one.kind, one.tcp, &one.name),
                    one.unix_ns,
                )
            })
            .collect();
        ours.sort();
        theirs.sort();
        let keys = |list: &[Keyed]| -> Vec<_> { list.iter().map(|(key, _)| key.clone()).collect() };
        assert_eq!(keys(&ours), keys(&theirs), "the same messages");
        for (mine, other) in seen.iter().filter(|seen| seen.is_answer()).filter_map(|seen| {
            let rcode = seen.message.answer.as_ref()?.rcode & 15;
            let other = witnessed
                .iter()
                .find(|one| one.answer && one.id == seen.message.id && one.client_port == seen.message.client.port())?;
            Some((rcode, other.rcode))
        }) {
            assert_eq!(mine, other, "the same codes");
        }
        latencies(&ours)
            .iter()
            .zip(latencies(&theirs))
            .map(|(mine, other)| mine.abs_diff(other))
            .collect()
    }
}

type Keyed = ((u16, bool, u16, u16, bool, String), u64);

/// From each answered query to its answer, in the order of their keys.
fn latencies(messages: &[Keyed]) -> Vec<u64> {
    let answers: Vec<&Keyed> = messages.iter().filter(|((_, answer, ..), _)| *answer).collect();
    let of = |answer: &&Keyed| {
        let ((id, _, port, kind, tcp, name), at) = answer;
        let query = messages
            .iter()
            .filter(|((i, a, p, k, t, n), _)| !a && (i, p, k, t, n) == (id, port, kind, tcp, name))
            .map(|(_, at)| *at)
            .rfind(|query| query <= at)?;
        Some(at - query)
    };
    answers.iter().filter_map(of).collect()
}

/// The messages of one line: a TCP segment may hold several.
fn messages(line: &str) -> Vec<Witnessed> {
    let fields: Vec<&str> = line.split('|').collect();
    let &[
        time,
        ids,
        answers,
        names,
        kinds,
        _,
        udp_from,
        udp_to,
        tcp_from,
        tcp_to,
        rcodes,
        _,
    ] = &fields[..]
    else {
        return Vec::new();
    };
    let (seconds, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let unix_ns = seconds.parse::<u64>().unwrap_or(0) * 1_000_000_000
        + format!("{fraction:0<9}")[..9].parse::<u64>().unwrap_or(0);
    let tcp = !tcp_from.is_empty();
    let (from, to) = if tcp { (tcp_from, tcp_to) } else { (udp_from, udp_to) };
    let port = |text: &str| {
        text.split(',')
            .next()
            .and_then(|port| port.parse::<u16>().ok())
            .unwrap_or(0)
    };
    let nth = |list: &str, n: usize| list.split(',').nth(n).unwrap_or_default().to_owned();
    let is_true = |text: &str| matches!(text, "1" | "True" | "true");
    let mut rcode = 0;
    ids.split(',')
        .enumerate()
        .map(|(n, id)| {
            let answer = is_true(&nth(answers, n));
            let one = Witnessed {
                unix_ns,
                id: u16::from_str_radix(id.trim_start_matches("0x"), 16).unwrap_or(0),
                answer,
                name: nth(names, n),
                kind: nth(kinds, n).parse().unwrap_or(0),
                tcp,
                client_port: if port(to) == 53 { port(from) } else { port(to) },
                rcode: nth(rcodes, rcode).parse().unwrap_or(0),
            };
            rcode += usize::from(answer);
            one
        })
        .collect()
}
