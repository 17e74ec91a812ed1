//! Frames and whole exchanges over an in-memory stream, good and hostile.

use super::*;

#[test]
fn frames_round_trip_and_hostile_ones_are_refused() {
    assert_eq!(unframe(frame(b"abc", false), 16).unwrap(), Bytes::from_static(b"abc"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &[7; 100]).unwrap();
    let gzip = frame(&gzip.finish().unwrap(), true);
    assert_eq!(unframe(gzip.clone(), 100).unwrap(), Bytes::from_static(&[7; 100]));
    assert!(matches!(unframe(gzip, 99), Err(CallError::TooLarge(99))));
    for bad in [
        &b"\x01\0\0\0\0"[..],
        b"\x01\0\0\0\x03abc",
        b"\x02\0\0\0\0",
        b"\0\0\0\0",
        b"\0\0\0\0\x05ab",
        b"\0\xff\xff\xff\xffab",
    ] {
        assert!(
            matches!(unframe(Bytes::copy_from_slice(bad), 16), Err(CallError::Frame)),
            "{bad:?}"
        );
    }
}

/// Answers one call over an in-memory stream with `status`, `headers`, the bytes of the body and `trailers`.
async fn exchange(
    status: u16,
    headers: &[(&'static str, &'static str)],
    data: &'static [u8],
    trailers: Option<&[(&'static str, &'static str)]>,
) -> Result<Bytes, CallError> {
    let map = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    };
    let (headers, trailers) = (map(headers), trailers.map(map));
    let (client, server) = tokio::io::duplex(1 << 16);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (headers, trailers) = (headers.clone(), trailers.clone());
        async move {
            assert_eq!(request.method(), Method::POST);
            assert_eq!(request.uri().to_string(), "http://sock/pkg.Service/Method");
            assert_eq!(request.headers()["content-type"], "application/grpc");
            assert_eq!(request.headers()["te"], "trailers");
            assert_eq!(request.headers()["x-own"], "1");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, frame(b"ask", false));
            let body = Full::new(Bytes::from_static(data)).with_trailers(async move { trailers.map(Ok) });
            let mut response = hyper::Response::new(body);
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            *response.headers_mut() = headers;
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    tokio::spawn(async move {
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(hyper_util::rt::TokioIo::new(server), service)
            .await;
    });
    let mut sender = handshake(client).await.unwrap();
    let own = map(&[("x-own", "1")]);
    call_bounded(
        &mut sender,
        "http://sock",
        "/pkg.Service/Method",
        &own,
        b"ask",
        false,
        16,
    )
    .await
}

#[tokio::test]
async fn answers_are_read_as_the_protocol_says() {
    let ok = Some(&[("grpc-status", "0")][..]);
    let message = exchange(200, &[], b"\0\0\0\0\x03yes", ok).await;
    assert_eq!(message.unwrap(), Bytes::from_static(b"yes"));
    assert_eq!(exchange(200, &[], b"\0\0\0\0\0", ok).await.unwrap(), Bytes::new());
    let trailers_only = exchange(200, &[("grpc-status", "5"), ("grpc-message", "no%20pod")], b"", None).await;
    let error = trailers_only.unwrap_err();
    assert_eq!(error.to_string(), "gRPC status 5 (NOT_FOUND): no pod");
    let with_details = Some(&[("grpc-status", "8"), ("grpc-status-details-bin", "CAg")][..]);
    match exchange(200, &[], b"", with_details).await {
        Err(CallError::Status { code: 8, details, .. }) => assert_eq!(details, "CAg"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        exchange(503, &[], b"busy", None).await,
        Err(CallError::Http(503))
    ));
    let both = exchange(503, &[("grpc-status", "7")], b"", None).await;
    assert!(matches!(both, Err(CallError::Status { code: 7, .. })), "{both:?}");
}

#[tokio::test]
async fn answers_that_break_the_protocol_are_errors() {
    let ok = Some(&[("grpc-status", "0")][..]);
    let large = exchange(200, &[], b"\0\0\0\0\x0c0123456789ab", ok).await;
    assert!(matches!(large, Err(CallError::TooLarge(16))), "{large:?}");
    for bad in [&b"\x01\0\0\0\x01a"[..], b"\0\0\0", b"\0\0\0\0\x09ab", b"\0\0\0\0\x01ab"] {
        let answer = exchange(200, &[], bad, ok).await;
        assert!(matches!(answer, Err(CallError::Frame)), "{bad:?}: {answer:?}");
    }
    let no_status = exchange(200, &[], b"\0\0\0\0\0", None).await;
    assert!(matches!(no_status, Err(CallError::Transport(_))), "{no_status:?}");
    let odd_status = exchange(200, &[], b"", Some(&[("grpc-status", "many")])).await;
    assert!(
        matches!(odd_status, Err(CallError::Status { code: 2, .. })),
        "{odd_status:?}"
    );
}

#[tokio::test]
async fn a_bad_method_path_is_an_error() {
    let (client, _server) = tokio::io::duplex(1 << 16);
    let mut sender = handshake(client).await.unwrap();
    let answer = call(&mut sender, "http://sock", " not a path", &HeaderMap::new(), b"", false).await;
    assert!(matches!(answer, Err(CallError::Method(_))), "{answer:?}");
}

#[test]
fn messages_are_percent_decoded() {
    assert_eq!(percent_decode("a%20b%"), "a b%");
    assert_eq!(percent_decode("%zz%4%+1"), "%zz%4%+1");
    assert_eq!(percent_decode("%C3%BC%ff"), "\u{fc}\u{fffd}");
}
