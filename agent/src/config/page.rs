//! `page`: where page and API are served, and who may read them.
//!
//! Used by [`super::Config`]. Invariant: beyond loopback a token or clients' certificates are required.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// `page`: page and API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PageConfig {
    /// Address and port to listen on; unset: loopback, at the port after that of `http.address`.
    pub address: Option<SocketAddr>,
    /// Host names that requests may name besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// A file with a token that requests must send.
    pub token_file: Option<PathBuf>,
    /// The page's certificate chain (PEM): it is served by HTTPS.
    pub certificate_file: Option<PathBuf>,
    /// The certificate's private key (PEM).
    pub key_file: Option<PathBuf>,
    /// Authorities (PEM) of which clients must present a certificate.
    pub client_ca_file: Option<PathBuf>,
}

impl PageConfig {
    /// Where page and API are served, beside a listener of metrics at `http`.
    #[must_use]
    pub fn listen(&self, http: SocketAddr) -> SocketAddr {
        self.address.unwrap_or_else(|| {
            let loopback = match http {
                SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            let ip = if http.ip().is_loopback() { http.ip() } else { loopback };
            // Port 0 is any free one, for both. There is none after the last.
            let port = match http.port() {
                0 | u16::MAX => 0,
                port => port + 1,
            };
            SocketAddr::new(ip, port)
        })
    }

    pub(super) fn validate(&self, http: SocketAddr) -> Result<(), ConfigError> {
        let listen = self.listen(http);
        let bad = |key: &str, problem: &str| Err(ConfigError::value(key, problem));
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => return bad("page.key_file", "must be set with page.certificate_file"),
            (None, Some(_)) => return bad("page.certificate_file", "must be set with page.key_file"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        if self.client_ca_file.is_some() && self.certificate_file.is_none() {
            return bad(
                "page.client_ca_file",
                "needs page.certificate_file and page.key_file: clients' certificates are a part of TLS",
            );
        }
        if !listen.ip().is_loopback() && self.token_file.is_none() && self.client_ca_file.is_none() {
            return bad(
                "page.address",
                "beyond loopback needs page.token_file, or page.client_ca_file with a certificate: page and API show names \
                 of pods and commands",
            );
        }
        if listen == http && http.port() != 0 {
            return bad("page.address", "must differ from http.address");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn the_page_is_beside_the_metrics_and_on_loopback() {
        for (http, page) in [
            ("127.0.0.1:9477", "127.0.0.1:9478"),
            ("127.0.0.2:1000", "127.0.0.2:1001"),
            ("10.0.0.7:9477", "127.0.0.1:9478"),
            ("0.0.0.0:9477", "127.0.0.1:9478"),
            ("[2001:db8::7]:9477", "[::1]:9478"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:65535", "127.0.0.1:0"),
        ] {
            assert_eq!(PageConfig::default().listen(at(http)), at(page), "{http}");
        }
    }

    #[test]
    fn beyond_loopback_the_page_needs_a_token_or_clients_certificates() {
        let file = || Some(PathBuf::from("/x"));
        let open = |change: fn(&mut PageConfig, Option<PathBuf>)| {
            let mut page = PageConfig {
                address: Some(at("10.0.0.7:9478")),
                ..PageConfig::default()
            };
            change(&mut page, file());
            page.validate(at("10.0.0.7:9477"))
        };
        for refused in [
            open(|_, _| {}),
            open(|page, file| page.client_ca_file = file),
            open(|page, file| (page.certificate_file, page.key_file) = (file.clone(), file)),
            open(|page, file| (page.certificate_file, page.token_file) = (file.clone(), file)),
            open(|page, file| (page.key_file, page.token_file) = (file.clone(), file)),
            open(|page, file| (page.address, page.token_file) = (Some("10.0.0.7:9477".parse().unwrap()), file)),
        ] {
            refused.unwrap_err();
        }
        open(|page, file| page.token_file = file).unwrap();
        open(|page, file| {
            (page.certificate_file, page.key_file, page.client_ca_file) = (file.clone(), file.clone(), file);
        })
        .unwrap();
    }
}
