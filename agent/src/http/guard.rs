//! Protection of the server: accepted host names and security headers.
//!
//! Used by `routes`. Does not: know the routes.

use std::net::IpAddr;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Whether a `Host` header names this server: `localhost`, one of `names`, or any IP address.
///
/// A page from elsewhere that makes its own name point to this address (DNS rebinding) sends that name here and is
/// refused. An IP address is no name that its owner could make point elsewhere: a browser treats a page that it loaded
/// from that address, and nothing else, as of the same origin. The kubelet and Prometheus send the address that they
/// connect to, which need not be one of the node's own interfaces (a floating or translated address).
pub fn host_is_ours(host: &str, names: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        // An IPv6 address in brackets, with or without a port.
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
            _ => return false,
        },
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|ours| ours.eq_ignore_ascii_case(name))
}

/// Headers of every response.
pub fn secure(headers: &mut HeaderMap) {
    const HEADERS: [(HeaderName, &str); 6] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_pass() {
        let names = ["node-3.lan".to_owned()];
        for ours in [
            "localhost",
            "LOCALHOST:9477",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:9477",
            "10.0.0.7:9477",
            "node-3.lan:80",
        ] {
            assert!(host_is_ours(ours, &names), "{ours}");
        }
        for foreign in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9477",
            "[::1",
            "[::1]x",
            "::1",
        ] {
            assert!(!host_is_ours(foreign, &names), "{foreign}");
        }
    }
}
