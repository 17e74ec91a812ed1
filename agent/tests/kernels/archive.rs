//! An initramfs: a cpio archive of the form "newc" (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Does not: compress, or know devices.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    /// Of the libraries so far: programs share them.
    libraries: BTreeSet<PathBuf>,
}

impl Archive {
    /// A program of this machine, with the libraries that it is linked with, the loader included.
    pub fn program(&mut self, name: &str, program: &Path) -> Result<()> {
        self.put(
            name,
            0o100_755,
            &fs::read(program).with_context(|| program.display().to_string())?,
        );
        for library in libraries(program)? {
            if !self.libraries.insert(library.clone()) {
                continue;
            }
            let bytes = fs::read(&library)?;
            let file = library
                .file_name()
                .and_then(|name| name.to_str())
                .context("a library without a name")?;
            self.put(&format!("lib/{file}"), 0o100_755, &bytes);
            self.link(&format!("lib64/{file}"), &format!("../lib/{file}"));
        }
        Ok(())
    }

    /// A folder with all that is below it.
    pub fn folder(&mut self, name: &str, folder: &Path) -> Result<()> {
        self.put(name, 0o040_755, &[]);
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let inside = format!("{name}/{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => self.folder(&inside, &entry.path())?,
                false => self.put(&inside, 0o100_644, &fs::read(entry.path())?),
            }
        }
        Ok(())
    }

    /// A symbolic link.
    pub fn link(&mut self, name: &str, target: &str) {
        self.put(name, 0o120_777, target.as_bytes());
    }

    pub fn put(&mut self, name: &str, mode: u32, content: &[u8]) {
        let inode = self.bytes.len() / 4 + 1;
        let (size, name_size) = (content.len(), name.len() + 1);
        // Inode, mode, owner, group, links, time, size, device and its own, each twice, length of the name, check sum.
        let fields = [inode, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let head: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.bytes.extend_from_slice(format!("070701{head}").as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub fn end(mut self) -> Vec<u8> {
        self.put("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// A copy of a program without what a debugger reads: most of a test's program, which an emulated processor would copy. The names of
/// functions stay, for backtraces. The program itself where there is no `strip` of its architecture.
pub fn stripped(program: &Path, strip: &str, scratch: &Path) -> PathBuf {
    let copy = scratch.join("stripped");
    let mut command = Command::new(strip);
    command.arg("--strip-debug").arg("-o").arg(&copy).arg(program);
    match command.status() {
        Ok(status) if status.success() => copy,
        _ => program.to_owned(),
    }
}

fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    ensure!(output.status.success(), "ldd {}", program.display());
    let text = String::from_utf8(output.stdout)?;
    Ok(text
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}
