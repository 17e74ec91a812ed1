//! Free ports of the loopback address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// `port` of the loopback address.
#[must_use]
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Ports that nothing listens on: the wanted ones where they are free, else others. 0 means any. All are held until all
/// are chosen, so that no two are the same. They lie below those that the kernel gives to sockets without a wish (from 32768 on,
/// `net.ipv4.ip_local_port_range`; from 49152 on Windows), so that until a program listens on one only another caller may take it, who begins elsewhere.
///
/// # Errors
/// When the machine has no port left.
pub fn free<const N: usize>(wanted: [u16; N]) -> io::Result<[u16; N]> {
    let mut held = Vec::new();
    let mut free = [0; N];
    for (place, wanted) in free.iter_mut().zip(wanted) {
        let wanted = (wanted > 0).then(|| TcpListener::bind(local(wanted)));
        let listener = wanted.and_then(Result::ok).map_or_else(any, Ok)?;
        *place = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(free)
}

/// A listener on the next free port of [`FIRST`] and the [`COUNT`] that follow. Each process begins at one of its own.
fn any() -> io::Result<TcpListener> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(APART);
    let mut last = None;
    for _ in 0..COUNT {
        let number = begin.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + u16::try_from(number).unwrap_or(0);
        match TcpListener::bind(local(port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

/// Below the node ports of Kubernetes (30000 to 32767).
const FIRST: u16 = 22_000;
const COUNT: u32 = 8_000;
/// Between the first ports of two processes that were started one after the other.
const APART: u32 = 61;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_not_given_again() {
        let taken = TcpListener::bind(local(0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let [one, two] = free([port, 0]).unwrap();
        assert!(one != port && two != port && one != two);
        let kernels = u32::from(FIRST) + COUNT..;
        assert!(
            !kernels.contains(&u32::from(one)) && !kernels.contains(&u32::from(two)),
            "{one}, {two}"
        );
    }
}
