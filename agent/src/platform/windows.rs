//! Windows: Ctrl-C and the service control manager, named pipes; no Unix sockets, no size of a terminal.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::windows::named_pipe::{ClientOptions, NamedPipeClient};
use tokio::signal::ctrl_c;
use tokio::sync::Notify;

/// Waits for Ctrl-C, or until the service control manager stops the service ([`stop`]).
pub async fn until_stopped() {
    tokio::select! {
        () = STOP.notified() => {}
        _ = ctrl_c() => {}
    }
}

/// Ends [`until_stopped`], on request of the service control manager.
pub fn stop() {
    STOP.notify_one();
}

/// Requests to read the configuration again: there are none, a changed file is found.
#[derive(Debug)]
pub struct ReloadRequests;

impl ReloadRequests {
    /// The same as on Linux.
    #[must_use]
    pub fn receive() -> ReloadRequests {
        ReloadRequests
    }

    /// Never ends.
    pub async fn next(&mut self) {
        std::future::pending().await
    }
}

/// Unknown: `COLUMNS` and `LINES` decide.
#[must_use]
pub fn terminal_size() -> Option<(usize, usize)> {
    None
}

/// Handles are limited by memory only.
#[must_use]
pub fn open_files() -> usize {
    usize::MAX
}

/// Nothing here is a Unix socket.
#[must_use]
pub fn is_socket(_path: &Path) -> bool {
    false
}

/// There are no Unix sockets.
#[expect(clippy::unused_async, reason = "the same as on Linux")]
pub async fn connect_socket(_path: &Path) -> io::Result<NamedPipeClient> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Creates a file; who may read it is inherited from its folder. An existing one is an error.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Opens a file for writing, and creates it where it does not exist; who may read it is inherited from its folder.
pub fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).open(path)
}

/// Creates a directory, and those above it; who may read it is inherited.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Whether others may enter a directory is decided by the one above it.
pub fn shared_mode(_directory: &Path) -> io::Result<Option<u32>> {
    Ok(None)
}

/// Is not called: `shared_mode` finds nothing.
pub fn make_private(_directory: &Path) -> io::Result<()> {
    Ok(())
}

/// Whether SO_REUSEADDR lets a program listen on a port that its predecessor has just left, and no more: on Windows the option
/// would let two programs share the port.
pub const REUSES_ADDRESSES: bool = false;

/// Whether this system has the Host Network Service and the Host Compute Service.
pub const HAS_HNS: bool = true;

/// Whether this system has named pipes.
pub const HAS_PIPES: bool = true;

/// Names of the pipes that exist. Listing them connects to none.
#[must_use]
pub fn pipes() -> Vec<String> {
    let entries = std::fs::read_dir(r"\\.\pipe\");
    let names = entries.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Connects to a named pipe. While all its instances are taken, it tries again.
pub async fn connect_pipe(path: &str) -> io::Result<NamedPipeClient> {
    loop {
        match ClientOptions::new().open(path) {
            Err(error) if error.raw_os_error() == Some(ERROR_PIPE_BUSY) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => return opened,
        }
    }
}

static STOP: Notify = Notify::const_new();
/// winerror.h: all instances of the pipe are in use.
const ERROR_PIPE_BUSY: i32 = 231;
