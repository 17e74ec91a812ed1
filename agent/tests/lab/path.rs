//! A path between the lab's pod and its server that loses, delays, repeats and reorders packets.
//!
//! A TUN device in each of both namespaces, and a thread that carries IP packets from one to the other: the kernel needs no
//! netem. Without `IFF_VNET_HDR` the kernel computes checksums and cuts segments before the thread reads them
//! (`drivers/net/tun.c`, `tun_put_user`, as in Linux 6.18), so each packet is what a wire would carry. What befalls a packet
//! is a function of the test; one that draws from a seed draws the same numbers each time, while the packets themselves
//! follow from the kernel's timing. Used by `dns_path`. Does not: read DNS.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::random::Random;
use super::{Lab, POD, SERVER, inside, ip};

/// A running path; its devices go with it.
pub struct Path {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<Counts>,
}

/// What a path has done so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Packets that arrived, copies included.
    pub arrived: AtomicU64,
    /// Packets of which no copy was passed on.
    pub lost: AtomicU64,
    /// Packets that arrived after one that was sent later.
    pub overtaken: AtomicU64,
}

/// A packet, before it is decided what befalls it.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// From the server to the pod.
    pub to_pod: bool,
    /// Bytes behind its TCP or UDP header.
    pub payload: usize,
}

/// When each copy of a packet arrives, from when it was sent; none is a loss.
pub type Copies = Vec<Duration>;

impl Path {
    /// Joins the lab's pod and server; `fate` decides about each packet. `None` with a `SKIPPED` line where that is not
    /// possible.
    pub fn join(
        test: &str,
        lab: &Lab,
        mtu: u32,
        mut fate: impl FnMut(&Packet) -> Copies + Send + 'static,
    ) -> Option<Path> {
        let device = |namespace: &str| inside(namespace, || tun(DEVICE));
        let ends = match (device(&lab.pod()), device(&lab.server())) {
            (Ok(pod), Ok(server)) => [pod, server],
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("SKIPPED {test}: no TUN device can be made: {error}");
                return None;
            }
        };
        for (namespace, address, other) in [(lab.pod(), POD, SERVER), (lab.server(), SERVER, POD)] {
            let mtu = mtu.to_string();
            // A long queue: what is lost is lost on purpose.
            ip(&[
                "-n",
                &namespace,
                "link",
                "set",
                DEVICE,
                "mtu",
                &mtu,
                "txqueuelen",
                "10000",
                "up",
            ])
            .unwrap();
            ip(&["-n", &namespace, "addr", "add", &format!("{address}/32"), "dev", DEVICE]).unwrap();
            // TCP's least retransmission timeout is 200 ms, which a test with many losses would spend waiting.
            ip(&[
                "-n", &namespace, "route", "add", other, "dev", DEVICE, "rto_min", "20ms",
            ])
            .unwrap();
        }
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let thread = std::thread::spawn({
            let (stop, counts) = (Arc::clone(&stop), Arc::clone(&counts));
            move || carry(ends, &stop, &counts, &mut fate)
        });
        Some(Path {
            stop,
            thread: Some(thread),
            counts,
        })
    }

    /// What it has done so far: packets that arrived, that were lost, that were overtaken.
    pub fn counts(&self) -> [u64; 3] {
        let counts = &self.counts;
        [&counts.arrived, &counts.lost, &counts.overtaken].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Loss, reordering and repetition that follow from a seed.
pub struct Trouble {
    pub seed: u64,
    /// Shares in percent.
    pub lost: u64,
    pub repeated: u64,
    /// Each packet takes this and up to so much more.
    pub delay: Duration,
    pub jitter: Duration,
}

impl Trouble {
    pub fn fate(self) -> impl FnMut(&Packet) -> Copies + Send + 'static {
        let mut random = Random::new(self.seed);
        move |_| {
            let jitter = u64::try_from(self.jitter.as_nanos()).unwrap().max(1);
            let mut copy = || self.delay + Duration::from_nanos(random.below(jitter));
            let mut copies = vec![copy(), copy()];
            let drawn = random.below(100);
            copies.truncate(match drawn {
                _ if drawn < self.lost => 0,
                _ if drawn < self.lost + self.repeated => 2,
                _ => 1,
            });
            copies
        }
    }
}

/// A packet on its way: when it arrives, its number in the order of sending, to which end, its bytes.
type OnItsWay = Reverse<(Instant, u64, usize, Vec<u8>)>;

fn carry(mut ends: [File; 2], stop: &AtomicBool, counts: &Counts, fate: &mut dyn FnMut(&Packet) -> Copies) {
    let mut on_its_way: BinaryHeap<OnItsWay> = BinaryHeap::new();
    let (mut sent, mut newest, mut buffer) = (0_u64, [0_u64; 2], vec![0; 1 << 16]);
    while !stop.load(Ordering::Relaxed) {
        let due = on_its_way.peek().map(|Reverse((due, ..))| *due);
        let wait = due.map_or(LONGEST_WAIT, |due| {
            due.saturating_duration_since(Instant::now()).min(LONGEST_WAIT)
        });
        let mut polled = [&ends[0], &ends[1]].map(|end| PollFd::new(end, PollFlags::IN));
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        // An interruption is as good as a timeout.
        let _ = poll(&mut polled, Some(&timeout));
        for (from, to) in [(0, 1), (1, 0)] {
            while let Ok(len) = ends[from].read(&mut buffer) {
                let packet = Packet {
                    to_pod: to == 0,
                    payload: payload(&buffer[..len]),
                };
                sent += 1;
                let copies = fate(&packet);
                if copies.is_empty() {
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                }
                for delay in copies {
                    on_its_way.push(Reverse((Instant::now() + delay, sent, to, buffer[..len].to_vec())));
                }
            }
        }
        while on_its_way
            .peek()
            .is_some_and(|Reverse((due, ..))| *due <= Instant::now())
        {
            let Some(Reverse((_, number, to, bytes))) = on_its_way.pop() else {
                break;
            };
            // A device that takes no more loses the packet, as a wire does.
            let arrived = ends[to].write(&bytes).is_ok();
            let count = if arrived { &counts.arrived } else { &counts.lost };
            count.fetch_add(1, Ordering::Relaxed);
            if number < newest[to] {
                counts.overtaken.fetch_add(1, Ordering::Relaxed);
            }
            newest[to] = newest[to].max(number);
        }
    }
}

/// Length of what a packet of IPv4 carries behind its TCP or UDP header; 0 for anything else.
fn payload(packet: &[u8]) -> usize {
    let header = usize::from(packet[0] & 15) * 4;
    let inner = match (packet[0] >> 4, packet.get(9)) {
        (4, Some(6)) => packet.get(header + 12).map(|offset| usize::from(offset >> 4) * 4),
        (4, Some(17)) => Some(8),
        _ => None,
    };
    inner.map_or(0, |inner| packet.len().saturating_sub(header + inner))
}

/// A TUN device in this thread's network namespace; it goes when the file is closed.
fn tun(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: all zeros is a value of this struct of C.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_TUN | libc::IFF_NO_PI).unwrap();
    // SAFETY: the descriptor is open, and the request lives through the call.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    match outcome {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Its name in both namespaces, as a pod's.
const DEVICE: &str = "eth0";
const LONGEST_WAIT: Duration = Duration::from_millis(50);
