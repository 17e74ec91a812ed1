//! A started source, the events that it emits, and its health.

use crate::app::settings::source_settings;
use crate::config::Config;
use crate::health::ProbeStatus;
use crate::sources::queue::{EventReceiver, channel as events_channel};

use super::super::status::label;
use super::super::*;

pub(super) struct Run {
    pub(super) source: Source,
    pub(super) events: EventReceiver,
    pub(super) health: Health,
}

/// Every key at its default.
pub(super) fn options() -> EtwOptions {
    EtwOptions::from_settings(source_settings(&Config::default())).unwrap()
}

pub(super) fn begin(options: EtwOptions, room: usize) -> Result<Run, Box<(EtwStartError, Health)>> {
    let health = Health::default();
    let (sender, events) = events_channel(room, health.queue_depth.clone());
    match start(options, sender, health.clone()) {
        Ok(source) => Ok(Run { source, events, health }),
        Err(error) => Err(Box::new((error, health))),
    }
}

/// One that has reported, before all else, that traffic is watched.
pub(super) fn running(options: EtwOptions, room: usize) -> Run {
    let run = begin(options, room).map_err(|refused| refused.0).unwrap();
    let watched = Body::TrafficWatched { node_netns: 1 };
    assert_eq!(run.take(1)[0].body, watched);
    run
}

impl Run {
    /// The next so many events.
    pub(super) fn take(&self, count: usize) -> Vec<Event> {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.events.receive(Duration::from_secs(10)).unwrap() {
                Some(event) => taken.push(event),
                None => panic!("{} of {count} events came: {taken:?}", taken.len()),
            }
        }
        taken
    }

    pub(super) fn probe(&self, name: &str) -> ProbeStatus {
        self.health
            .probes()
            .into_iter()
            .find(|probe| probe.probe == name)
            .unwrap()
    }

    pub(super) fn undecodable(&self) -> u64 {
        self.health.undecodable.get_or_create(&label()).get()
    }

    /// Everything that is still to come, after the end of the source.
    pub(super) fn stop(self) -> Vec<Event> {
        let Run { source, events, .. } = self;
        let rest = std::thread::spawn(move || {
            let mut rest = Vec::new();
            while let Ok(event) = events.receive(Duration::from_secs(10)) {
                rest.extend(event);
            }
            rest
        });
        source.stop();
        rest.join().unwrap()
    }
}
