//! Which daemons are programs written in Go, whose scheduler moves work between threads.
//!
//! Used by the requests of plugins to daemons, for daemons that are followed. A program of Go has a section `.go.buildinfo` (Go 1.13 and newer,
//! `debug/buildinfo`), also where symbols and build id are stripped. A few pages of the running program's file are read for it, once
//! for each process. Does not: read the section.

use std::collections::HashMap;
use std::fs::File;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::FileHeader as _;
use sandglass_model::ProcessKey;

/// What was found of each process.
#[derive(Debug, Default)]
pub struct Goroutines(HashMap<ProcessKey, bool>);

/// A node has a few daemons for its network. Of more, what was found is forgotten.
const PROCESSES_MAX: usize = 64;

impl Goroutines {
    /// Whether this process runs such a program; not where its file cannot be read.
    pub fn are_in(&mut self, process: ProcessKey) -> bool {
        if self.0.len() >= PROCESSES_MAX && !self.0.contains_key(&process) {
            self.0.clear();
        }
        let look = || is_of_go(&format!("/proc/{}/exe", process.pid)).unwrap_or(false);
        *self.0.entry(process).or_insert_with(look)
    }
}

fn is_of_go(path: &str) -> Option<bool> {
    let data = ReadCache::new(File::open(path).ok()?);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &data).ok()?;
    Some(sections.section_by_name(endian, b".go.buildinfo").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINERD: &str = "/usr/bin/containerd";

    #[test]
    fn a_program_of_another_language_has_none() {
        assert_eq!(is_of_go("/proc/self/exe"), Some(false));
        assert_eq!(is_of_go("/proc/self/stat"), None);
        let own = ProcessKey::new(std::process::id(), 0);
        assert!(!Goroutines::default().are_in(own));
    }

    #[test]
    fn a_program_of_go_has_them() {
        const TEST: &str = "sources::linux::exec::goroutines::tests::a_program_of_go_has_them";
        if sandglass_lab::skip::has(TEST, CONTAINERD) {
            assert_eq!(is_of_go(CONTAINERD), Some(true));
        }
    }
}
