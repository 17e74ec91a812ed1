//! The page by HTTPS, with clients' certificates that a self-made authority signed (by the `openssl` command, at test time).

use std::path::{Path, PathBuf};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{pem, test_certificates};

/// Asks for the page with a client's certificate, or none; `None` when the server ends the connection without an answer.
async fn ask(address: SocketAddr, folder: &Path, client: Option<&str>) -> Option<HttpResponse> {
    let file = |name: &str, ending: &str| folder.join(format!("{name}.{ending}"));
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(&file("ca", "pem"), "an authority").unwrap() {
        roots.add(certificate).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        Some(name) => builder
            .with_client_auth_cert(
                pem::certificates(&file(name, "pem"), "a certificate").unwrap(),
                pem::private_key(&file(name, "key")).unwrap(),
            )
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::from(address.ip());
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    // With TLS 1.3 a refused client learns of it when it reads.
    let _ = stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        .await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    (!bytes.is_empty()).then(|| HttpResponse::parse(&String::from_utf8_lossy(&bytes)))
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_the_authority_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if !test_certificates::make("only_clients_with_a_certificate_of_the_authority_are_answered", folder) {
        return;
    }
    let path = |name: &str| -> PathBuf { folder.join(name) };
    let with = |authorities: Option<PathBuf>| {
        let certificate = Some((path("server.pem"), path("server.key")));
        move |options: &mut HttpOptions| {
            options.access = AccessFiles {
                token: None,
                certificate,
                client_authorities: authorities,
            };
        }
    };
    let rig = Rig::start(with(Some(path("ca.pem")))).await;
    assert_eq!(
        ask(rig.address, folder, Some("client"))
            .await
            .map(|answer| answer.status),
        Some(200)
    );
    for refused in [None, Some("stranger")] {
        assert!(ask(rig.address, folder, refused).await.is_none(), "{refused:?}");
    }
    let plain = converse(rig.connect().await, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_ne!(plain.status, 200, "answered without TLS");
    // Without authorities it is HTTPS for everyone, which the configuration accepts with a token only.
    let rig = Rig::start(with(None)).await;
    assert_eq!(
        ask(rig.address, folder, None).await.map(|answer| answer.status),
        Some(200)
    );
}

#[test]
fn files_that_do_not_fit_are_errors_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    if !test_certificates::make("files_that_do_not_fit_are_errors_with_a_hint", folder.path()) {
        return;
    }
    let path = |name: &str| folder.path().join(name);
    for (certificate, key, authorities, hint) in [
        ("server.pem", "client.key", None, "page.key_file"),
        ("missing.pem", "server.key", None, "PEM file"),
        ("server.pem", "server.pem", None, "PEM file"),
        ("server.pem", "server.key", Some("server.key"), "PEM file"),
    ] {
        let files = AccessFiles {
            token: None,
            certificate: Some((path(certificate), path(key))),
            client_authorities: authorities.map(path),
        };
        let Err(error) = Access::from_files(&files) else {
            panic!("{certificate} with {key} was accepted");
        };
        assert!(
            error.hint().contains(hint),
            "{certificate} with {key}: {}",
            error.hint()
        );
    }
}
