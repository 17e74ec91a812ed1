//! What came of a simulation, as figures: bytes, processor time, losses, series.
//!
//! Used by the fleet. Does not: compare simulations.

use super::course::Took;
use super::players::{Account, Made};
use super::{AGENTS, AWAY, SANDBOX_EVERY};
use crate::report::{Figure, Unit};

/// What came of a simulation.
pub struct Outturn {
    /// Number of agents.
    pub agents: usize,
    /// Their policy.
    pub sampling: &'static str,
    /// The peak.
    pub peak: Took,
    /// The rollout, in which the gateway restarts.
    pub rollout: Option<Took>,
    /// The makers' list.
    pub made: Made,
    /// What the sinks counted.
    pub account: Account,
    /// Bad traces that did not reach the list with all of their spans.
    pub missing: usize,
    /// Of the newest bad traces, those that Jaeger does not show whole.
    pub missing_in_jaeger: usize,
    /// How many were looked up there.
    pub looked_up: usize,
    /// What the ledger counted.
    pub list: ListFigures,
}

/// What the ledger counted.
pub struct ListFigures {
    /// Traces.
    pub traces: usize,
    /// Spans that had arrived before.
    pub duplicates: u64,
    /// Requests that are no OTLP.
    pub undecodable: u64,
    /// Series of span metrics.
    pub series: usize,
    /// Bytes of requests with them.
    pub metric_bytes: u64,
    /// Spans that they count.
    pub calls: u64,
    /// Starts of a counter.
    pub starts: f64,
}

impl Outturn {
    /// Bytes that agents sent for each sandbox and its deletions.
    pub fn bytes_per_sandbox(&self) -> f64 {
        self.account.sent_bytes / self.made.sandboxes as f64
    }

    /// All figures.
    pub fn figures(&self) -> Vec<Figure> {
        let minute = self.bytes_per_sandbox() * 60.0 / SANDBOX_EVERY.as_secs_f64();
        let bytes = self
            .figure("bytes of an agent a minute, 30 sandboxes", minute, Unit::Bytes)
            .remark(format!(
                "compressed; {:.0} bytes a sandbox; {} retries",
                self.bytes_per_sandbox(),
                self.account.retries
            ));
        let mut figures = vec![bytes, self.peak_figure()];
        figures.extend(self.rollout_figure());
        figures.extend(self.losses());
        figures.extend(self.span_metrics());
        figures
    }

    fn figure(&self, what: &str, value: f64, unit: Unit) -> Figure {
        let name = format!("{what}, {} agents, {}", self.agents, self.sampling);
        Figure::new(name, value, unit)
    }

    /// Percent of a processor, for as many nodes as a fleet has: processor time is for each of them.
    fn gateway_percent(&self, took: &Took) -> f64 {
        let processors = took.used.gateway.as_secs_f64() / took.simulated.as_secs_f64();
        processors * 100.0 * AGENTS as f64 / self.agents as f64
    }

    fn peak_figure(&self) -> Figure {
        let (peak, used) = (&self.peak, &self.peak.used);
        let figure = self.figure(
            "processor of the gateway for 5,000 nodes at the peak",
            self.gateway_percent(peak),
            Unit::Percent,
        );
        let figure = figure.remark(format!(
            "of one core; {}; {:.1} us a sandbox; the Jaeger behind it {:.1} us; {:.0} MB resident",
            course(peak),
            used.gateway.as_secs_f64() * 1e6 / peak.sandboxes as f64,
            used.back_end.as_secs_f64() * 1e6 / peak.sandboxes as f64,
            used.gateway_bytes / 1e6
        ));
        match self.rollout {
            Some(_) => figure.at_most(GATEWAY_PERCENT),
            None => figure,
        }
    }

    fn rollout_figure(&self) -> Option<Figure> {
        let rollout = self.rollout.as_ref()?;
        let percent = self.gateway_percent(rollout);
        let figure = self.figure(
            "processor of the gateway for 5,000 nodes in the rollout",
            percent,
            Unit::Percent,
        );
        Some(figure.remark(format!(
            "of one core; {}; away for {} s of it",
            course(rollout),
            AWAY.as_secs()
        )))
    }

    fn losses(&self) -> [Figure; 3] {
        let (account, list) = (&self.account, &self.list);
        let missing = self.figure(
            "bad traces that did not reach the back end",
            self.missing as f64,
            Unit::Count,
        );
        let in_jaeger = self.figure(
            "the newest bad traces that Jaeger does not show",
            self.missing_in_jaeger as f64,
            Unit::Count,
        );
        let wrong = self.figure(
            "agents whose account does not add up",
            account.wrong as f64,
            Unit::Count,
        );
        [
            missing.at_most(0.0).remark(format!(
                "of {} by the makers' list; {} duplicate spans with the same ids; {} traces on the list, {} undecodable",
                self.made.bad.len(),
                list.duplicates,
                list.traces,
                list.undecodable
            )),
            in_jaeger.at_most(0.0).remark(format!("of {}", self.looked_up)),
            wrong.at_most(0.0).remark(format!(
                "of {} spans: {} delivered, {} sampled out, {} waiting, {} dropped by a named counter, {} past a spool",
                self.made.spans,
                account.delivered,
                account.sampled_out,
                account.waiting,
                account.dropped,
                account.fallback
            )),
        ]
    }

    fn span_metrics(&self) -> Vec<Figure> {
        let list = &self.list;
        let restarts = if self.rollout.is_some() { 1.0 } else { 0.0 };
        let mut figures = vec![
            self.figure(
                "series of the gateway's span metrics, per agent",
                list.series as f64 / self.agents as f64,
                Unit::Count,
            )
            .at_most(SPAN_SERIES)
            .remark(format!(
                "{} in all; {:.0} MB of metrics in the whole course, not compressed",
                list.series,
                list.metric_bytes as f64 / 1e6
            )),
            self.figure("starts of a counter of the span metrics", list.starts, Unit::Count)
                .at_most(1.0 + restarts)
                .remark("mean; one more than restarts of the gateway at most"),
        ];
        if self.rollout.is_none() {
            let uncounted = self.account.delivered.saturating_sub(list.calls);
            figures.push(
                self.figure(
                    "spans that the span metrics do not count",
                    uncounted as f64,
                    Unit::Count,
                )
                .at_most(0.0)
                .remark(format!("of {}", self.account.delivered)),
            );
        }
        figures
    }
}

/// How much was played in which time.
fn course(took: &Took) -> String {
    format!(
        "{} sandboxes in {:.0} s of simulated time, {:.3} of real time each",
        took.sandboxes,
        took.simulated.as_secs_f64(),
        took.real.as_secs_f64() / took.simulated.as_secs_f64()
    )
}

const GATEWAY_PERCENT: f64 = 100.0;
/// Names of spans times results of a node.
const SPAN_SERIES: f64 = 200.0;
