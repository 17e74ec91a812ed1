//! Throughput of the `.etl` reader on one core, from buffer to decoded event.
//!
//! A synthetic session of a busy node: HNS activities, DNS, TCPIP and process events over four processors, with schema
//! records in the file; uncompressed and compressed. Bytes are those of the records after decompression. Time is
//! the thread's own processor time. Each pass also counts the events that come out.
//! Does not: include reading from a disk; the file lies in memory.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use sandglass_etw::event::Value;
use sandglass_etw::writer::{EtlWriter, Record, Session};
use sandglass_etw::{Decoder, EtlEvents, Guid, RawRecord, ReadOptions, Tables};

use crate::Effort;
use crate::report::{Figure, Outcome, Unit, median, quantile};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let rounds = effort.pick(80_000, 8_000);
    let passes = effort.pick(5, 2);
    let tables = Arc::new(Tables::built_in());
    let mut figures = Vec::new();
    for (name, compressed) in [("as written", false), ("compressed", true)] {
        let file = file(&tables, rounds, compressed)?;
        let speeds: Vec<f64> = (0..passes)
            .map(|_| pass(&tables, &file, rounds))
            .collect::<Result<_>>()?;
        let remark = format!(
            "{} events, {} MB of file, {passes} passes {:.0} to {:.0} MB/s",
            rounds * EVENTS_PER_ROUND,
            file.len() / 1_000_000,
            quantile(&speeds, 0.0) / 1e6,
            quantile(&speeds, 1.0) / 1e6
        );
        let figure = Figure::new(
            format!("bytes/s of .etl records, {name}"),
            median(&speeds),
            Unit::PerSecond,
        )
        .remark(remark)
        .at_least(BYTES_PER_SECOND);
        figures.push(figure);
    }
    Ok(Outcome::Figures(figures))
}

fn pass(tables: &Arc<Tables>, file: &[u8], rounds: u64) -> Result<f64> {
    let begin = thread_time();
    let decoder = Decoder::new(tables.clone());
    let mut events = EtlEvents::new(Cursor::new(file), ReadOptions::default(), decoder)?;
    let mut count = 0;
    while events.next_event()?.is_some() {
        count += 1;
    }
    let busy = thread_time().saturating_sub(begin);
    ensure!(
        count == rounds * EVENTS_PER_ROUND && events.statistics().late == 0,
        "{count} events of {} came out, {} of them late",
        rounds * EVENTS_PER_ROUND,
        events.statistics().late
    );
    Ok(events.statistics().record_bytes as f64 / busy.as_secs_f64())
}

fn file(tables: &Arc<Tables>, rounds: u64, compressed: bool) -> Result<Vec<u8>> {
    let session = Session {
        compressed,
        ..Session::default()
    };
    let mut writer = EtlWriter::new(session).with_schemas(tables.clone());
    for round in 0..rounds {
        for record in records(tables, round).context("the tables lack an event")? {
            writer.push(record);
        }
    }
    Ok(writer.finish())
}

/// The records of one pod, of each provider.
fn records(tables: &Tables, round: u64) -> Option<[RawRecord; EVENTS_PER_ROUND as usize]> {
    let at = |step: u64| Session::default().started_ns + (round * EVENTS_PER_ROUND + step) * 1000;
    let cpu = (round % 4) as u16;
    let activity = Guid(u128::from(round) + 1);
    let hns = || {
        Record::tracelogging(HNS, "Microsoft.Windows.HNS", "EndpointActivity")
            .process_id(2000)
            .thread_id(7)
    };
    let dns = |id| Record::manifest(tables, "Microsoft-Windows-DNS-Client", id, 0);
    let name = format!("service-{round}.shop.svc.cluster.local");
    let command_line = format!(r"C:\opt\cni\bin\sdnbridge.exe --round {round}");
    let address = Value::SocketAddr(([10, 0, (round >> 8) as u8, round as u8], 443).into());
    Some([
        hns()
            .activity(activity)
            .guid("endpointId", activity)
            .wil_start()
            .cpu(cpu)
            .at(at(0))
            .build(),
        dns(3006)?
            .text("QueryName", &name)
            .u32("QueryType", 1)
            .cpu(cpu ^ 1)
            .at(at(1))
            .build(),
        Record::process(tables, 1, round as u32, 4, "sdnbridge.exe", &command_line)?
            .cpu(cpu)
            .at(at(2))
            .build(),
        Record::manifest(tables, "Microsoft-Windows-TCPIP", 1033, 1)?
            .value("LocalAddress", address.clone())
            .value("RemoteAddress", address)
            .cpu(cpu ^ 2)
            .at(at(3))
            .build(),
        dns(3008)?
            .text("QueryName", &name)
            .text("QueryResults", "10.0.0.1;")
            .cpu(cpu)
            .at(at(4))
            .build(),
        hns().activity(activity).wil_stop(0).cpu(cpu ^ 3).at(at(5)).build(),
    ])
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

const HNS: Guid = Guid::literal("0c885e0d-6eb6-476c-a048-2457eed3a5c1");
const EVENTS_PER_ROUND: u64 = 6;
/// A gigabyte from a busy node in five seconds.
const BYTES_PER_SECOND: f64 = 200e6;
