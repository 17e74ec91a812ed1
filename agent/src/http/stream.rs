//! `/api/v1/stream`: server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! `row` carries the list row of a trace that changed, `health` the health report every few seconds. `network` means that
//! `/api/v1/network` has changed, `reload` that the reader lagged and must load the list again. Several changes of one
//! trace become one event.
//! Does not: repeat what a disconnected reader missed (it loads the list when it reconnects), or block the store.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use sandglass_model::RootId;
use serde::Serialize;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc};

use super::places::Place;
use super::server::Server;
use crate::health::SinkLabel;
use crate::view;

/// The body of one stream.
#[derive(Debug)]
pub struct EventStream {
    chunks: mpsc::Receiver<Bytes>,
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.chunks
            .poll_recv(context)
            .map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Starts a stream; it ends when its reader disconnects or the server stops. `place` is its place among the streams.
pub fn start(server: Arc<Server>, place: Place) -> EventStream {
    // A reader that does not read blocks only its own feeder, which then lags behind the store.
    let (sender, chunks) = mpsc::channel(8);
    let changes = server.services.store.subscribe();
    tokio::spawn(async move {
        let mut shutdown = server.shutdown.clone();
        tokio::select! {
            _ = shutdown.wait_for(|stop| *stop) => {}
            () = sender.closed() => {}
            () = feed(&server, changes, &sender) => {}
        }
        drop(place);
    });
    EventStream { chunks }
}

async fn feed(server: &Server, mut changes: broadcast::Receiver<RootId>, sender: &mpsc::Sender<Bytes>) {
    let mut health = tokio::time::interval(server.options.health_interval);
    health.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut seen = server.services.store.network_revision();
    if sender.send(Bytes::from_static(b"retry: 2000\n\n")).await.is_err() {
        return;
    }
    loop {
        let chunk = tokio::select! {
            // Doubles as the keep-alive.
            _ = health.tick() => {
                let health = event("health", &server.health_report());
                let revision = server.services.store.network_revision();
                let moved = std::mem::replace(&mut seen, revision) != revision;
                if moved { [health, event("network", &serde_json::json!({ "revision": revision }))].concat().into() } else { health }
            }
            change = changes.recv() => match change {
                Ok(first) => {
                    tokio::time::sleep(GATHER).await;
                    rows(server, &mut changes, first)
                }
                Err(RecvError::Lagged(missed)) => lagged(server, missed),
                Err(RecvError::Closed) => return,
            },
        };
        if sender.send(chunk).await.is_err() {
            return;
        }
    }
}

/// The rows of everything that changed since, each once.
fn rows(server: &Server, changes: &mut broadcast::Receiver<RootId>, first: RootId) -> Bytes {
    let mut changed = vec![first];
    let mut tail = Bytes::new();
    while changed.len() < MAX_GATHERED {
        match changes.try_recv() {
            Ok(root) if changed.contains(&root) => {}
            Ok(root) => changed.push(root),
            Err(TryRecvError::Lagged(missed)) => {
                tail = lagged(server, missed);
                break;
            }
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    let mut chunk = Vec::new();
    for row in changed
        .into_iter()
        .filter_map(|root| view::row(&server.services.store, root))
    {
        chunk.extend_from_slice(&event("row", &row));
    }
    chunk.extend_from_slice(&tail);
    Bytes::from(chunk)
}

fn lagged(server: &Server, missed: u64) -> Bytes {
    let label = SinkLabel { sink: "store" };
    server.services.health.shed.get_or_create(&label).inc_by(missed);
    event("reload", &serde_json::json!({ "missed": missed }))
}

/// One event. JSON has no line breaks, so one `data:` line holds it.
fn event(name: &str, value: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    Bytes::from(format!("event: {name}\ndata: {json}\n\n"))
}

/// Time to gather changes into one chunk.
const GATHER: Duration = Duration::from_millis(60);
const MAX_GATHERED: usize = 256;
