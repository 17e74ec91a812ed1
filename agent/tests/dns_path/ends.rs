//! Both ends of the conversations: messages in bytes, and connections through the path.
//!
//! Does not: decide which queries and answers are sent.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::lab::exchange::header;
use super::lab::random::Random;
use super::lab::{Lab, POD, SERVER, inside};

/// A message with its length in front (RFC 1035 4.2.2).
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

/// The answer to a query of one question, with so many addresses and so many bytes of padding (RFC 7830).
pub fn answer(query: &[u8], addresses: u8, padding: Option<u16>) -> Vec<u8> {
    let id = u16::from_be_bytes([query[0], query[1]]);
    let mut answer = header(id, 0x8180, [1, addresses.into(), 0, padding.is_some().into()]);
    answer.extend(&query[12..]);
    for number in 0..addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 153, 9, number]);
    }
    if let Some(padding) = padding {
        answer.extend([0, 0, 41, 4, 208, 0, 0, 0, 0]);
        answer.extend((padding + 4).to_be_bytes());
        answer.extend([0, 12]);
        answer.extend(padding.to_be_bytes());
        answer.extend(vec![0; padding.into()]);
    }
    answer
}

/// Bytes that [`answer`] needs for padding besides the padding itself.
pub const PADDING_HEAD: usize = 15;

/// The next message of a stream; `None` at its end.
pub fn next_message(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut prefix = [0; 2];
    stream.read_exact(&mut prefix).ok()?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(prefix))];
    stream.read_exact(&mut message).ok()?;
    Some(message)
}

/// Writes in pieces of random lengths, which do not care where messages end.
pub fn write_in_pieces(stream: &mut TcpStream, mut bytes: &[u8], random: &mut Random) {
    while !bytes.is_empty() {
        let longest = [40, 400, 6000][usize::try_from(random.below(3)).unwrap()];
        let (piece, rest) = bytes.split_at(bytes.len().min(1 + usize::try_from(random.below(longest)).unwrap()));
        stream.write_all(piece).unwrap();
        bytes = rest;
    }
}

/// A server that connections can be opened to.
pub struct Listener(TcpListener);

impl Listener {
    pub fn open(lab: &Lab) -> Listener {
        Listener(inside(&lab.server(), || TcpListener::bind((SERVER, 53)).unwrap()))
    }

    /// A connection: the pod's end and the server's.
    pub fn connect(&self, lab: &Lab) -> (TcpStream, TcpStream) {
        let client = inside(&lab.pod(), || TcpStream::connect((SERVER, 53)).unwrap());
        let server = self.0.accept().unwrap().0;
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (client, server)
    }
}

/// Two connected UDP sockets: the pod's and the server's.
pub fn sockets(lab: &Lab) -> (UdpSocket, UdpSocket) {
    let client = inside(&lab.pod(), || UdpSocket::bind((POD, 0)).unwrap());
    let server = inside(&lab.server(), || UdpSocket::bind((SERVER, 53)).unwrap());
    client.connect((SERVER, 53)).unwrap();
    server.connect(client.local_addr().unwrap()).unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        // What finds a socket's queue full was seen by the probe, and is not read here.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(end, 4 << 20).unwrap();
    }
    (client, server)
}

/// Longer than anything takes that will come.
const PATIENCE: Duration = Duration::from_secs(20);
