//! What two independent policy checkers find in the rendered chart: each finding has its reason in `deploy/policy.json`, and each
//! reason its finding.
//!
//! checkov names its findings by an id, kube-score by a sentence. Does not: install them (`scripts/validators.sh` and
//! `scripts/peer.sh` do).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::helm::{Helm, output, root};
use super::{OPERATOR, validators};

/// Part of the chart, and what was found there.
type Findings = BTreeMap<&'static str, BTreeSet<String>>;

/// Both systems and the test pod.
fn rendered(helm: &Helm) -> String {
    let arguments = ["windows.enabled=true".to_owned()];
    helm.template(&arguments, "1.36.0", &OPERATOR).unwrap()
}

/// The part of the chart that an object belongs to.
fn part(object: &str) -> &'static str {
    match object {
        _ if object.contains("windows") => "windows",
        _ if object.contains("test") => "test",
        _ => "linux",
    }
}

/// `is_ours` selects the checker's own names in the list of reasons.
fn assert_known(checker: &str, mut found: Findings, is_ours: fn(&str) -> bool) {
    let policy: Value = serde_json::from_slice(&fs::read(root("deploy/policy.json")).unwrap()).unwrap();
    let known = |about: &str| {
        let reasons = policy[about].as_object().unwrap().clone();
        reasons.into_iter().filter_map(|(name, reason)| {
            assert!(!reason.as_str().unwrap().is_empty(), "{name}");
            is_ours(&name).then_some(name)
        })
    };
    for about in ["linux", "windows", "test"] {
        let mut accepted: BTreeSet<String> = known(about).collect();
        if about != "test" {
            accepted.extend(known("both"));
        }
        let found = found.remove(about).unwrap_or_default();
        assert_eq!(
            found, accepted,
            "{about}: found by {checker} (left), accepted in deploy/policy.json (right)"
        );
    }
}

#[test]
fn the_policy_checker_finds_what_is_known_and_no_more() {
    let test = "the_policy_checker_finds_what_is_known_and_no_more";
    let Some(helm) = Helm::find(test) else { return };
    let Some((python, _)) = validators(test) else { return };
    // It passes over folders whose names begin with a dot.
    let folder = tempfile::Builder::new().prefix("rendered").tempdir().unwrap();
    fs::write(folder.path().join("all.yaml"), rendered(&helm)).unwrap();
    let checked = output(
        Command::new(python.join("checkov"))
            .args([
                "--framework",
                "kubernetes",
                "--skip-download",
                "--output",
                "json",
                "--directory",
            ])
            .arg(folder.path()),
    );
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let mut found = Findings::new();
    for failed in report["results"]["failed_checks"].as_array().unwrap() {
        let about = part(failed["resource"].as_str().unwrap());
        let id = failed["check_id"].as_str().unwrap().to_owned();
        found.entry(about).or_default().insert(id);
    }
    assert_known("checkov", found, |name| name.starts_with("CKV"));
    assert!(report["summary"]["passed"].as_u64().unwrap() > 100);
}

#[test]
fn kube_score_finds_what_is_known_and_no_more() {
    /// kube-score's grade of a check without a finding (domain/types.go of its version 1.20).
    const ALL_OK: u64 = 10;
    let test = "kube_score_finds_what_is_known_and_no_more";
    let Some(helm) = Helm::find(test) else { return };
    let built = output(Command::new(root("scripts/peer.sh")).arg("kube-score"));
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr);
        eprintln!(
            "SKIPPED {test}: no kube-score: {}",
            why.lines().last().unwrap_or_default()
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.yaml");
    fs::write(&file, rendered(&helm)).unwrap();
    // It ends with 1 where it finds something.
    let checked = output(
        Command::new(String::from_utf8(built.stdout).unwrap().trim())
            .args(["score", "--output-format", "json", "--enable-optional-test"])
            .args([
                "container-seccomp-profile",
                "--enable-optional-test",
                "container-ports-check",
            ])
            .arg(file),
    );
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let mut found = Findings::new();
    let mut passed = 0;
    for object in report.as_array().unwrap() {
        let about = part(object["object_name"].as_str().unwrap());
        for check in object["checks"].as_array().unwrap() {
            if check["skipped"] == true || check["grade"].as_u64().unwrap() >= ALL_OK {
                passed += u32::from(check["skipped"] == false);
                continue;
            }
            for comment in check["comments"].as_array().unwrap() {
                let summary = comment["summary"].as_str().unwrap().to_owned();
                found.entry(about).or_default().insert(summary);
            }
        }
    }
    assert_known("kube-score", found, |name| !name.starts_with("CKV"));
    assert!(passed > 20, "{passed}");
}
