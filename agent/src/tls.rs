//! TLS as a client: trusted authorities and the client certificate.
//!
//! Used by OTLP export and by `watch`. Files are read once, at start.
//! Does not: have an option to skip verification; a private authority goes into a CA file.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::failure::Advice;
use crate::pem::{self, PemError};

/// PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate authorities; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate chain and private key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// TLS that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be used.
    #[error(transparent)]
    File(#[from] PemError),
    /// The system has no certificate authorities.
    #[error("cannot find the system's certificate authorities: {why}")]
    NoRoots {
        /// The errors of all sources.
        why: String,
    },
    /// The client certificate cannot be used, for instance since its key is another one's.
    #[error("cannot use the client certificate {}", path.display())]
    Client {
        /// The certificate's file.
        path: PathBuf,
        /// The error of rustls.
        #[source]
        source: rustls::Error,
    },
    /// The TLS library has no usable protocol version.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
}

impl Advice for TlsError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            TlsError::File(error) => return error.hint(),
            TlsError::NoRoots { .. } => {
                "install the package ca-certificates, or name a CA file (OTEL_EXPORTER_OTLP_CERTIFICATE, watch --ca-file)"
            }
            TlsError::Client { .. } => "the private key must be the one that the certificate was made for",
            TlsError::Setup(_) => "this is a bug in sandglass",
        };
        hint.into()
    }
}

/// A connector that offers one protocol (ALPN, RFC 7301), such as `http/1.1`.
///
/// # Errors
/// A file cannot be used, or none is named and the system has no authorities.
pub fn connector(files: &TlsFiles, protocol: &[u8]) -> Result<TlsConnector, TlsError> {
    let roots = match &files.ca {
        Some(path) => pem::roots(path)?,
        None => roots_of_system()?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots);
    let mut config = match &files.client {
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                pem::certificates(certificate, "a client certificate")?,
                pem::private_key(key)?,
            )
            .map_err(|source| TlsError::Client {
                path: certificate.clone(),
                source,
            })?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The system's authorities. Some may be unusable; if all are, that is an error.
fn roots_of_system() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(roots);
    }
    let tried: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
    Err(TlsError::NoRoots {
        why: if tried.is_empty() {
            "none are installed".to_owned()
        } else {
            tried.join("; ")
        },
    })
}
