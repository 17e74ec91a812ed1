//! Lookups, from the DNS client service (Microsoft-Windows-DNS-Client) and the socket library
//! (Microsoft-Windows-Winsock-NameResolution). Manifests: jdu2600/Windows10EtwEvents.
//!
//! Events 3006 and 3008 are logged in the process that queries; the others in the service, which adds `ClientPID` only in
//! version 1 of the events (after Windows Server 2022). 1013 to 1015 are timeouts. A call of the socket library encloses the
//! lookup that it causes. Does not: join steps to lookups (the correlator does).

use std::net::IpAddr;

use sandglass_etw::EtwEvent;
use sandglass_model::windows::{LookupChange, LookupStep};
use sandglass_model::{Body, ProcessKey};

use super::text::{bounded, guid_text};

/// A step of a lookup. A status is a Win32 error of winerror.h (DNS_ERROR_RCODE_NAME_ERROR is 9003), 0 for success. Names are
/// lower case without the last dot, as on Linux, so that steps of one lookup compare equal.
pub(super) fn lookup(event: &EtwEvent) -> Option<Body> {
    // An event without the field reports success: layouts differ between builds, and a failure is never inferred.
    let status = |field| event.code(field).unwrap_or(0);
    let server = |field| bounded(event.text(field).unwrap_or_default());
    let step = match event.id {
        3006 => LookupChange::Started,
        3008 => LookupChange::Finished {
            status: status("QueryStatus"),
            addresses: addresses(event.text("QueryResults").unwrap_or_default()),
        },
        3010 => LookupChange::Sent {
            server: server("DnsServerIpAddress"),
        },
        3011 => LookupChange::Answered {
            server: server("DnsServerIpAddress"),
            status: status("ResponseStatus"),
        },
        // All servers timed out: 1013 names none. 1014 and 1015 name the one that did.
        1013 => LookupChange::TimedOut { server: String::new() },
        1014 | 1015 => LookupChange::TimedOut {
            server: event
                .get("Address")
                .and_then(sandglass_etw::Value::ip)
                .map(|ip| ip.to_string())
                .unwrap_or_default(),
        },
        _ => return None,
    };
    // The service logs in its own process. Where it adds no client, the process is the service's.
    let pid = event.u32("ClientPID").filter(|pid| *pid != 0).unwrap_or(event.pid);
    Some(Body::LookupSeen(Box::new(LookupStep {
        silo: event.container_id.map(guid_text).unwrap_or_default(),
        process: ProcessKey::new(pid, 0),
        name: bounded(event.text("QueryName")?).trim_end_matches('.').to_lowercase(),
        kind: event
            .u32("QueryType")
            .and_then(|kind| kind.try_into().ok())
            .unwrap_or(0),
        step,
    })))
}

/// A call of the socket library (`getaddrinfo` and its like): event 1000 begins, 1001 ends, both in the process that calls.
/// `Status` is an error of winsock2.h (WSAHOST_NOT_FOUND is 11001). A call with an address in place of a name needs no
/// lookup.
pub(super) fn call(event: &EtwEvent) -> Option<Body> {
    let step = match event.id {
        1000 => LookupChange::Called,
        1001 => LookupChange::Returned {
            status: event.code("Status").unwrap_or(0),
            addresses: addresses(event.text("Result").unwrap_or_default()),
        },
        _ => return None,
    };
    let name = bounded(event.text("NodeName")?).trim_end_matches('.').to_lowercase();
    if name.is_empty() || name.parse::<IpAddr>().is_ok() {
        return None;
    }
    Some(Body::LookupSeen(Box::new(LookupStep {
        silo: event.container_id.map(guid_text).unwrap_or_default(),
        process: ProcessKey::new(event.pid, 0),
        name,
        kind: 0,
        step,
    })))
}

/// Addresses, at most [`MAX_ADDRESSES`], in a result such as `type:  5 other.example;192.0.2.1;::ffff:192.0.2.2;`.
fn addresses(results: &str) -> Vec<IpAddr> {
    let found = results.split(';').filter_map(|text| text.trim().parse::<IpAddr>().ok());
    found.map(|ip| ip.to_canonical()).take(MAX_ADDRESSES).collect()
}

/// Bound on addresses kept of a result, as for DNS messages on Linux.
const MAX_ADDRESSES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// A canonical name stands among the addresses, and IPv4 ones are mapped into IPv6.
    #[test]
    fn addresses_of_a_result() {
        let found = addresses("type:  5 web.example;192.0.2.1;::ffff:192.0.2.2;2001:db8::1;");
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
        assert!(addresses("").is_empty());
    }
}
