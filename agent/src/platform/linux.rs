//! Linux: POSIX signals, `TIOCGWINSZ`, Unix sockets; no named pipes.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for Ctrl-C or SIGTERM.
pub async fn until_stopped() {
    if let Ok(mut terminate) = signal(SignalKind::terminate()) {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = ctrl_c() => {}
        }
        return;
    }
    let _ = ctrl_c().await;
}

/// Requests to read the configuration again: SIGHUP. Without one of these the signal ends the process.
#[derive(Debug)]
pub struct ReloadRequests(Option<Signal>);

impl ReloadRequests {
    /// Receives them from now on.
    #[must_use]
    pub fn receive() -> ReloadRequests {
        ReloadRequests(signal(SignalKind::hangup()).ok())
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        match &mut self.0 {
            Some(hangups) => {
                let _ = hangups.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Columns and rows of the terminal behind standard output; `None` when there is none.
#[must_use]
pub fn terminal_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// Raises the limit on this process's open files as far as it may, and returns it.
#[must_use]
pub fn open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Refused where another program lowered the hard limit in the meantime: the soft one stays.
    let limit = setrlimit(Resource::Nofile, raised).map_or(limit, |()| raised);
    limit
        .current
        .map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Whether `path` is a Unix socket.
#[must_use]
pub fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Connects to a Unix socket.
pub async fn connect_socket(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

/// Creates a file that only its owner may read and write. An existing one is an error, as in `O_EXCL` (open(2)).
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Opens a file for writing, and creates it for its owner alone where it does not exist.
pub fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

/// Creates a directory, and those above it, for their owner alone.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The permission bits of a directory that others may enter too; `None` where only its owner may.
pub fn shared_mode(directory: &Path) -> io::Result<Option<u32>> {
    let mode = fs::metadata(directory)?.permissions().mode() & 0o777;
    Ok((mode != 0o700).then_some(mode))
}

/// Makes a directory its owner's alone. By descriptor: the chart's seccomp profile allows fchmod(2) only.
pub fn make_private(directory: &Path) -> io::Result<()> {
    File::open(directory)?.set_permissions(Permissions::from_mode(0o700))
}

/// Whether SO_REUSEADDR lets a program listen on a port that its predecessor has just left, and no more: on Windows the option
/// would let two programs share the port.
pub const REUSES_ADDRESSES: bool = true;

/// Whether this system has the Host Network Service and the Host Compute Service.
pub const HAS_HNS: bool = false;

/// Whether this system has named pipes.
pub const HAS_PIPES: bool = false;

/// Names of the pipes that exist.
#[must_use]
pub fn pipes() -> Vec<String> {
    Vec::new()
}

/// There is no such pipe.
#[expect(clippy::unused_async, reason = "the same as on Windows")]
pub async fn connect_pipe(_path: &str) -> io::Result<UnixStream> {
    Err(io::ErrorKind::Unsupported.into())
}
