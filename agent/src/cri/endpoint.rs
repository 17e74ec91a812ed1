//! The address of a container runtime: configured, or the first default socket that exists.
//!
//! Used by [`super::Cri`] and `doctor`. Does not: connect.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::platform::{HAS_PIPES, is_socket, pipes};

/// Sockets of containerd, CRI-O, k3s and RKE2, cri-dockerd, k0s and MicroK8s, in the order they are tried.
pub const DEFAULT_SOCKETS: [&str; 10] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/var/run/containerd/containerd.sock",
    "/var/run/crio/crio.sock",
    "/var/run/k3s/containerd/containerd.sock",
    "/var/run/cri-dockerd.sock",
];

/// A parsed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`, unencrypted.
    Tcp(String),
    /// A named pipe, `\\.\pipe\name`; on Windows.
    Pipe(String),
}

/// Which runtime to use, as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// `auto`: the first of [`DEFAULT_SOCKETS`] that exists.
    #[default]
    Auto,
    /// `none`: no runtime.
    Off,
    /// The runtime at this address.
    At(Endpoint),
}

impl RuntimeChoice {
    /// Reads `auto`, `none` or an address as [`Endpoint::parse`] takes it.
    pub fn parse(text: &str) -> Result<RuntimeChoice, BadEndpoint> {
        match text.trim() {
            "auto" => Ok(RuntimeChoice::Auto),
            "none" => Ok(RuntimeChoice::Off),
            address => Endpoint::parse(address).map(RuntimeChoice::At),
        }
    }

    /// The runtime's address; default sockets are looked for below `root` (normally `/`).
    #[must_use]
    pub fn endpoint(&self, root: &Path) -> Option<Endpoint> {
        match self {
            RuntimeChoice::Auto => Endpoint::find(root),
            RuntimeChoice::Off => None,
            RuntimeChoice::At(endpoint) => Some(endpoint.clone()),
        }
    }
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad CRI endpoint {text:?}: {why}")]
pub struct BadEndpoint {
    text: String,
    why: &'static str,
}

impl Endpoint {
    /// Reads `unix:///path`, `/path` or `tcp://host:port`.
    pub fn parse(text: &str) -> Result<Endpoint, BadEndpoint> {
        let bad = |why| BadEndpoint {
            text: text.to_owned(),
            why,
        };
        let trimmed = text.trim();
        if HAS_PIPES && let Some(name) = pipe_name(trimmed) {
            return match name.is_empty() || name.len() > 200 {
                true => Err(bad("a pipe is given as npipe:////./pipe/NAME")),
                false => Ok(Endpoint::Pipe(format!("{PIPES}{name}"))),
            };
        }
        if let Some(address) = trimmed.strip_prefix("tcp://") {
            let (host, port) = address.rsplit_once(':').ok_or(bad("the port is missing"))?;
            if host.is_empty() {
                return Err(bad("the host is missing"));
            }
            if address.contains(['/', '?', '@', ' ']) {
                return Err(bad("only tcp://host:port is understood"));
            }
            return match port.parse::<u16>() {
                Ok(1..) => Ok(Endpoint::Tcp(address.to_owned())),
                _ => Err(bad("the port is not a number from 1 to 65535")),
            };
        }
        let path = match trimmed.strip_prefix("unix:") {
            Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
            None if trimmed.contains("://") => return Err(bad("only unix:// and tcp:// are understood")),
            None => trimmed,
        };
        if !path.starts_with('/') || path.len() < 2 {
            return Err(bad("a socket is given by its absolute path"));
        }
        // sun_path has 108 bytes, one of them for the terminating zero (unix(7)).
        if path.len() > 107 {
            return Err(bad("the path of a socket has at most 107 bytes"));
        }
        Ok(Endpoint::Unix(PathBuf::from(path)))
    }

    /// The first of [`DEFAULT_SOCKETS`] that exists below `root` (normally `/`).
    #[must_use]
    pub fn find(root: &Path) -> Option<Endpoint> {
        let pipes = pipes();
        let pipe = DEFAULT_PIPES.iter().find(|name| pipes.iter().any(|pipe| pipe == *name));
        if let Some(name) = pipe {
            return Some(Endpoint::Pipe(format!("{PIPES}{name}")));
        }
        DEFAULT_SOCKETS
            .iter()
            .map(|socket| root.join(socket.trim_start_matches('/')))
            .find(|path| is_socket(path))
            .map(Endpoint::Unix)
    }

