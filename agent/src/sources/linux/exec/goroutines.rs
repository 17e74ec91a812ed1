//! Which daemons are programs written in Go, whose scheduler moves work between threads, and which of their goroutines does something.
//!
//! Used by the requests of plugins to daemons, for daemons that are followed. A program of Go has a section `.go.buildinfo` (Go 1.13 and newer,
//! `debug/buildinfo`) with the version, also where symbols and build id are stripped. A few pages of the running program's file are read for it,
//! once for each process. Does not: know goroutines of versions that it has no layout of.

use std::collections::HashMap;
use std::fs::File;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use sandglass_model::ProcessKey;
use sandglass_model::daemons::Goroutine;
use sandglass_probes::wire::GoroutineWords;

/// What was found of each process.
#[derive(Debug, Default)]
pub struct Goroutines(HashMap<ProcessKey, Program>);

/// What a process executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// A program in Go 1 with this minor version, 0 where that is not known.
    Go(u32),
    Other,
}

/// A node has a few daemons for its network. Of more, what was found is forgotten.
const PROCESSES_MAX: usize = 64;

impl Goroutines {
    /// Whether this process runs such a program; not where its file cannot be read.
    pub fn are_in(&mut self, process: ProcessKey) -> bool {
        matches!(self.program(process), Program::Go(_))
    }

    /// The goroutine of this process that the kernel side found; `None` where there is none, or the program's version is not known.
    pub fn resolve(&mut self, process: ProcessKey, words: &GoroutineWords) -> Option<Goroutine> {
        if *words == GoroutineWords::default() {
            return None;
        }
        let (id, creator) = match self.program(process) {
            Program::Go(minor) => ids(minor, words)?,
            Program::Other => return None,
        };
        (id != 0).then_some(Goroutine { id, creator })
    }

    fn program(&mut self, process: ProcessKey) -> Program {
        if self.0.len() >= PROCESSES_MAX && !self.0.contains_key(&process) {
            self.0.clear();
        }
        let look = || program_at(&format!("/proc/{}/exe", process.pid)).unwrap_or(Program::Other);
        *self.0.entry(process).or_insert_with(look)
    }
}

/// The ids of a goroutine and of the one that created it: `goid` and `parentGoid` of `runtime.g` (`src/runtime/runtime2.go`), by the type
/// information of programs that the first release of each version built and a late one (`scripts/goroutine-ids.sh`: 1.21.13, 1.22.12, 1.23.12,
/// 1.24.13, 1.25.5, 1.26.8). Go 1.20 has no `parentGoid`.
fn ids(minor: u32, words: &GoroutineWords) -> Option<(u64, u64)> {
    match minor {
        21 | 22 | 25 => Some((words.at_152, words.at_272)),
        23 | 24 => Some((words.at_160, words.at_280)),
        26 => Some((words.at_152, words.at_280)),
        _ => None,
    }
}

fn program_at(path: &str) -> Option<Program> {
    let data = ReadCache::new(File::open(path).ok()?);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &data).ok()?;
    let Some((_, section)) = sections.section_by_name(endian, b".go.buildinfo") else {
        return Some(Program::Other);
    };
    let info = section.data(endian, &data).unwrap_or_default();
    Some(Program::Go(minor_of(info).unwrap_or(0)))
}

/// The minor version in a section `.go.buildinfo`. Behind 32 bytes, of which bit 1 of the 16th says so, lies the version with its length in
/// front (Go 1.18 and newer, `debug/buildinfo`); older ones have an address there.
fn minor_of(info: &[u8]) -> Option<u32> {
    if info.get(15)? & 2 == 0 {
        return None;
    }
    let length = usize::from(*info.get(32)?);
    let version = std::str::from_utf8(info.get(33..33 + length)?).ok()?;
    let minor = version.strip_prefix("go1.")?;
    let digits = minor.find(|letter: char| !letter.is_ascii_digit());
    minor[..digits.unwrap_or(minor.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINERD: &str = "/usr/bin/containerd";

    #[test]
    fn a_program_of_another_language_has_none() {
        assert_eq!(program_at("/proc/self/exe"), Some(Program::Other));
        assert_eq!(program_at("/proc/self/stat"), None);
        let own = ProcessKey::new(std::process::id(), 0);
        assert!(!Goroutines::default().are_in(own));
    }

    #[test]
    fn a_program_of_go_has_them() {
        const TEST: &str = "sources::linux::exec::goroutines::tests::a_program_of_go_has_them";
        if sandglass_lab::skip::has(TEST, CONTAINERD) {
            let program = program_at(CONTAINERD);
            assert!(matches!(program, Some(Program::Go(minor)) if minor > 0), "{program:?}");
        }
    }

    #[test]
    fn ids_lie_where_the_version_has_them() {
        let words = GoroutineWords {
            at_152: 1,
            at_160: 2,
            at_272: 3,
            at_280: 4,
        };
        for (minor, expected) in [
            (20, None),
            (21, Some((1, 3))),
            (22, Some((1, 3))),
            (23, Some((2, 4))),
            (24, Some((2, 4))),
            (25, Some((1, 3))),
            (26, Some((1, 4))),
            (27, None),
            (0, None),
        ] {
            assert_eq!(ids(minor, &words), expected, "go1.{minor}");
        }
    }

    #[test]
    fn a_version_is_read_or_it_is_not() {
        let info = |flags: u8, version: &[u8]| {
            let mut bytes = b"\xff Go buildinf:\x08".to_vec();
            bytes.push(flags);
            bytes.resize(32, 0);
            bytes.push(u8::try_from(version.len()).unwrap());
            bytes.extend(version);
            bytes
        };
        for (version, expected) in [
            (&b"go1.26.8"[..], Some(26)),
            (b"go1.9", Some(9)),
            (b"go1.22.12 X:boringcrypto", Some(22)),
            (b"devel go1.27-1a2b", None),
            (b"go1.", None),
            (b"go1.99999999999", None),
            (b"\xff", None),
            (b"", None),
        ] {
            assert_eq!(minor_of(&info(2, version)), expected, "{version:?}");
        }
        assert_eq!(minor_of(&info(0, b"go1.26.8")), None);
        let whole = info(2, b"go1.26.8");
        for length in 0..whole.len() {
            assert_eq!(minor_of(&whole[..length]), None, "{length} bytes");
        }
    }
}
