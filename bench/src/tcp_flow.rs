//! Throughput of one TCP connection over a veth pair, with and without the agent, in pairs.
//!
//! Used by `dns_cost`: its hook sees every packet of every socket. Both ends in network namespaces made here and removed
//! again. What counts is the median of the ratios within the pairs, with the interval it is sure of.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::Effort;
use crate::add_overhead::agent;
use crate::report::{Figure, Unit, median, median_interval};

/// Measures.
pub fn run(effort: Effort) -> Result<Vec<Figure>> {
    let link = Link::make()?;
    let lasting = Duration::from_millis(effort.pick(1_000, 300));
    let mut ratios = Vec::new();
    let mut without = Vec::new();
    link.bytes_per_second(lasting)?;
    for pair in 0..effort.pick(PAIRS, 4) {
        let mut rates = [0.0; 2];
        for turn in [pair % 2, (pair + 1) % 2] {
            // Both halves begin alike, with an agent that starts.
            let agent = agent()?;
            if turn == 0 {
                agent.stop()?;
                std::thread::sleep(REST);
                rates[0] = link.bytes_per_second(lasting)?;
            } else {
                std::thread::sleep(REST);
                rates[1] = link.bytes_per_second(lasting)?;
                agent.stop()?;
            }
        }
        without.push(rates[0]);
        ratios.push((1.0 - rates[1] / rates[0]) * 100.0);
    }
    Ok(vec![
        Figure::new(
            "TCP throughput less with the agent, median",
            median(&ratios),
            Unit::Percent,
        )
        .at_most(LESS_PERCENT)
        .between(median_interval(&ratios))
        .remark(format!(
            "{:+.1} to {:+.1} % at 95 % confidence, {} pairs; {:.1} Gbit/s without; rung cgroup_skb",
            median_interval(&ratios).0,
            median_interval(&ratios).1,
            ratios.len(),
            median(&without) * 8.0 / 1e9
        )),
    ])
}

/// Two namespaces and the cable between them.
struct Link {
    ends: [String; 2],
}

impl Link {
    fn make() -> Result<Link> {
        let link = Link {
            ends: ["a", "b"].map(|end| format!("sgbench{}{end}", std::process::id())),
        };
        let [one, other] = &link.ends;
        for end in &link.ends {
            ip(&["netns", "add", end])?;
        }
        ip(&[
            "-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other,
        ])?;
        for (end, address) in [(one, ADDRESSES[0]), (other, ADDRESSES[1])] {
            ip(&["-n", end, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", end, "link", "set", "eth0", "up"])?;
        }
        Ok(link)
    }

    /// One connection, as fast as it goes.
    fn bytes_per_second(&self, lasting: Duration) -> Result<f64> {
        let listener = inside(&self.ends[1], || TcpListener::bind((ADDRESSES[1], 0)))??;
        let address = listener.local_addr()?;
        let receiver = std::thread::spawn(move || -> std::io::Result<u64> {
            let (mut connection, _) = listener.accept()?;
            let mut buffer = vec![0; BLOCK];
            let mut total = 0;
            loop {
                match connection.read(&mut buffer)? {
                    0 => return Ok(total),
                    len => total += len as u64,
                }
            }
        });
        let mut connection = inside(&self.ends[0], move || TcpStream::connect(address))??;
        let block = vec![7; BLOCK];
        let begin = Instant::now();
        while begin.elapsed() < lasting {
            connection.write_all(&block)?;
        }
        drop(connection);
        let total = receiver.join().map_err(|_| anyhow!("the receiver panicked"))??;
        Ok(total as f64 / begin.elapsed().as_secs_f64())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = ip(&["netns", "del", end]);
        }
    }
}

/// Runs `work` on a thread that lives in a namespace; a socket it makes stays there.
fn inside<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let namespace = File::open(format!("/run/netns/{namespace}"))?;
    let thread = std::thread::spawn(move || {
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).map(|()| work())
    });
    let outcome = thread.join().map_err(|_| anyhow!("the thread panicked"))?;
    outcome.context("cannot enter a network namespace")
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("cannot run ip")?;
    ensure!(
        output.status.success(),
        "ip {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

const ADDRESSES: [&str; 2] = ["10.154.0.1", "10.154.0.2"];
const BLOCK: usize = 128 << 10;
const PAIRS: u32 = 24;
const REST: Duration = Duration::from_millis(250);
const LESS_PERCENT: f64 = 1.0;
