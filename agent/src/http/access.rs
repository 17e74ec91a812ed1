//! Who may read the page's listener: a token, TLS, or both.
//!
//! Used by the listeners (TLS) and by `routes` (the token). Files are read once, at start: a new token or certificate
//! needs a restart. Does not: know who a holder of the token is; all of them may read everything.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{self, HeaderMap};
use rustls::ServerConfig;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use subtle::ConstantTimeEq;
use tokio_rustls::TlsAcceptor;

use crate::failure::Advice;
use crate::pem::{self, PemError};

/// Shortest token that is accepted: 16 characters, 96 bits in base64.
const MIN_TOKEN_BYTES: usize = 16;
/// A token file is smaller; a device such as /dev/zero has no end.
const MAX_TOKEN_BYTES: u64 = 4 << 10;

/// Files that limit who may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessFiles {
    /// Holds the token.
    pub token: Option<PathBuf>,
    /// The server's certificate chain and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The authorities of clients' certificates; with them, a client must present one.
    pub client_authorities: Option<PathBuf>,
}

/// Access that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token's file cannot be read.
    #[error("cannot read the token {}: {source}", path.display())]
    Token {
        /// The configured file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The token could be guessed, or cannot be sent in a header.
    #[error("the token in {} must have 16 to 4096 printable ASCII characters without spaces", path.display())]
    WeakToken {
        /// The configured file.
        path: PathBuf,
    },
    /// A PEM file cannot be used.
    #[error(transparent)]
    File(#[from] PemError),
    /// The authorities of clients' certificates cannot be used.
    #[error("cannot verify clients' certificates")]
    Clients(#[from] VerifierBuilderError),
    /// The certificate cannot be used, for instance since its key is another one's.
    #[error("cannot use the page's certificate")]
    Certificate(#[from] rustls::Error),
}

impl Advice for AccessError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            AccessError::Token { .. } => "page.token_file names a file that the agent may read",
            AccessError::WeakToken { .. } => "make one with `openssl rand -hex 32`",
            AccessError::File(error) => return error.hint(),
            AccessError::Clients(_) => "page.client_ca_file must hold certificates of authorities",
            AccessError::Certificate(_) => "page.key_file must hold the private key of page.certificate_file",
        };
        hint.into()
    }
}

/// What a request must bring, and how connections are encrypted.
pub struct Access {
    token: Option<Vec<u8>>,
    pub tls: Option<TlsAcceptor>,
}

impl Access {
    /// Anyone who reaches the listener may read.
    pub fn open() -> Access {
        Access { token: None, tls: None }
    }

    /// Reads the files.
    pub fn from_files(files: &AccessFiles) -> Result<Access, AccessError> {
        Ok(Access {
            token: files.token.as_deref().map(read_token).transpose()?,
            tls: files
                .certificate
                .as_ref()
                .map(|(certificate, key)| acceptor(certificate, key, files.client_authorities.as_deref()))
                .transpose()?,
        })
    }

    /// Whether a request with these headers may be answered. `Authorization: Bearer TOKEN`, or for browsers, which ask
    /// their user for it, `Basic` with any name and the token as password (RFC 6750 and RFC 7617).
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let Some((scheme, credentials)) = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
        else {
            return false;
        };
        let credentials = credentials.trim();
        let sent = if scheme.eq_ignore_ascii_case("bearer") {
            credentials.as_bytes().to_vec()
        } else if scheme.eq_ignore_ascii_case("basic") {
            let pair = STANDARD.decode(credentials).unwrap_or_default();
            match pair.iter().position(|byte| *byte == b':') {
                Some(colon) => pair[colon + 1..].to_vec(),
                None => return false,
            }
        } else {
            return false;
        };
        // The time depends on the length only.
        bool::from(token.as_slice().ct_eq(&sent))
    }
}

fn read_token(path: &Path) -> Result<Vec<u8>, AccessError> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_TOKEN_BYTES + 2).read_to_end(&mut text))
        .map_err(|source| AccessError::Token {
            path: path.to_owned(),
            source,
        })?;
    let token = text.trim_ascii();
    let fits = (MIN_TOKEN_BYTES as u64..=MAX_TOKEN_BYTES).contains(&(token.len() as u64));
    if fits && token.iter().all(u8::is_ascii_graphic) {
        return Ok(token.to_vec());
    }
    Err(AccessError::WeakToken { path: path.to_owned() })
}

fn acceptor(certificate: &Path, key: &Path, authorities: Option<&Path>) -> Result<TlsAcceptor, AccessError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match authorities {
        Some(path) => {
            let roots = Arc::new(pem::roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let chain = pem::certificates(certificate, "the page's certificate")?;
    let mut config = builder.with_single_cert(chain, pem::private_key(key)?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use hyper::header::HeaderValue;

    use super::*;

    fn token_file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn only_the_token_admits() {
        let file = token_file(b"0123456789abcdef\n");
        let access = Access::from_files(&AccessFiles {
            token: Some(file.path().to_owned()),
            ..AccessFiles::default()
        })
        .unwrap();
        let admits = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            access.admits(&headers)
        };
        assert!(admits("Bearer 0123456789abcdef") && admits("bearer  0123456789abcdef"));
        assert!(admits(&format!("Basic {}", STANDARD.encode("me:0123456789abcdef"))));
        for refused in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer",
            "Bearer ",
            "Digest 0123456789abcdef",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!admits(refused), "{refused}");
        }
        assert!(!access.admits(&HeaderMap::new()));
        assert!(Access::open().admits(&HeaderMap::new()));
    }

    #[test]
    fn a_weak_or_missing_token_is_an_error_with_a_hint() {
        for text in [
            &b""[..],
            b"short",
            b"sixteen and more characters",
            &[0xff; 32],
            &[b'x'; 5_000],
        ] {
            let file = token_file(text);
            let error = read_token(file.path()).unwrap_err();
            assert!(matches!(error, AccessError::WeakToken { .. }) && error.hint().contains("openssl"));
        }
        let missing = read_token(Path::new("/nonexistent/token")).unwrap_err();
        assert!(missing.hint().contains("page.token_file"));
    }
}
