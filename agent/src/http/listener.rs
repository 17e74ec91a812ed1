//! Two listeners, and how a connection becomes a request.
//!
//! A connection waits in the [`Lobby`] until its head is complete, then takes a place of the request's class, and only
//! then is parsed by hyper, for one request. So idle and slow peers hold no place, and probes of the kubelet, whose
//! places are reserved, are answered whatever the others do. Used by [`super::serve`]. Does not: know the routes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::DRAIN;
use super::head::{self, Class, MAX_HEAD_BYTES};
use super::lobby::{Lobby, Ticket};
use super::patient::PatientIo;
use super::places::{Peer, Place, Places};
use super::routes::Answering;
use super::site::Site;
use crate::platform::{REUSES_ADDRESSES, open_files};

/// One listener.
pub struct Listener {
    site: Arc<Site>,
    lobby: Arc<Lobby>,
    health: Arc<Places>,
    places: Arc<Places>,
}

impl Listener {
    pub fn new(site: Site) -> Listener {
        let options = &site.server.options;
        Listener {
            lobby: Lobby::new(options.max_waiting.min(open_files() / 4)),
            health: Places::new(options.health_places, options.health_places),
            places: Places::new(options.max_requests, options.max_requests.div_ceil(2)),
            site: Arc::new(site),
        }
    }

    /// Accepts connections until the server stops; those that are served get [`DRAIN`] to end.
    pub async fn run(self, listener: TcpListener) {
        let this = Arc::new(self);
        let mut shutdown = this.site.server.shutdown.clone();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => break,
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let peer = Peer::of(peer.ip());
                    let (ticket, displaced) = this.lobby.enter(peer);
                    connections.spawn(Arc::clone(&this).connection(stream, peer, ticket));
                    if displaced {
                        // Peers that connect again as soon as they are displaced do not get all of the processor.
                        tokio::time::sleep(BETWEEN_DISPLACED).await;
                    }
                }
                Err(error) => {
                    // No file descriptors, or the peer has gone: neither ends the server.
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        let _ = timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
    }

    async fn connection(self: Arc<Listener>, stream: TcpStream, peer: Peer, ticket: Ticket) {
        // Events are small and must not wait for more data.
        let _ = stream.set_nodelay(true);
        match self.site.access.tls.clone() {
            None => self.request(std::future::ready(Ok(stream)), peer, ticket).await,
            Some(tls) => self.request(tls.accept(stream), peer, ticket).await,
        }
    }

    /// `opening` resolves when bytes of requests can be read; it counts as a part of the wait.
    async fn request<S>(
        self: Arc<Listener>,
        opening: impl Future<Output = io::Result<S>>,
        peer: Peer,
        mut ticket: Ticket,
    ) where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut shutdown = self.site.server.shutdown.clone();
        let wait = async {
            let mut stream = opening.await?;
            let head = head::read(&mut stream).await?;
            let class = head::class(&head);
            Ok::<_, io::Error>((stream, head, class, self.place(class, peer).await))
        };
        let ready = tokio::select! {
            _ = shutdown.wait_for(|stop| *stop) => return,
            () = ticket.displaced() => return,
            ready = timeout(self.site.server.options.head_timeout, wait) => ready,
        };
        drop(ticket);
        // An error of one connection concerns only its peer.
        let Ok(Ok((stream, head, class, _place))) = ready else {
            return;
        };
        let io = PatientIo::new(stream, head, self.site.server.options.write_timeout);
        self.answer(io, class, peer, shutdown).await;
    }

    async fn place(&self, class: Class, peer: Peer) -> Place {
        match class {
            Class::Health => self.health.take(peer).await,
            Class::Stream | Class::Other => self.places.take(peer).await,
        }
    }

    /// Serves one request. A connection ends with its response, so that no place is held by an idle one.
    async fn answer<S>(
        self: Arc<Listener>,
        io: PatientIo<S>,
        class: Class,
        peer: Peer,
        mut shutdown: watch::Receiver<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let limit = match class {
            Class::Stream => Duration::MAX,
            Class::Health | Class::Other => self.site.server.options.response_timeout,
        };
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .header_read_timeout(self.site.server.options.head_timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(64)
            .serve_connection(
                TokioIo::new(io),
                Answering {
                    site: Arc::clone(&self.site),
                    peer,
                },
            );
        let mut connection = std::pin::pin!(connection);
        let whole = async {
            tokio::select! {
                _ = connection.as_mut() => return,
                _ = shutdown.wait_for(|stop| *stop) => {}
            }
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        };
        let _ = timeout(limit, whole).await;
    }
}

/// Listens with a queue that holds a burst of thousands of connections; Tokio's own asks for 1,024.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if REUSES_ADDRESSES {
        socket.set_reuseaddr(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A thousand a second: the connections that the kernel queues meanwhile are accepted within 4 s.
const BETWEEN_DISPLACED: Duration = Duration::from_millis(1);
/// The kernel cuts it to net.core.somaxconn, 4096 by default (Linux 5.4 and later).
const BACKLOG: u32 = 4_096;