    /// The `scheme://authority` of requests. For a Unix socket any name is valid; gRPC clients send `localhost`.
    #[must_use]
    pub(super) fn origin(&self) -> String {
        match self {
            Endpoint::Unix(_) | Endpoint::Pipe(_) => "http://localhost".to_owned(),
            Endpoint::Tcp(address) => format!("http://{address}"),
        }
    }

    /// Whether calls stay on this node.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Endpoint::Unix(_) => true,
            Endpoint::Pipe(path) => path.starts_with(PIPES),
            Endpoint::Tcp(address) => {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix://{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "tcp://{address}"),
            Endpoint::Pipe(path) => write!(f, "npipe://{}", path.replace('\\', "/")),
        }
    }
}

/// The name in `npipe:////./pipe/NAME`, as kubelet writes it, or in the pipe's path.
fn pipe_name(text: &str) -> Option<String> {
    let slashes = text.replace('\\', "/");
    let path = slashes.strip_prefix("npipe:").unwrap_or(&slashes);
    let name = path.trim_start_matches('/').strip_prefix("./pipe/");
    match (name, text.starts_with("npipe:")) {
        (Some(name), _) => Some(name.to_owned()),
        (None, true) => Some(String::new()),
        (None, false) => None,
    }
}

/// Directory of named pipes on this machine.
const PIPES: &str = r"\\.\pipe\";
/// Pipes of containerd and cri-dockerd.
const DEFAULT_PIPES: [&str; 2] = ["containerd-containerd", "cri-dockerd"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let unix = Endpoint::Unix(PathBuf::from("/run/a.sock"));
        for text in [
            "unix:///run/a.sock",
            "/run/a.sock",
            "unix:/run/a.sock",
            " /run/a.sock\n",
        ] {
            assert_eq!(Endpoint::parse(text).as_ref(), Ok(&unix), "{text:?}");
        }
        assert_eq!(
            Endpoint::parse("tcp://127.0.0.1:3000"),
            Ok(Endpoint::Tcp("127.0.0.1:3000".to_owned()))
        );
        assert_eq!(Endpoint::parse("tcp://[::1]:3000").map(|e| e.is_local()), Ok(true));
        assert_eq!(Endpoint::parse("tcp://10.0.0.1:3000").map(|e| e.is_local()), Ok(false));
    }

    #[test]
    fn pipes_are_read_where_there_are_some() {
        for text in [
            "npipe:////./pipe/containerd-containerd",
            r"\\.\pipe\containerd-containerd",
        ] {
            assert_eq!(pipe_name(text).as_deref(), Some("containerd-containerd"), "{text:?}");
            let pipe = Endpoint::Pipe(r"\\.\pipe\containerd-containerd".to_owned());
            assert_eq!(Endpoint::parse(text).ok(), HAS_PIPES.then_some(pipe), "{text:?}");
        }
        let pipe = Endpoint::Pipe(r"\\.\pipe\containerd-containerd".to_owned());
        assert_eq!(pipe.to_string(), "npipe:////./pipe/containerd-containerd");
        assert!(Endpoint::parse("npipe://elsewhere").is_err());
    }

    #[test]
    fn a_choice_is_read() {
        assert_eq!(RuntimeChoice::parse("auto"), Ok(RuntimeChoice::Auto));
        assert_eq!(RuntimeChoice::parse("none"), Ok(RuntimeChoice::Off));
        let at = RuntimeChoice::parse("/run/a.sock").unwrap();
        assert_eq!(at.endpoint(Path::new("/")), Some(Endpoint::Unix("/run/a.sock".into())));
        assert!(RuntimeChoice::parse("of").is_err());
    }

    #[test]
    fn other_text_is_refused() {
        let long = format!("/{}", "x".repeat(107));
        for text in [
            "",
            "/",
            "run/a.sock",
            "unix://",
            "http://localhost:1",
            "tcp://localhost",
            "tcp://:80",
            "tcp://h:0",
            "tcp://h:70000",
            "tcp://h/x:80",
            &long,
        ] {
            assert!(Endpoint::parse(text).is_err(), "{text:?}");
        }
    }
}
