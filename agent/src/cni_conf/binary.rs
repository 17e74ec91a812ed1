//! Where a plugin's binary is.
//!
//! Used by `doctor` and, since CRI-O passes over networks without binaries, by `directory.rs`. Source: `FindInPath` of
//! libcni's `pkg/invoke/find.go` (v1.3.1). Does not: execute it.

use std::path::PathBuf;

use super::os::{PROGRAM_EXTENSIONS, is_executable};

/// Where a plugin's binary is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binary {
    /// Here.
    Found(PathBuf),
    /// Here, but not executable.
    NotExecutable(PathBuf),
    /// In none of the directories.
    Missing,
    /// Nowhere: libcni refuses a path as a plugin's type.
    NotAName,
}

impl Binary {
    /// Looks for a binary as libcni does: the first directory that has a regular file of that name counts.
    #[must_use]
    pub fn find(kind: &str, directories: &[PathBuf]) -> Binary {
        if kind.contains(std::path::MAIN_SEPARATOR) {
            return Binary::NotAName;
        }
        for directory in directories {
            for extension in PROGRAM_EXTENSIONS {
                let path = directory.join(format!("{kind}{extension}"));
                match std::fs::metadata(&path) {
                    Ok(metadata) if metadata.is_file() => {
                        return if is_executable(&path, &metadata) {
                            Binary::Found(path)
                        } else {
                            Binary::NotExecutable(path)
                        };
                    }
                    _ => {}
                }
            }
        }
        Binary::Missing
    }
}
