//! Holds the agent's judgement of CNI configuration against the loaders of the runtimes themselves: go-cni (containerd) and
//! ocicni (CRI-O), each in several versions, built by `scripts/peer.sh cniloaders` (`peer/`).
//!
//! Inputs: every JSON text in the sources, tests and documents of those modules, read from the Go module cache; mutations of
//! them (`mutate.rs`), with a fixed seed; directories of several files (`cases.rs`). One Go process judges all of them.
//! Does not: judge what happens after loading (ADD, and what plugins say).
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod cases;
mod json;
mod mutate;
mod peer;

use std::path::Path;

use sandglass::cni_conf::{Choice, CniConf, CniOptions, Network, RuntimeKind};
use sandglass::cri::RuntimeChoice;
use sandglass::doctor::{self, DoctorOptions};
use sandglass::node::NodeInfo;

use cases::{Case, Stage};
use peer::{Loaded, Outcome, Peer};

/// Mutations of single files; `SANDGLASS_MUTATIONS` sets another number, `SANDGLASS_SEED` another seed.
const MUTATIONS: usize = 5_000;
/// Directories of several files.
const MIXTURES: usize = 1_000;
const SEED: u64 = 23;

#[test]
fn every_file_and_mutation_is_judged_as_the_runtimes_do() {
    let Some(peers) = Peer::all("every_file_and_mutation_is_judged_as_the_runtimes_do") else {
        return;
    };
    let texts = peer::corpus(&peers);
    assert!(texts.len() > 300, "only {} texts in the module cache", texts.len());
    let number = std::env::var("SANDGLASS_MUTATIONS").map_or(MUTATIONS, |number| number.parse().unwrap());
    let seed = std::env::var("SANDGLASS_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let cases = cases::all(&texts, number, MIXTURES, seed);
    let stage = Stage::new(&cases, &texts);
    let results: Vec<Result> = std::thread::scope(|scope| {
        let threads: Vec<_> = peers
            .iter()
            .map(|peer| scope.spawn(|| compare(peer, &stage, &cases)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let compared: usize = results.iter().map(|result| result.compared).sum();
    let loaded: usize = results.iter().map(|result| result.loaded).sum();
    let wrong: Vec<String> = results.into_iter().flat_map(|result| result.wrong).collect();
    eprintln!(
        "{} texts, {} directories, {compared} judgements, {loaded} of them to load: {} disagreements",
        texts.len(),
        cases.len(),
        wrong.len()
    );
    if !wrong.is_empty() {
        stage.keep();
    }
    assert!(
        wrong.is_empty(),
        "{} wrong, the first of them:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(12)].join("\n")
    );
}

/// What came out of one program.
#[derive(Default)]
struct Result {
    compared: usize,
    loaded: usize,
    wrong: Vec<String>,
}

fn compare(peer: &Peer, stage: &Stage, cases: &[Case]) -> Result {
    let mut result = Result::default();
    for (place, (case, outcome)) in cases.iter().zip(peer.load(stage, cases)).enumerate() {
        let mut check = |runtime, loads: bool, disagreement: Option<String>| {
            result.compared += 1;
            result.loaded += usize::from(loads);
            result.wrong.extend(disagreement.map(|what| {
                let (program, place) = (&peer.name, stage.directory(place));
                let place = place.display();
                format!("{program} {runtime:?} {place}: {what}\n  {outcome:?}\n  {case:?}")
            }));
        };
        let disagreement = as_containerd(peer, stage, place, case, &outcome);
        check(RuntimeKind::Containerd, outcome.error.is_empty(), disagreement);
        if outcome.has_crio {
            let disagreement = as_crio(peer, stage, place, case, &outcome);
            check(RuntimeKind::Crio, outcome.available, disagreement);
        }
    }
    result
}

fn options(peer: &Peer, stage: &Stage, place: usize, case: &Case, runtime: RuntimeKind) -> CniOptions {
    CniOptions {
        runtime: Some(runtime),
        libcni: Some(peer.libcni),
        conf_dir: Some(stage.directory(place)),
        bin_dirs: vec![stage.bin_dir()],
        ..CniOptions::found_below(&stage.root(case))
    }
}

fn as_containerd(peer: &Peer, stage: &Stage, place: usize, case: &Case, outcome: &Outcome) -> Option<String> {
    let options = options(peer, stage, place, case, RuntimeKind::Containerd);
    let conf = CniConf::read(&options);
    let directory = &conf.directories[0];
    let disagreement = match &directory.choice {
        Choice::Networks(places) => {
            let networks = places
                .iter()
                .map(|place| directory.files[*place].network.as_ref().unwrap());
            let ours: Vec<Loaded> = networks.map(described).collect();
            let theirs: Vec<Loaded> = outcome.networks.iter().map(Loaded::bounded).collect();
            (ours != theirs).then(|| format!("loads {ours:?}"))
        }
        Choice::StoppedAt(place) => {
            let file = &directory.files[*place];
            let path = file.path.display().to_string();
            let is_named = outcome.error.contains(&format!("{path}:")) || outcome.error.contains(&format!("{path} "));
            let panicked = outcome.error.starts_with("panic");
            (!is_named && !panicked).then(|| format!("stops at {file:?}"))
        }
        Choice::Nothing => (!outcome.error.contains("no network config found")).then(|| "is empty".to_owned()),
        other => Some(format!("{other:?}")),
    };
    disagreement.or_else(|| of_doctor(options, outcome.error.is_empty()))
}

fn as_crio(peer: &Peer, stage: &Stage, place: usize, case: &Case, outcome: &Outcome) -> Option<String> {
    let options = options(peer, stage, place, case, RuntimeKind::Crio);
    let conf = CniConf::read(&options);
    let directory = &conf.directories[0];
    let disagreement = match &directory.choice {
        Choice::Networks(places) => {
            let ours = described(directory.files[places[0]].network.as_ref().unwrap());
            let is_same = outcome.available && peer::bounded(&outcome.default) == ours.name;
            (!is_same).then(|| format!("takes {ours:?}"))
        }
        other => outcome.available.then(|| format!("{other:?}")),
    };
    disagreement.or_else(|| of_doctor(options, outcome.available))
}

/// What is wrong with the report of `sandglass doctor`, which shows every network that the runtime attaches sandboxes to.
fn of_doctor(options: CniOptions, loads: bool) -> Option<String> {
    let root = options.root.clone();
    let report = doctor::run(DoctorOptions {
        runtime: RuntimeChoice::Off,
        cni: options,
        root,
        ..DoctorOptions::new(NodeInfo::default(), Vec::new())
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let report = runtime.block_on(report);
    let findings: Vec<_> = report.sections.iter().flat_map(|section| &section.findings).collect();
    let of_files = findings.iter().filter(|finding| finding.check == "cni.file");
    let shows = of_files.clone().any(|finding| finding.level == doctor::Level::Ok);
    let explains = findings
        .iter()
        .any(|finding| finding.check.starts_with("cni.") && finding.level >= doctor::Level::Warn);
    if shows != loads {
        return Some(format!("doctor shows a network: {shows}"));
    }
    (!loads && !explains).then(|| format!("doctor does not say why: {findings:?}"))
}

fn described(network: &Network) -> Loaded {
    Loaded {
        name: network.name.clone(),
        version: network.version.clone(),
        plugins: network.plugins.iter().map(|plugin| plugin.kind.clone()).collect(),
    }
}

/// The reproductions of the review, by name.
#[test]
fn reproductions_are_judged_as_the_runtimes_do() {
    let Some(peers) = Peer::all("reproductions_are_judged_as_the_runtimes_do") else {
        return;
    };
    let plugin =
        |extra: &str| format!(r#"{{"cniVersion":"1.0.0","name":"x","plugins":[{{"type":"bridge",{extra}}}]}}"#);
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("a.conflist", plugin(r#""capabilities":{"portMappings":"true"}"#).into()),
        ("a.conflist", plugin(r#""capabilities":["x"]"#).into()),
        ("a.conflist", plugin(r#""dns":{"nameservers":"8.8.8.8"}"#).into()),
        ("a.conflist", plugin(r#""dns":"1.2.3.4""#).into()),
        ("a.conflist", plugin(r#""ipam":"host-local""#).into()),
        ("a.conflist", plugin(r#""IPAM":{"Type":"absent-ipam"}"#).into()),
        (
            "a.conflist",
            br#"{"cniVersion":null,"name":"x","plugins":[{"type":"bridge"}]}"#.to_vec(),
        ),
        (
            "a.conflist",
            br#"{"cniVersion":"1.0.0","name":"x","plugins":[{"Type":"bridge"}]}"#.to_vec(),
        ),
        (
            "a.conf",
            br#"{"CNIVersion":"1.0.0","Name":"x","Type":"bridge"}"#.to_vec(),
        ),
        ("a.conf", br#"{"cniVersion":"1.0.0","type":"bridge"}"#.to_vec()),
        (
            "a.conf",
            br#"{"cniVersion":"1.0.0","name":"a b","type":"bridge"}"#.to_vec(),
        ),
        ("a.conf", br#"{"cniVersion":"one","name":"x","type":"bridge"}"#.to_vec()),
        (
            "a.conf",
            "{\"cniVer\u{17f}ion\":\"0.4.0\",\"name\":\"x\",\"type\":\"bridge\"}".into(),
        ),
        (
            ".conflist",
            br#"{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"bridge"}]}"#.to_vec(),
        ),
        (
            "a.conflist",
            plugin(&format!("\"x\":{}{}", "[".repeat(9_997), "]".repeat(9_997))).into(),
        ),
        (
            "a.conflist",
            plugin(&format!("\"x\":{}{}", "[".repeat(9_998), "]".repeat(9_998))).into(),
        ),
    ];
    let files = files
        .into_iter()
        .map(|(name, text)| Case::one(name, text))
        .collect::<Vec<_>>();
    let stage = Stage::new(&files, &[b"{\"type\":\"bridge\"}".to_vec()]);
    for peer in &peers {
        for (place, (case, outcome)) in files.iter().zip(peer.load(&stage, &files)).enumerate() {
            let wrong = as_containerd(peer, &stage, place, case, &outcome);
            assert_eq!(wrong, None, "{} {case:?} {outcome:?}", peer.name);
            let wrong = as_crio(peer, &stage, place, case, &outcome);
            assert!(
                wrong.is_none() || !outcome.has_crio,
                "{} {case:?} {outcome:?}: {wrong:?}",
                peer.name
            );
        }
    }
    assert!(Path::new(&stage.bin_dir()).join("bridge").is_file());
}

/// CRI-O executes plugins for the versions they support; `doctor` passes over the same networks.
#[test]
fn plugins_are_queried_for_their_versions_as_crio_does() {
    let Some(peers) = Peer::all("plugins_are_queried_for_their_versions_as_crio_does") else {
        return;
    };
    // What each answers to VERSION, and with which exit code.
    let plugins = [
        (
            "all",
            r#"{"cniVersion":"1.1.0","supportedVersions":["0.3.1","1.0.0","1.1.0"]}"#,
            0,
        ),
        ("cased", r#"{"CNIVersion":"1.0.0","SUPPORTEDVERSIONS":["1.0.0"]}"#, 0),
        ("second", r#"{"cniVersion":"0.2.0"}"#, 0),
        ("none", r#"{"cniVersion":"1.0.0","supportedVersions":[]}"#, 0),
        ("unversioned", r#"{"supportedVersions":["1.0.0"]}"#, 0),
        ("odd", r#"{"cniVersion":"9","supportedVersions":["1.0","9"]}"#, 0),
        ("number", r#"{"cniVersion":1,"supportedVersions":["1.0.0"]}"#, 0),
        ("mixed", r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0",1]}"#, 0),
        ("list", r#"["1.0.0"]"#, 0),
        ("null", "null", 0),
        ("mute", "", 0),
        ("text", "1.0.0", 0),
        (
            "first",
            r#"{"cniVersion":"0.1.0","code":1,"msg":"unknown CNI_COMMAND: VERSION"}"#,
            1,
        ),
        ("failing", r#"{"code":7,"msg":"no license"}"#, 1),
        ("crashing", r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#, 2),
    ];
    let mut cases = Vec::new();
    for version in ["", "0.1.0", "0.2.0", "0.3.1", "1.0.0", "1.1.0", "1.0", "9"] {
        for (kind, ..) in &plugins {
            for second in ["", r#",{"type":"all"}"#] {
                let text =
                    format!(r#"{{"cniVersion":"{version}","name":"x","plugins":[{{"type":"{kind}"}}{second}]}}"#);
                cases.push(Case::one("a.conflist", text.into()));
            }
        }
    }
    let stage = Stage::new(&cases, &[]);
    for (kind, answer, code) in &plugins {
        let script = format!("#!/bin/sh\nprintf '%s' '{answer}'\nexit {code}\n");
        cases::write(&stage.bin_dir().join(kind), &script, 0o755);
    }
    let mut taken = 0;
    for peer in &peers {
        for (place, (case, outcome)) in cases.iter().zip(peer.load(&stage, &cases)).enumerate() {
            if !outcome.has_crio {
                continue;
            }
            let mut conf = CniConf::read(&options(peer, &stage, place, case, RuntimeKind::Crio));
            conf.ask_plugins();
            let takes = matches!(conf.directories[0].choice, Choice::Networks(_));
            assert_eq!(
                takes, outcome.available,
                "{} {case:?}: {:?}",
                peer.name, conf.directories[0].files
            );
            taken += usize::from(takes);
        }
    }
    assert!(taken > 0);
    eprintln!(
        "{} networks for each of {} programs, {taken} taken",
        cases.len(),
        peers.len()
    );
}
