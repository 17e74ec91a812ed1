//! The event stream: what it sends, how many there are, and readers that do not read.

use super::*;

#[tokio::test]
async fn a_stream_sends_rows_and_health_and_ends_with_the_server() {
    let mut rig = Rig::start(|options| options.health_interval = Duration::from_millis(100)).await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    let head = read_until(&mut stream, "event: health").await;
    assert!(
        head.contains("content-type: text/event-stream") && head.contains("retry: 2000"),
        "{head}"
    );
    let trace = samples::failed("n", "p", 7, wall_ns(), None);
    for _ in 0..5 {
        rig.store.update(trace.clone());
    }
    let text = read_until(&mut stream, "event: row").await + &read_until(&mut stream, "event: health").await;
    let rows = text.matches("event: row").count();
    assert_eq!(rows, 1, "five changes at once are one event: {text}");
    assert!(
        text.contains(&trace.id.to_string()) && text.contains("\"result\":\"failed\""),
        "{text}"
    );

    rig.stop.send(true).unwrap();
    let begin = Instant::now();
    rig.server.take().unwrap().stopped().await;
    assert!(begin.elapsed() < DRAIN, "an open stream held up the end");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(TcpStream::connect(rig.address).await.is_err(), "still listening");
}

#[tokio::test]
async fn streams_are_counted_and_places_come_back() {
    // Of four, a peer has two.
    let rig = Rig::start(|options| options.max_streams = 4).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = rig.connect().await;
        stream.write_all(STREAM).await.unwrap();
        assert!(read_until(&mut stream, "event: health").await.contains("200 OK"));
        open.push(stream);
    }
    assert_eq!(rig.json("/api/v1/health").await["streams"], 2);
    let refused = rig.ask("GET /api/v1/stream").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let mut other = rig.connect_from([127, 0, 0, 2]).await;
    other.write_all(STREAM).await.unwrap();
    assert!(read_until(&mut other, "event: health").await.contains("200 OK"));
    drop(other);
    open.clear();
    for _ in 0..50 {
        if rig.json("/api/v1/health").await["streams"] == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the places of gone streams did not come back");
}

#[tokio::test]
async fn a_reader_that_stops_reading_never_holds_up_the_store_and_is_notified() {
    // An update that waited for the reader would until this one is cut.
    const CUT_AFTER: Duration = Duration::from_secs(60);
    let rig = Rig::start(|options| options.write_timeout = CUT_AFTER).await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    assert!(read_until(&mut stream, "event: health").await.contains("200 OK"));
    let begin = Instant::now();
    let shed = || rig.health.shed.get_or_create(&SinkLabel { sink: "store" }).get();
    let mut number = 0;
    while shed() == 0 && begin.elapsed() < CUT_AFTER / 2 {
        for _ in 0..200 {
            number += 1;
            let update = Instant::now();
            rig.store.update(samples::usual("n", "p", number % 2_000, 1));
            assert!(update.elapsed() < CUT_AFTER / 2);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(shed() > 0, "nothing was counted as shed");
    assert!(read_until(&mut stream, "event: reload").await.contains("event: reload"));
}

// The sockets of Wine take more than is written here.
#[cfg(not(windows))]
#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut() {
    let rig = Rig::start(|options| {
        options.write_timeout = Duration::from_millis(200);
        options.health_interval = Duration::from_millis(1);
    })
    .await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    // Events fill the buffers of both ends, on a busy machine slowly; then the connection goes.
    for _ in 0..1_200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if rig.json("/api/v1/health").await["streams"] == 0 {
            return;
        }
    }
    panic!("a reader that takes nothing kept its place");
}
