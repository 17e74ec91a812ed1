//! Work in another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `work` on a thread of its own in the network namespace at `path`, and waits for it. Sockets that it opens stay in
/// that namespace, and so do the threads that it starts. A panic of `work` goes on in the caller.
///
/// # Errors
/// When the namespace cannot be opened or entered.
pub fn within<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            // Open, it would keep the namespace alive.
            drop(namespace);
            Ok(work())
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
