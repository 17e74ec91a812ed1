//! Certificates and private keys in PEM files.
//!
//! Used by OTLP export and by the HTTP server. Files are read once, at start, so that a wrong path is an error at start.
//! Does not: keep a file open, or notice that one changes.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::failure::Advice;

/// A PEM file that cannot be read, or lacks what it should hold.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} from {}: {why}", path.display())]
pub struct PemError {
    /// What it should hold.
    what: &'static str,
    path: PathBuf,
    why: String,
}

impl Advice for PemError {
    fn hint(&self) -> Cow<'_, str> {
        "give the path of a PEM file that the agent may read".into()
    }
}

/// The certificate authorities of a file.
///
/// # Errors
/// The file cannot be read, holds no certificate, or one that cannot be an authority.
pub fn roots(path: &Path) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, AUTHORITIES)? {
        roots.add(certificate).map_err(|error| PemError {
            what: AUTHORITIES,
            path: path.to_owned(),
            why: error.to_string(),
        })?;
    }
    Ok(roots)
}

/// Why a file cannot be read, in one error: the parser puts "I/O error: " before the system's words.
fn reason(error: &rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// The certificates of a file; `what` names them in an error.
///
/// # Errors
/// The file cannot be read, or holds no certificate.
pub fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let refuse = |why: String| PemError {
        what,
        path: path.to_owned(),
        why,
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refuse(reason(&error)))?;
    if certificates.is_empty() {
        return Err(refuse("it holds no PEM certificate".to_owned()));
    }
    Ok(certificates)
}

/// The private key of a file.
///
/// # Errors
/// The file cannot be read, or holds no private key.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| PemError {
        what: "a private key",
        path: path.to_owned(),
        why: error.to_string(),
    })
}

const AUTHORITIES: &str = "certificate authorities";
