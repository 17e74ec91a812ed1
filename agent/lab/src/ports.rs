//! Free ports of the loopback address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// `port` of the loopback address.
#[must_use]
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Ports that nothing listens on: the wanted ones where they are free, else others. 0 means any. All are held until all
/// are chosen, so that no two are the same; another process may take one afterwards.
///
/// # Errors
/// When the machine has no port left.
pub fn free<const N: usize>(wanted: [u16; N]) -> io::Result<[u16; N]> {
    let mut held = Vec::new();
    let mut free = [0; N];
    for (place, wanted) in free.iter_mut().zip(wanted) {
        let listener = TcpListener::bind(local(wanted)).or_else(|_| TcpListener::bind(local(0)))?;
        *place = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_not_given_again() {
        let taken = TcpListener::bind(local(0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let [one, two] = free([port, 0]).unwrap();
        assert!(one != port && two != port && one != two);
    }
}
