//! The agent's ctnetlink sockets: one that is subscribed to announcements, and requests with their answers.
//!
//! Used by `conntrack` and `counts`. Sockets belong to the network namespace of the thread that opens them.
//! Does not: decode messages.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

use super::netlink::{Message, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR, messages, request, take};

/// A socket for announcements of new and ended flows.
pub struct Announcements {
    socket: OwnedFd,
    buffer: Vec<u8>,
    lost: u32,
}

/// What is next in the socket.
pub enum Told<'a> {
    /// One or more messages.
    Message(&'a [u8]),
    /// Messages were lost here; how many is said by [`Announcements::take_lost`].
    Overrun,
    /// No more for now.
    Nothing,
}

impl Announcements {
    /// Opens it, with room for so many bytes of messages; the kernel's own overhead counts too. 0: as it is.
    pub fn open(buffer_bytes: usize) -> io::Result<Announcements> {
        let socket = open()?;
        if buffer_bytes > 0 {
            set_socket_recv_buffer_size_force(&socket, buffer_bytes)
                .or_else(|_| set_socket_recv_buffer_size(&socket, buffer_bytes))?;
        }
        Ok(Announcements {
            socket,
            buffer: vec![0; MESSAGE_MAX],
            lost: 0,
        })
    }

    /// From now on announcements come.
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

    /// What is next; does not wait.
    pub fn next(&mut self) -> Told<'_> {
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((length, _)) => return Told::Message(&self.buffer[..length.min(MESSAGE_MAX)]),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => return Told::Overrun,
                Err(_) => return Told::Nothing,
            }
        }
    }

    /// How many messages found no room since the last call.
    pub fn take_lost(&mut self) -> u64 {
        let dropped = drops(self.socket.as_fd());
        let new = dropped.wrapping_sub(self.lost);
        self.lost = dropped;
        u64::from(new)
    }
}

/// How many messages this socket had no room for since it was opened.
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
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Requests {
    /// Opens it.
    pub fn open() -> io::Result<Requests> {
        let socket = open()?;
        Ok(Requests {
            socket,
            sequence: 0,
            buffer: vec![0; ANSWER_MAX].into_boxed_slice(),
        })
    }

    /// Asks, and hands every message of the answer to `take`.
    pub fn ask(&mut self, kind: u16, dump: bool, mut take_message: impl FnMut(&Message<'_>)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = if dump { NLM_F_DUMP } else { 0 };
        send(&self.socket, &request(kind, flags, self.sequence), SendFlags::empty())?;
        // The kernel answers within send(2), or goes on within recv(2): there is nothing to wait for. Bounded all the same.
        for _ in 0..ANSWERS_MAX {
            let (length, _) = recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT)?;
            for message in messages(&self.buffer[..length.min(ANSWER_MAX)]) {
                match message.kind {
                    _ if message.sequence != self.sequence => {}
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return refusal(&message),
                    _ => {
                        take_message(&message);
                        if !dump {
                            return Ok(());
                        }
                    }
                }
            }
        }
        Err(io::Error::other("the answer has no end"))
    }
}

/// The errno in a message of type NLMSG_ERROR.
fn refusal(message: &Message<'_>) -> io::Result<()> {
    match take(message.payload, 0).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        None => Err(io::Error::other("an answer without an error code")),
    }
}

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
const MESSAGE_MAX: usize = 8192;
/// The kernel makes answers as large as the buffer, so a large one would cost it more.
const ANSWER_MAX: usize = 8192;
/// Each holds the counters of some fifty processors or more.
const ANSWERS_MAX: u32 = 512;
