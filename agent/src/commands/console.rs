//! Standard output of commands, and the runtime that they run on.

use std::io::Write;

use crate::failure::{Failure, NO_THREADS};

/// Writes to standard output; a reader that closed its end is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::runtime(
            format!("cannot write to standard output: {error}"),
            "what it is redirected to must have room and be writable",
        )),
        _ => Ok(()),
    }
}

/// Runs a command on two workers: the pipeline has a thread of its own and needs none of them.
pub fn block_on<F: Future<Output = Result<(), Failure>>>(command: F) -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("cannot start the runtime: {error}"), NO_THREADS))?
        .block_on(command)
}
