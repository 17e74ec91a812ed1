//! The agent's ctnetlink sockets: a subscription to flows, and requests with their responses.
//!
//! Used by `conntrack` and `counts`. A socket belongs to the network namespace of the thread that opens it.
//! Does not: decode messages.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

use super::netlink::{NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR, NetlinkMessage, messages, request, take};

/// A socket that receives new and ended flows.
pub struct Subscription {
    /// Of the netfilter subsystem, bound to the groups of new and destroyed flows.
    socket: OwnedFd,
    /// Room for one datagram.
    buffer: Vec<u8>,
    /// The kernel's count of lost messages at the last call of [`Subscription::take_lost`]; it wraps.
    lost: u32,
}

/// The outcome of one attempt to receive.
pub enum Received<'a> {
    /// One or more messages of one datagram.
    Message(&'a [u8]),
    /// Messages were lost; [`Subscription::take_lost`] counts them.
    Overrun,
    /// No message is there.
    Nothing,
}

impl Subscription {
    /// Opens the socket with a buffer of this size, in which the kernel's overhead counts too; 0 for the system's default.
    ///
    /// # Errors
    /// When the kernel has no ctnetlink, or the agent no CAP_NET_ADMIN.
    pub fn open(buffer_bytes: usize) -> io::Result<Subscription> {
        let socket = open()?;
        if buffer_bytes > 0 {
            set_socket_recv_buffer_size_force(&socket, buffer_bytes)
                .or_else(|_| set_socket_recv_buffer_size(&socket, buffer_bytes))?;
        }
        Ok(Subscription {
            socket,
            buffer: vec![0; MESSAGE_MAX],
            lost: 0,
        })
    }

    /// Subscribes to new and destroyed flows.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN.
    pub fn subscribe(&self) -> io::Result<()> {
        Ok(bind(
            &self.socket,
            &SocketAddrNetlink::new(0, GROUP_NEW | GROUP_DESTROY),
        )?)
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Receives the next message without waiting.
    pub fn next(&mut self) -> Received<'_> {
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((length, _)) => return Received::Message(&self.buffer[..length.min(MESSAGE_MAX)]),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => return Received::Overrun,
                Err(_) => return Received::Nothing,
            }
        }
    }

    /// How many messages found the buffer full since the last call.
    pub fn take_lost(&mut self) -> u64 {
        let dropped = drops(self.socket.as_fd());
        let new = dropped.wrapping_sub(self.lost);
        self.lost = dropped;
        u64::from(new)
    }
}

/// How many messages found the socket's buffer full since it was opened (`SO_MEMINFO`: net/core/sock.c, sk_getsockopt; since
/// Linux 4.12).
fn drops(socket: BorrowedFd<'_>) -> u32 {
    let mut memory = [0_u32; SK_MEMINFO_VARS];
    let mut length = libc::socklen_t::try_from(size_of_val(&memory)).unwrap_or(0);
    // SAFETY: the pointers are to live values, and `length` is the size of what the first one points to.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if outcome == 0 { memory[SK_MEMINFO_DROPS] } else { 0 }
}

/// A socket for requests.
pub struct Requests {
    socket: OwnedFd,
    /// Number of the last request. A response with another number belongs to a request that was given up.
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Requests {
    /// Opens the socket.
    ///
    /// # Errors
    /// As for [`Subscription::open`].
    pub fn open() -> io::Result<Requests> {
        let socket = open()?;
        Ok(Requests {
            socket,
            sequence: 0,
            buffer: vec![0; RESPONSE_MAX].into_boxed_slice(),
        })
    }

    /// Sends a request, and calls `on_message` with every message of the response: one, or a list where `dump` is set.
    ///
    /// # Errors
    /// The error that the kernel responds with, or that of the socket.
    pub fn send(&mut self, kind: u16, dump: bool, mut on_message: impl FnMut(&NetlinkMessage<'_>)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = if dump { NLM_F_DUMP } else { 0 };
        send(&self.socket, &request(kind, flags, self.sequence), SendFlags::empty())?;
        // The kernel responds within send(2), and continues a dump within recv(2) (net/netlink/af_netlink.c, netlink_dump):
        // there is nothing to wait for.
        for _ in 0..RESPONSES_MAX {
            let (length, _) = recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT)?;
            for message in messages(&self.buffer[..length.min(RESPONSE_MAX)]) {
                match message.kind {
                    _ if message.sequence != self.sequence => {}
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return error_code(&message),
                    _ => {
                        on_message(&message);
                        if !dump {
                            return Ok(());
                        }
                    }
                }
            }
        }
        Err(io::Error::other("the response has no end"))
    }
}

/// The errno in a message of type NLMSG_ERROR.
fn error_code(message: &NetlinkMessage<'_>) -> io::Result<()> {
    match take(message.payload, 0).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        None => Err(io::Error::other("a response without an error code")),
    }
}

/// A netlink socket of the netfilter subsystem, in the network namespace of the calling thread (netlink(7)).
fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(NETFILTER),
    )?)
}

// include/uapi/linux/netfilter/nfnetlink_compat.h: NF_NETLINK_CONNTRACK_NEW, .._DESTROY.
const GROUP_NEW: u32 = 1;
const GROUP_DESTROY: u32 = 4;
// include/uapi/asm-generic/socket.h; the same on all machines the agent is built for.
const SO_MEMINFO: libc::c_int = 55;
// include/uapi/linux/sock_diag.h
const SK_MEMINFO_VARS: usize = 9;
const SK_MEMINFO_DROPS: usize = 8;
/// Bytes of one datagram, which holds one message of some hundred bytes.
const MESSAGE_MAX: usize = 8192;
/// The kernel makes responses as large as the buffer: a larger buffer would only cost more.
const RESPONSE_MAX: usize = 8192;
/// Each response holds the counters of fifty processors or more.
const RESPONSES_MAX: u32 = 512;
