//! The status of a lookup's span, by its result: an error class of the registry and a sentence.
//!
//! Used by the rooms of traffic and of Windows, so that a lookup fails the same way on both systems. NXDOMAIN is an
//! answer, not a failure: programs ask for names that need not exist, above all along a search path. Names of response
//! codes: RFC 1035 4.1.1. Imports no room.

use sandglass_model::trace::{LookupResult, Status};

/// The status of a lookup of `name` with this result. `Unset` for an answer, and for a result that is not known: a span of
/// which the end was lost is incomplete and not failed. OpenTelemetry reserves `Ok` for a program's own statement
/// (<https://opentelemetry.io/docs/specs/otel/trace/api/#set-status>).
pub(crate) fn of(name: &str, result: LookupResult) -> Status {
    if result.is_answer() || !result.is_known() {
        return Status::Unset;
    }
    // The classes are those of `registry::ERROR_TYPES`; the test below compares them.
    let (class, what) = match result.as_str() {
        "servfail" => ("dns_servfail", "the server failed (SERVFAIL)"),
        "refused" => ("dns_refused", "the server refused (REFUSED)"),
        "formerr" => ("dns_formerr", "the server did not understand (FORMERR)"),
        "notimp" => ("dns_notimp", "the server does not do that (NOTIMP)"),
        "timeout" => ("dns_timeout", "no answer"),
        _ => ("dns_other", "the server answered with an error"),
    };
    Status::Error {
        class: class.to_owned(),
        message: format!("lookup of {name}: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_their_class() {
        let class = |result| match of("n", result) {
            Status::Error { class, .. } => class,
            Status::Unset => "-".to_owned(),
        };
        let results = [0, 1, 2, 3, 4, 5, 9].map(|rcode| class(LookupResult::Rcode(rcode)));
        let expected = [
            "-",
            "dns_formerr",
            "dns_servfail",
            "-",
            "dns_notimp",
            "dns_refused",
            "dns_other",
        ];
        assert_eq!(results, expected);
        assert_eq!(class(LookupResult::Unanswered), "dns_timeout");
        let known = sandglass_model::registry::ERROR_TYPES;
        assert!(
            results
                .iter()
                .all(|class| class == "-" || known.contains(&class.as_str()))
        );
    }
}
