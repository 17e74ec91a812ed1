//! What the correlator makes of a test's events: the result of each lookup.
//!
//! Used by `dns_streams` and `dns_path`. Does not: run a pipeline; the events are sorted, and ticks follow them.

use sandglass_correlator::{Correlator, CorrelatorConfig, Finding, Output};
use sandglass_model::trace::LookupResult;
use sandglass_model::{Body, Event, Timestamp};

/// The result of each lookup, by name. No lookup that was answered, or whose result is not known, blames its server.
pub fn results(events: &[Event]) -> Vec<(String, LookupResult)> {
    let mut correlator = Correlator::new(CorrelatorConfig::default());
    let mut ordered: Vec<&Event> = events.iter().collect();
    ordered.sort_by_key(|event| event.at);
    for event in &ordered {
        correlator.handle((*event).clone());
    }
    let end = ordered.last().map_or(Timestamp(0), |event| event.at);
    for second in 1..20 {
        correlator.handle(Event {
            at: end.plus(second * 1_000_000_000),
            body: Body::Tick,
        });
    }
    let outputs = correlator.drain();
    let lookups = outputs.into_iter().filter_map(|output| match output {
        Output::Finding(Finding::Lookup(lookup)) => {
            let result = lookup.detail.result.unwrap();
            if let Some(cause) = &lookup.detail.cause {
                let blames = result == LookupResult::Unanswered || cause.cause != "dns_server_silent";
                assert!(blames, "{}: {cause:?}", lookup.detail.name);
            }
            Some((lookup.detail.name, result))
        }
        _ => None,
    });
    lookups.collect()
}
