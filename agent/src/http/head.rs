//! Reads a request's head before the request gets a place, and decides which places it uses.
//!
//! Used by the listeners. What is read here is handed to hyper, which parses it; this module only looks for the end of
//! the head and for requests that can be answered at once. Does not: judge whether a head is valid.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest head, as hyper's `max_buf_size`; a longer one is handed on as it is, and refused there.
pub const MAX_HEAD_BYTES: usize = 16 << 10;

/// Which places a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A probe of the kubelet: it has reserved places, and its answer is ready at once.
    Health,
    /// An event stream: it lasts as long as its reader wants.
    Stream,
    /// Everything else.
    Other,
}

/// Reads up to the end of the head, or to [`MAX_HEAD_BYTES`]. Fails when the peer closes before.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    // Small, since hundreds of connections may wait here.
    let mut chunk = [0; 512];
    loop {
        let count = stream.read(&mut chunk).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // A blank line in front of a request is allowed (RFC 9112, section 2.2) and ends no head.
        let blank = match head.is_empty() {
            true => chunk[..count].iter().take_while(|byte| b"\r\n".contains(byte)).count(),
            false => 0,
        };
        let before = head.len().saturating_sub(3);
        head.extend_from_slice(&chunk[blank..count]);
        if ends(&head[before..]) || head.len() >= MAX_HEAD_BYTES {
            return Ok(head);
        }
    }
}

fn ends(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

/// The class of a request by its head.
pub fn class(head: &[u8]) -> Class {
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut words = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let has_body = lines.any(|line| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding")
    });
    match path {
        // A body would have to be waited for.
        _ if has_body || !matches!(method, b"GET" | b"HEAD") => Class::Other,
        b"/healthz" | b"/readyz" => Class::Health,
        b"/api/v1/stream" => Class::Stream,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_head_ends_with_a_blank_line_wherever_reads_end() {
        for whole in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            b"GET / HTTP/1.1\nHost: x\n\n",
            b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            for cut in 1..whole.len() {
                let mut parts = in_two_reads(whole, cut);
                let head = read(&mut parts).await.unwrap();
                assert!(head.starts_with(b"GET / HTTP/1.1") && ends(&head), "{cut}");
                let mut early = &whole[..cut];
                assert!(read(&mut early).await.is_err(), "{cut}");
            }
        }
    }

    /// Two reads: up to `cut`, and the rest.
    fn in_two_reads(whole: &[u8], cut: usize) -> impl AsyncRead + Unpin {
        let (first, rest) = whole.split_at(cut);
        first.chain(rest)
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_handed_on() {
        let endless = vec![b'x'; 2 * MAX_HEAD_BYTES];
        let length = read(&mut &endless[..]).await.unwrap().len();
        assert!((MAX_HEAD_BYTES..MAX_HEAD_BYTES + 512).contains(&length), "{length}");
    }

    #[test]
    fn only_a_probe_without_a_body_has_reserved_places() {
        for (head, expected) in [
            ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", Class::Health),
            ("HEAD /readyz?verbose HTTP/1.1\r\n\r\n", Class::Health),
            ("GET /healthz HTTP/1.1\r\nContent-Length: 9\r\n\r\n", Class::Other),
            (
                "GET /healthz HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\n\r\n",
                Class::Other,
            ),
            ("POST /healthz HTTP/1.1\r\n\r\n", Class::Other),
            ("GET /healthz/x HTTP/1.1\r\n\r\n", Class::Other),
            ("GET /metrics HTTP/1.1\r\n\r\n", Class::Other),
            ("GET /api/v1/stream HTTP/1.1\r\n\r\n", Class::Stream),
            ("", Class::Other),
        ] {
            assert_eq!(class(head.as_bytes()), expected, "{head:?}");
        }
    }
}
