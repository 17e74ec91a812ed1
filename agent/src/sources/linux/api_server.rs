//! The API server's service address, as Kubernetes passes it to the agent's own container.
//!
//! Used by the Linux source, so that a plugin's wait for it is named. Every container gets `KUBERNETES_SERVICE_HOST` and
//! `KUBERNETES_SERVICE_PORT` ("Discovering services", kubernetes.io/docs/concepts/services-networking/service). An agent outside of
//! a pod has neither, and names the address alone. Does not: connect there.

use std::net::{IpAddr, SocketAddr};

use sandglass_model::{Body, Event};

use crate::sources::clock;

/// The event that says it, where the environment holds the address.
pub fn known() -> Option<Event> {
    let variable = |name: &str| std::env::var(name).ok();
    let (host, port) = (
        variable("KUBERNETES_SERVICE_HOST")?,
        variable("KUBERNETES_SERVICE_PORT")?,
    );
    Some(Event {
        at: clock::now(),
        body: Body::ApiServerKnown {
            address: address(&host, &port)?,
        },
    })
}

fn address(host: &str, port: &str) -> Option<SocketAddr> {
    let ip: IpAddr = host.trim_matches(['[', ']']).parse().ok()?;
    Some(SocketAddr::new(ip, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_and_nothing_else() {
        let text = |host, port| address(host, port).map(|address| address.to_string());
        assert_eq!(text("10.96.0.1", "443").as_deref(), Some("10.96.0.1:443"));
        assert_eq!(text("fd00::1", "443").as_deref(), Some("[fd00::1]:443"));
        assert_eq!(text("[fd00::1]", "6443").as_deref(), Some("[fd00::1]:6443"));
        assert_eq!(text("kubernetes.default", "443"), None);
        assert_eq!(text("10.96.0.1", "https"), None);
    }
}
