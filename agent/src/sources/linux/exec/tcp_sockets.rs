//! TCP connections within the node that a process has open: from `/proc/PID/fd` and `/proc/PID/net/tcp` (proc_pid_net(5)).
//!
//! Used by `exec::daemons` for plugins that are slow when messages begin to be followed: their requests were sent before, and the
//! kernel side knows the client of a TCP connection only from what it sends or receives.
//! Does not: see connections that leave the node, or unix sockets, whose ends the kernel names itself.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The connections of a process, as the kernel side numbers them: inode of the network namespace and both ports, the own one first.
pub fn connections(pid: u32) -> Vec<u64> {
    let sockets = sockets(pid);
    if sockets.is_empty() {
        return Vec::new();
    }
    let Ok(netns) = fs::metadata(format!("/proc/{pid}/ns/net")) else {
        return Vec::new();
    };
    let tables = ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::File::open(format!("/proc/{pid}/net/{table}")).ok());
    let ports = tables.flat_map(|table| local_connections(BufReader::new(table.take(TABLE_MAX)), &sockets));
    ports
        .map(|(own, other)| netns.ino() << 32 | u64::from(own) << 16 | u64::from(other))
        .collect()
}

/// Own and other port of these sockets' connections within the node. Reads no further than to the last of the sockets: the kernel writes
/// a line for every connection of the namespace, those that were closed within the last minute among them.
fn local_connections(table: impl BufRead, sockets: &HashSet<u64>) -> Vec<(u16, u16)> {
    // A line that is no text, or cannot be read, is the end.
    let lines = table.lines().map_while(Result::ok);
    let of_sockets = lines.filter_map(|line| local_connection(&line, sockets));
    of_sockets.take(sockets.len()).collect()
}

/// Inodes of the TCP sockets that a process has open. Most plugins have none, only such of netlink, and their namespace's table need not
/// be read then: the kernel walks all its buckets for that.
fn sockets(pid: u32) -> HashSet<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |path: PathBuf| {
        let link = fs::read_link(&path).ok()?;
        let inside = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        may_be_tcp(&path).then(|| inside.parse().ok())?
    };
    let paths = entries.take(DESCRIPTORS_MAX).map(|entry| entry.path());
    paths.filter_map(inode).collect()
}

/// Whether the kernel names this socket's protocol `TCP` or `TCPv6` (net/socket.c, `sockfs_xattr_get`), or does not name it.
fn may_be_tcp(socket: &Path) -> bool {
    let mut name = [0; 32];
    let length = rustix::fs::getxattr(socket, "system.sockprotoname", &mut name);
    length.map_or(true, |length| name[..length].starts_with(b"TCP"))
}

/// Own and other port of an established connection within the node, of one of these sockets. A line:
/// `0: 0100007F:C350 0100007F:C383 01 .. inode ..`, addresses in hexadecimal words as they lie in memory.
fn local_connection(line: &str, sockets: &HashSet<u64>) -> Option<(u16, u16)> {
    let mut fields = line.split_ascii_whitespace();
    let (local, remote, state) = (fields.nth(1)?, fields.next()?, fields.next()?);
    if state != ESTABLISHED || !sockets.contains(&fields.nth(5)?.parse().ok()?) {
        return None;
    }
    let ((from, own), (to, other)) = (local.split_once(':')?, remote.split_once(':')?);
    let is_loopback = |address: &str| address.len() == 8 && address.ends_with("7F");
    if from != to && !(is_loopback(from) && is_loopback(to)) {
        return None;
    }
    let port = |text: &str| u16::from_str_radix(text, 16).ok();
    Some((port(own)?, port(other)?))
}

/// `TCP_ESTABLISHED` (include/net/tcp_states.h).
const ESTABLISHED: &str = "01";
/// Descriptors of one process that are looked at: shims have few.
const DESCRIPTORS_MAX: usize = 64;
/// Bytes of a table: twenty-eight thousand connections, which the kernel writes in some 25 ms.
const TABLE_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;
    use std::process::Command;

    use super::*;

    /// Of a process of its own: this one runs many tests at once and may have more than `DESCRIPTORS_MAX` open. Another of them may
    /// connect to an address where nobody listened before, so the process says that it is itself.
    #[test]
    fn the_connections_of_a_process_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let connect = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; echo me >&3; read -r end <&3",
            server.port()
        );
        let mut process = Command::new("bash").args(["-c", &connect]).spawn().unwrap();
        let (connection, client) = loop {
            let (mut connection, client) = listener.accept().unwrap();
            let mut said = [0; 3];
            if connection.read_exact(&mut said).is_ok() && said == *b"me\n" {
                break (connection, client);
            }
        };
        let found = connections(process.id());
        drop(connection);
        process.wait().unwrap();
        let netns = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let expected = netns << 32 | u64::from(client.port()) << 16 | u64::from(server.port());
        assert_eq!(found, [expected]);
        assert_eq!(connections(u32::MAX), Vec::<u64>::new());
    }

    #[test]
    fn a_connection_behind_many_others_is_found_and_what_follows_is_not_read() {
        let others = "0: 0100007F:C351 0100007F:C383 06 0:0 0:0 0 0 0 0 1\n".repeat(50_000);
        let own = "1: 0100007F:C350 0100007F:C383 01 0:0 0:0 0 0 0 7 1\n";
        let after = "2: 0100007F:C352 0100007F:C383 06 0:0 0:0 0 0 0 0 1\n";
        let table = format!("{others}{own}{after}");
        let mut table = std::io::Cursor::new(table);
        let found = local_connections(&mut table, &HashSet::from([7]));
        assert_eq!(found, [(50_000, 50_051)]);
        assert_eq!(table.position() as usize, others.len() + own.len());
    }

    #[test]
    fn only_sockets_of_tcp_are_looked_up() {
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let named = |socket: i32| may_be_tcp(Path::new(&format!("/proc/self/fd/{socket}")));
        assert!(named(listener.as_raw_fd()));
        assert!(!named(unix.as_raw_fd()) && !named(udp.as_raw_fd()));
    }

    #[test]
    fn connections_that_leave_the_node_are_left_out() {
        let sockets = HashSet::from([7]);
        for (line, expected) in [
            (
                "0: 0100007F:C350 0200007F:C383 01 0:0 0:0 0 0 0 7 1",
                Some((50_000, 50_051)),
            ),
            (
                "0: 0A00000A:C350 0A00000A:C383 01 0:0 0:0 0 0 0 7 1",
                Some((50_000, 50_051)),
            ),
            ("0: 0100007F:C350 0A00000A:C383 01 0:0 0:0 0 0 0 7 1", None),
            ("0: 0100007F:C350 0100007F:C383 06 0:0 0:0 0 0 0 7 1", None),
            ("0: 0100007F:C350 0100007F:C383 01 0:0 0:0 0 0 0 8 1", None),
            ("sl local_address rem_address st", None),
            ("", None),
        ] {
            assert_eq!(local_connection(line, &sockets), expected, "{line}");
        }
    }
}
