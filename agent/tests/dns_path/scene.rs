//! A client and a server in namespaces of their own, the path between them, and what the agent observes of it.
//!
//! Used by the tests of this binary. Does not: send anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sandglass::app::settings::default_source;
use sandglass::sources::linux::LinuxOptions;
use sandglass_model::Body;
use sandglass_model::network::Unreported;
use sandglass_model::trace::LookupResult;

use crate::lab::Lab;
use crate::lab::oracle::Oracle;
use crate::lab::path::{Packet, Path};
use crate::lab::results::results;
use crate::lab::tshark::{self, Read};
use crate::lab::watch::{Seen, Watch, dns_events};

/// What is observed, and the path. The path goes first: what it holds back is not to arrive anywhere.
pub(crate) struct Scene {
    pub(crate) path: Path,
    pub(crate) watch: Watch,
    pub(crate) lab: Lab,
}

impl Scene {
    pub(crate) fn start(
        test: &str,
        mtu: u32,
        fate: impl FnMut(&Packet) -> Vec<Duration> + Send + 'static,
    ) -> Option<Scene> {
        Scene::with(test, mtu, default_source().unwrap(), fate)
    }

    pub(crate) fn with(
        test: &str,
        mtu: u32,
        options: LinuxOptions,
        fate: impl FnMut(&Packet) -> Vec<Duration> + Send + 'static,
    ) -> Option<Scene> {
        let lab = Lab::apart(test)?;
        let path = Path::join(test, &lab, mtu, fate)?;
        let options = LinuxOptions {
            node_netns: Some(format!("/run/netns/{}", lab.node()).into()),
            ..options
        };
        let watch = Watch::with(test, &lab, options)?;
        lab.announce_pod();
        Some(Scene { path, watch, lab })
    }

    /// The pod's messages and the counts by reason, once there are so many events of both kinds, or records were lost.
    pub(crate) fn observed(&self, events: usize) -> (Vec<Seen>, BTreeMap<Unreported, u64>) {
        let pod = self.lab.inode(&self.lab.pod());
        let enough = |all: &[_]| (dns_events(all, pod) >= events).then_some(());
        let begin = Instant::now();
        while self.watch.wait_for(Duration::from_secs(2), enough).is_none() {
            if self.watch.lost() > 0 || begin.elapsed() > Duration::from_secs(20) {
                break;
            }
        }
        // Nothing more comes.
        let seen = self.watch.settled();
        let mut counted = BTreeMap::new();
        for event in self.watch.of_lab() {
            if let Body::DnsUnreported(unreported) = event.body
                && unreported.netns == pod
                // None: bytes are missing that may still come.
                && unreported.count > 0
            {
                *counted.entry(unreported.reason).or_default() += unreported.count;
            }
        }
        (seen, counted)
    }

    /// The result of each lookup, by name.
    pub(crate) fn results(&self) -> BTreeMap<String, LookupResult> {
        let all = results(&self.watch.of_lab());
        let by_name: BTreeMap<String, LookupResult> = all.iter().cloned().collect();
        assert_eq!(by_name.len(), all.len(), "two lookups of one name");
        by_name
    }
}

/// What was made: each message by its connection's port, id and direction, with its length on the wire.
pub(crate) type Made = BTreeMap<(u16, u16, bool), usize>;

pub(crate) fn made(made: &mut Made, port: u16, message: &[u8]) {
    let id = u16::from_be_bytes([message[0], message[1]]);
    let before = made.insert((port, id, message[2] & 0x80 != 0), 2 + message.len());
    assert!(before.is_none(), "an id twice");
}

/// Every message was seen, once; whatever is missing is among the records that were lost, and counted as bytes not seen.
/// All lookups have this result, or, where records were lost, none.
pub(crate) fn assert_seen(scene: &Scene, made: &Made) {
    let (seen, counted) = scene.observed(made.len());
    let lost = scene.watch.lost();
    let mut once = BTreeSet::new();
    for one in &seen {
        let key = (one.message.client.port(), one.message.id, one.is_answer());
        assert!(made.contains_key(&key), "nobody sent {one:?}");
        assert!(once.insert(key), "seen twice: {one:?}");
    }
    let missing: Vec<_> = made.iter().filter(|(key, _)| !once.contains(key)).collect();
    let bytes: u64 = missing.iter().map(|(_, len)| **len as u64).sum();
    let unseen = counted.get(&Unreported::Unseen).copied().unwrap_or(0);
    eprintln!(
        "{} made, {} seen, {} missing of {bytes} bytes, {unseen} bytes counted as not seen, {lost} records lost; path: {:?}",
        made.len(),
        seen.len(),
        missing.len(),
        scene.path.counts()
    );
    assert!(
        missing.is_empty() || lost > 0,
        "missing: {:?}",
        &missing[..missing.len().min(20)]
    );
    assert!(counted.is_empty() || lost > 0, "{counted:?}");
    // A loss at a connection's very end shows in the count of lost records only.
    assert!(unseen <= bytes, "more bytes are counted as not seen than are missing");
    let results = scene.results();
    let queries = made.keys().filter(|(.., is_answer)| !is_answer).count();
    assert!(
        results.len() == queries || lost > 0,
        "{} lookups of {queries}",
        results.len()
    );
    for (name, result) in results {
        let unknown = result == LookupResult::Unknown && lost > 0;
        assert!(
            result == LookupResult::Rcode(0) || unknown,
            "{name}: {result:?}, {lost} lost"
        );
    }
}

/// tshark reads the same of the packets at the pod's device.
pub(crate) fn assert_as_tshark(scene: &Scene, oracle: Option<Oracle>) {
    let Some(oracle) = oracle else { return };
    let capture = oracle.stop();
    let untimed = |mut read: Read| {
        read.at_ns = 0;
        read
    };
    let mut theirs: Vec<Read> = tshark::reported(tshark::read(&capture.file)).map(untimed).collect();
    let seen = scene.watch.settled();
    let mut ours: Vec<Read> = seen
        .iter()
        .map(|seen| untimed(Read::of(seen.at, &seen.message)))
        .collect();
    theirs.sort();
    ours.sort();
    if scene.watch.lost() == 0 {
        assert_eq!(ours, theirs);
        eprintln!("{} messages as tshark reads them", ours.len());
    }
}
