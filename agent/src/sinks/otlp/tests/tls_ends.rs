//! TLS to a collector whose certificate a self-made authority signed (by the `openssl` command, at test time).

use std::path::{Path, PathBuf};
use std::process::Command;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::*;

/// An authority, a server certificate for `localhost` and 127.0.0.1, a client certificate, another authority and its server certificate.
struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    /// `None`, reported on standard error, where the `openssl` command is missing.
    fn new(test: &str) -> Option<Authority> {
        if Command::new("openssl").arg("version").output().is_err() {
            eprintln!("SKIPPED {test}: no openssl command");
            return None;
        }
        let authority = Authority {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["ca", "other"] {
            let args = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority";
            authority.openssl(&format!("{args} -keyout {name}.key -out {name}.pem"));
        }
        let of_server = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        let of_client = "extendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\n";
        for (name, extensions, ca) in [
            ("server", of_server, "ca"),
            ("stranger", of_server, "other"),
            ("client", of_client, "ca"),
        ] {
            std::fs::write(authority.path(&format!("{name}.ext")), extensions).unwrap();
            let args = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
            authority.openssl(&format!("{args} -subj /CN={name} -keyout {name}.key -out {name}.csr"));
            let args = "x509 -req -days 2 -CAcreateserial";
            authority.openssl(&format!(
                "{args} -CA {ca}.pem -CAkey {ca}.key -in {name}.csr -out {name}.pem -extfile {name}.ext"
            ));
        }
        Some(authority)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    fn openssl(&self, args: &str) {
        let output = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{args}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn acceptor(&self, ask_client: bool, alpn: &[u8]) -> TlsAcceptor {
        self.acceptor_with("server", ask_client, alpn)
    }

    /// With the certificate of this name.
    fn acceptor_with(&self, name: &str, ask_client: bool, alpn: &[u8]) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if ask_client {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(certificate(&self.path("ca.pem"))).unwrap();
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
        let mut config = builder
            .with_single_cert(vec![certificate(&self.path(&format!("{name}.pem")))], key)
            .unwrap();
        config.alpn_protocols = vec![alpn.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

#[tokio::test]
async fn tls_works_with_the_right_authority_over_both_protocols() {
    let Some(authority) = Authority::new("tls_works_with_the_right_authority_over_both_protocols") else {
        return;
    };
    for (protocol, alpn) in [("http/protobuf", &b"http/1.1"[..]), ("grpc", b"h2")] {
        for host in ["localhost", "127.0.0.1"] {
            let acceptor = authority.acceptor(false, alpn);
            let collector = Collector::start("127.0.0.1:0", Vec::new(), protocol == "grpc", Some(acceptor)).await;
            let config = config(&[
                (
                    "OTEL_EXPORTER_OTLP_ENDPOINT",
                    &format!("https://{host}:{}", collector.address.port()),
                ),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", &authority.text("ca.pem")),
            ]);
            let (end, seen) = exchange(collector, config).await;
            assert_eq!((end.delivered, seen.len()), (1, 1), "{protocol} {host}");
        }
    }
}

#[tokio::test]
async fn a_wrong_authority_keeps_the_spans_and_says_why() {
    let Some(authority) = Authority::new("a_wrong_authority_keeps_the_spans_and_says_why") else {
        return;
    };
    let collector = Collector::start(
        "127.0.0.1:0",
        Vec::new(),
        false,
        Some(authority.acceptor(false, b"http/1.1")),
    )
    .await;
    let endpoint = format!("https://localhost:{}", collector.address.port());
    let other = authority.text("other.pem");
    for extra in [Some(("OTEL_EXPORTER_OTLP_CERTIFICATE", other.as_str())), None] {
        let mut variables = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
        variables.extend(extra);
        let sink = match OtlpSink::start(config(&variables), node(), Health::default()) {
            Ok(sink) => sink,
            // A machine without any certificate authority.
            Err(error) if extra.is_none() => {
                assert!(matches!(error, OtlpError::Tls { .. }));
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        sink.offer(&small(1));
        until("two failures", || sink.delivery.failure().streak >= 2).await;
        let status = sink.status();
        assert_eq!((status.waiting, status.failing), (1, true));
        let error = status.last_error.unwrap();
        assert!(error.contains("TLS") && error.contains("certificate"), "{error}");
        assert_eq!(sink.stop(Duration::from_millis(50)).await, 1);
    }
    assert!(collector.seen().is_empty());
}

#[tokio::test]
async fn a_collector_with_a_wrong_certificate_gets_all_once_it_has_the_right_one() {
    let test = "a_collector_with_a_wrong_certificate_gets_all_once_it_has_the_right_one";
    let Some(authority) = Authority::new(test) else {
        return;
    };
    let stranger = authority.acceptor_with("stranger", false, b"http/1.1");
    let wrong = Collector::start("127.0.0.1:0", Vec::new(), false, Some(stranger)).await;
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("https://{}", wrong.address)),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", authority.text("ca.pem")),
    ];
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let sink = start(outages::spooled(config(&variables), directory.path()));
    let mut maker = outages::Maker::default();
    maker.offer(&sink, 0..60);
    until("two failures", || sink.delivery.failure().streak >= 2).await;
    maker.adds_up(test, &sink.status());
    assert!(wrong.seen().is_empty(), "no bad trace reached a stranger");
    let address = wrong.go_away().await.to_string();
    let right = Collector::start(
        &address,
        Vec::new(),
        false,
        Some(authority.acceptor(false, b"http/1.1")),
    )
    .await;
    until_sent("the end", &sink).await;
    assert_eq!(sink.stop(LONG).await, 0);
    maker.judge(test, &right.spans(), &sink.status());
}

#[tokio::test]
async fn a_client_certificate_is_shown_when_requested() {
    let Some(authority) = Authority::new("a_client_certificate_is_shown_when_requested") else {
        return;
    };
    let collector = Collector::start(
        "127.0.0.1:0",
        Vec::new(),
        false,
        Some(authority.acceptor(true, b"http/1.1")),
    )
    .await;
    let endpoint = format!("https://localhost:{}", collector.address.port());
    let (ca, certificate, key) = (
        authority.text("ca.pem"),
        authority.text("client.pem"),
        authority.text("client.key"),
    );
    let mut variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca),
    ];
    let sink = start(config(&variables));
    sink.offer(&small(1));
    until("a failure", || sink.status().failing).await;
    assert_eq!(sink.stop(Duration::from_millis(50)).await, 1, "without a certificate");
    variables.push(("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &certificate));
    variables.push(("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key));
    let (end, seen) = exchange(collector, config(&variables)).await;
    assert_eq!((end.delivered, seen.len()), (1, 1), "with one");
}

#[tokio::test]
async fn unusable_files_are_an_error_at_the_start() {
    let Some(authority) = Authority::new("unusable_files_are_an_error_at_the_start") else {
        return;
    };
    let (missing, key, certificate) = (
        authority.text("missing.pem"),
        authority.text("ca.key"),
        authority.text("client.pem"),
    );
    for (variables, says) in [
        (vec![("OTEL_EXPORTER_OTLP_CERTIFICATE", &missing)], "missing.pem"),
        (vec![("OTEL_EXPORTER_OTLP_CERTIFICATE", &key)], "no PEM certificate"),
        (
            vec![
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", &certificate),
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &certificate),
                ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key),
            ],
            "client certificate",
        ),
    ] {
        let mut all = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:1")];
        all.extend(variables.iter().map(|(name, value)| (*name, value.as_str())));
        let error = OtlpSink::start(config(&all), node(), Health::default()).unwrap_err();
        assert!(!error.hint().is_empty());
        let OtlpError::Tls { source, .. } = error else {
            panic!("{error}")
        };
        assert!(source.to_string().contains(says), "{source}");
    }
}
