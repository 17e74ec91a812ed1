//! The cause of a sandbox's failure that the node's CNI configuration shows, where nothing that ran failed.
//!
//! Used by `creation.rs` and `unserved.rs`. Inferred, never observed: the confidence says so. Does not: judge the
//! configuration (the agent does, `cni_conf/problems.rs`).

use sandglass_model::cni::ConfigProblem;
use sandglass_model::registry;
use sandglass_model::trace::{Cause, Confidence};

/// What of the configuration's problems explains that no plugin ran, or not all did. A problem of some runtime handlers is
/// possible only, since the sandbox's handler is not known.
pub(crate) fn cause(problems: &[ConfigProblem]) -> Option<Box<Cause>> {
    let explains = |problem: &&ConfigProblem| registry::creation_cause(&problem.kind).is_some();
    let for_all = problems
        .iter()
        .filter(explains)
        .find(|problem| problem.handlers.is_empty());
    let problem = for_all.or_else(|| problems.iter().find(explains))?;
    let confidence = match problem.handlers.is_empty() {
        true => Confidence::Likely,
        false => Confidence::Possible,
    };
    let evidence = match problem.handlers.is_empty() {
        true => problem.text.clone(),
        false => format!("{}, for runtime handler {}", problem.text, problem.handlers.join(", ")),
    };
    Some(Box::new(Cause {
        cause: registry::creation_cause(&problem.kind)?.to_owned(),
        confidence,
        evidence: vec![evidence],
    }))
}

/// The cause of a failure at some time between two judgements. The configuration is judged every few seconds, so that the
/// earlier one may be out of date: where they differ the later is possible, and one that was mended meanwhile stays.
pub(crate) fn of_the_wait(earlier: Option<Box<Cause>>, later: Option<Box<Cause>>) -> Option<Box<Cause>> {
    match (earlier, later) {
        (Some(earlier), Some(mut later)) => {
            if earlier != later {
                later.confidence = Confidence::Possible;
            }
            Some(later)
        }
        (earlier, later) => earlier.or(later),
    }
}

/// What happened, with its cause and how sure that is.
pub(crate) fn because(what: &str, cause: Option<&Cause>) -> String {
    match cause {
        Some(cause) => {
            let evidence = cause.evidence.first().map_or("", String::as_str);
            format!("{what}: {evidence} ({})", cause.confidence.as_str())
        }
        None => what.to_owned(),
    }
}
