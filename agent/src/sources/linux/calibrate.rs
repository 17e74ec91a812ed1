//! Finds out where the kernel's linear mapping shows the pages of pipes, which the kernel randomizes at boot.
//!
//! Used once, when the source starts. No symbol is needed and nothing is guessed: a token in a pipe of the agent's own
//! must be found at the address, or what plugins read and write stays unread.
//! Does not: let anything of what it looks at out of the kernel; candidates are compared there.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use sandglass_probes::wire::{CALIBRATION_STEPS, Calibration};

use super::loader::{Pages, Processes};

/// Runs the calibration; says why when it does not succeed.
pub fn run(processes: &mut Processes, pages: &mut Pages) -> Result<(), &'static str> {
    if !cfg!(target_arch = "x86_64") {
        return Err("where pages of pipes lie is only known for x86_64");
    }
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (reader, writer) = pipe.map_err(|_| "no pipe can be made")?;
    // Nowhere else in memory, by chance or by design.
    let token = [0, 1].map(|n: u64| RandomState::new().hash_one(n));
    let bytes: Vec<u8> = token.iter().flat_map(|word| word.to_ne_bytes()).collect();
    File::from(writer)
        .write_all(&bytes)
        .map_err(|_| "a pipe cannot be written")?;
    if !processes.begin_calibration() {
        return Err("the table of processes takes no entry");
    }
    let fd = u32::try_from(reader.as_raw_fd()).unwrap_or(u32::MAX);
    let found = rounds().any(|from_gib| round(pages, token, fd, from_gib));
    processes.forget(std::process::id());
    if found {
        Ok(())
    } else {
        Err("the kernel's linear mapping was not found")
    }
}

/// Below the first guess first: a task lies above the beginning of the mapping.
fn rounds() -> impl Iterator<Item = i64> {
    let steps = i64::from(CALIBRATION_STEPS);
    (0..ROUNDS).flat_map(move |n| [-n * steps, (n + 1) * steps])
}

/// One round: the exit of a thread of this process is the moment at which the kernel side looks.
fn round(pages: &mut Pages, token: [u64; 2], fd: u32, from_gib: i64) -> bool {
    let wanted = Calibration {
        token,
        bias: 0,
        from_gib,
        fd,
        found: 0,
    };
    pages.set(&wanted) && std::thread::spawn(|| {}).join().is_ok() && is_found_soon(pages)
}

/// A thread counts as joined when it has left its memory, which may be shortly before the probe sees its exit.
fn is_found_soon(pages: &Pages) -> bool {
    (0..LOOKS).any(|look| {
        if look > 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        pages.is_found()
    })
}

/// Two of 256 GiB each.
const ROUNDS: i64 = 8;
const LOOKS: u32 = 4;
