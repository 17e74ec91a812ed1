//! Why things fail or take long: the causes of bad lookups and connects, and the classes of errors.
//!
//! Re-exported by the registry. Metrics have both as labels, so each set is closed: a word that is not here fails the test of
//! the sink that emits it. Does not: choose a cause (the correlator does) or a class (each kind of span does).

/// Why lookups and connections go badly: the closed set of [`CAUSE`](super::CAUSE).
pub const CAUSES: &[&str] = &[
    // Two queries of one socket raced for one conntrack entry, and one was dropped (kubernetes#56903).
    "conntrack_race",
    // The conntrack table was full.
    "conntrack_table_full",
    // The kernel dropped a packet of it, for another reason.
    "packet_drop",
    // The server (or the way to it) was silent; no evidence of a drop on this node.
    "dns_server_silent",
    // The server answered with an error.
    "dns_server_error",
    // The server's answer took long.
    "dns_server_slow",
    // The names of the search path took the most time.
    "search_path",
    // The answer was cut, and TCP did not help.
    "truncation",
    // The other end refused.
    "connect_refused",
    // The other end, or the way to it, was silent.
    "connect_silent",
    // There is no way there.
    "unreachable",
];

/// Why the creation of a sandbox failed without a plugin or a step of the runtime that failed: the closed set of
/// [`CAUSE`](super::CAUSE) on `sandbox.create`. Inferred from the node's CNI configuration.
pub const CREATION_CAUSES: &[&str] = &[
    // There is no network configuration.
    "cni_no_configuration",
    // The runtime can use none of the files, or stops at a bad one.
    "cni_bad_file",
    // libcni refuses the network's name or version.
    "cni_bad_network",
    // A plugin's binary is missing or not executable.
    "cni_no_plugin",
];

/// What a cause did, as the end of a sentence for people.
#[must_use]
pub fn cause_text(cause: &str) -> &str {
    match cause {
        "conntrack_race" => "conntrack dropped one of two parallel queries",
        "conntrack_table_full" => "the conntrack table was full",
        "packet_drop" => "the kernel dropped a packet of it",
        "dns_server_silent" => "the DNS server, or the way to it, was silent",
        "dns_server_error" => "the DNS server answered with an error",
        "dns_server_slow" => "the DNS server took long to answer",
        "search_path" => "the names of the search path took most of it",
        "truncation" => "the answer was cut, and TCP did not help",
        "connect_refused" => "the other end refused",
        "connect_silent" => "the other end, or the way to it, was silent",
        "unreachable" => "there is no way there",
        "cni_no_configuration" => "there was no CNI configuration",
        "cni_bad_file" => "the runtime could not use a CNI configuration file",
        "cni_bad_network" => "the CNI configuration's network is not valid",
        "cni_no_plugin" => "a CNI plugin's binary was missing",
        other => other,
    }
}

/// The cause of a failed creation that a kind of configuration problem is; `None` for a kind that stops no sandbox.
#[must_use]
pub fn creation_cause(problem: &str) -> Option<&'static str> {
    let is_it = |cause: &&&str| cause.strip_prefix("cni_") == Some(problem);
    CREATION_CAUSES.iter().find(is_it).copied()
}

/// Every error class: `error.type` of spans and `error` label of metrics.
pub const ERROR_TYPES: &[&str] = &[
    // The plugin reported an error object; see `CniError::class`.
    "cni_incompatible_version",
    "cni_unsupported_field",
    "cni_unknown_container",
    "cni_invalid_environment",
    "cni_io_failure",
    "cni_decoding_failure",
    "cni_invalid_network_config",
    "cni_try_again_later",
    "cni_plugin_not_available",
    "cni_limited_connectivity",
    "cni_ipam_exhausted",
    "cni_plugin_specific",
    // It exited like this, and no error object could be read.
    "exit_code",
    "signal",
    // It never ended within the deadline.
    "deadline",
    // The agent was killed while it went on: what became of it is not known.
    "interrupted",
    // A part of it failed: the root of a failed sandbox.
    "sandbox_failed",
    // A lookup: no answer, or an answer that is an error.
    "dns_timeout",
    "dns_servfail",
    "dns_refused",
    "dns_formerr",
    "dns_notimp",
    "dns_other",
    // A connection.
    "connect_refused",
    "connect_timeout",
    "connect_unreachable",
    "connect_reset",
    "connect_abandoned",
    "connect_other",
    // An activity of HNS or HCS, by its code: `hns_`/`hcs_` and a name of the table of codes, or this.
    "windows_result",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_words() {
        for cause in CAUSES.iter().chain(CREATION_CAUSES) {
            assert_ne!(cause_text(cause), *cause);
        }
        assert_eq!(cause_text("else"), "else");
        assert_eq!(creation_cause("no_plugin"), Some("cni_no_plugin"));
        assert_eq!(creation_cause("not_readable"), None);
    }
}
