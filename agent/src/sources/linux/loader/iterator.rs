//! Iterators of the kernel (`SEC("iter/..")`): a program that the kernel runs for each object of a kind while a file is read.
//!
//! Used by `family` for the node's tasks and by `symbols`. Does not: know what a program writes.

use std::io::{self, Read as _};

use aya::Btf;
use aya::programs::{Iter, Program, ProgramError};

/// Loads the program for the objects of `kind`, as the kernel calls them: `task`, `bpf_map`.
///
/// # Errors
/// When it is no iterator, or the kernel rejects it: before Linux 5.8 always.
pub fn load(program: &mut Program, kind: &str, types: &Btf) -> Result<(), ProgramError> {
    let iterator: &mut Iter = program.try_into()?;
    iterator.load(kind, types)
}

/// Runs the loaded program once over all objects and returns what it wrote, up to `max` bytes.
///
/// # Errors
/// When it is no iterator, or the kernel refuses to run it.
pub fn read(program: &mut Program, max: u64) -> io::Result<Vec<u8>> {
    let iterator: &mut Iter = program.try_into().map_err(io::Error::other)?;
    let link = iterator.attach().map_err(io::Error::other)?;
    let link = iterator.take_link(link).map_err(io::Error::other)?;
    let file = link.into_file().map_err(io::Error::other)?;
    let mut written = Vec::new();
    file.take(max).read_to_end(&mut written)?;
    Ok(written)
}
