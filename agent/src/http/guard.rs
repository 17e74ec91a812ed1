//! Protection of the server: accepted host names, security headers, a limit on peers that do not read.
//!
//! Used by `routes` and the accept loop. Does not: know the routes.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// Whether a `Host` header names this server: `localhost`, a configured name, or any IP address. A page from elsewhere
/// that makes its own name point to the loopback address (DNS rebinding) sends that name here, and gets nothing; with
/// an address in its place there is no name to make point elsewhere.
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

/// A connection that is closed when its peer reads nothing for a while although data is pending.
#[derive(Debug)]
pub struct PatientIo {
    stream: TcpStream,
    patience: Duration,
    blocked: Option<Pin<Box<Sleep>>>,
}

impl PatientIo {
    /// Wraps `stream`; `patience` is how long a write may make no progress.
    pub fn new(stream: TcpStream, patience: Duration) -> PatientIo {
        PatientIo {
            stream,
            patience,
            blocked: None,
        }
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.blocked = None;
            return result;
        }
        let patience = self.patience;
        let timer = self.blocked.get_or_insert_with(|| Box::pin(sleep(patience)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => {
                // A further poll after the error fails again at once.
                timer.as_mut().reset(Instant::now());
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for PatientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for PatientIo {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.watch(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
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
