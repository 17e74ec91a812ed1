//! A log file of bounded size: when it is full it becomes the old file, and the old file before it is removed.
//!
//! Used where standard error leads nowhere: by the Windows service. Each write is a whole line and is never split between the
//! two files. Does not: fail the agent; a line that cannot be written is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
}

/// Bound of each of the two files, in bytes.
pub const MAX_BYTES: u64 = 4 << 20;

impl LogFile {
    /// Opens the file for appending, and makes its directory.
    ///
    /// # Errors
    /// When the directory or the file cannot be made.
    pub fn open(path: &Path, max_bytes: u64) -> io::Result<LogFile> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = append(path)?;
        let bytes = file.metadata()?.len();
        Ok(LogFile {
            path: path.to_owned(),
            file,
            bytes,
            max_bytes,
        })
    }

    /// Renames the file to the old one. When that fails, because another process has it open, the file is truncated: it must not
    /// grow.
    fn rotate(&mut self) -> io::Result<()> {
        let fresh = fs::rename(&self.path, old(&self.path)).and_then(|()| append(&self.path));
        match fresh {
            Ok(file) => self.file = file,
            Err(_) => {
                File::create(&self.path)?;
                self.file = append(&self.path)?;
            }
        }
        self.bytes = 0;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.max_bytes {
            self.rotate()?;
        }
        // A line longer than the bound is cut; the rest counts as written.
        let kept = &line[..line.len().min(usize::try_from(self.max_bytes).unwrap_or(usize::MAX))];
        self.file.write_all(kept)?;
        self.bytes += kept.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The path of the Windows service's log: `sandglass\sandglass.log` below `%ProgramData%`.
#[must_use]
pub fn of_service(program_data: Option<PathBuf>) -> PathBuf {
    let directory = program_data.unwrap_or_else(|| PathBuf::from(r"C:\ProgramData"));
    directory.join("sandglass").join("sandglass.log")
}

/// `sandglass.old.log` beside `sandglass.log`.
fn old(path: &Path) -> PathBuf {
    path.with_extension("old.log")
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rotates_when_full_and_keeps_one_old_file_of_whole_lines() {
        let place = tempfile::tempdir().unwrap();
        let path = of_service(Some(place.path().to_owned()));
        for number in 0..100 {
            // Opened anew each time, as by a service that is started over and over.
            let mut log = LogFile::open(&path, 64).unwrap();
            log.write_all(format!("line {number:02}\n").as_bytes()).unwrap();
            log.flush().unwrap();
        }
        let [now, before] = [&path, &old(&path)].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
        assert!(now.len() <= 64 && before.len() == 64, "{now} {before}");
        let lines: Vec<&str> = before.lines().chain(now.lines()).collect();
        let numbers: Vec<String> = (100 - lines.len()..100)
            .map(|number| format!("line {number:02}"))
            .collect();
        assert_eq!(lines, numbers);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sandglass.log");
        let mut log = LogFile::open(&path, 10).unwrap();
        log.write_all(b"ab\n").unwrap();
        log.write_all(&[b'x'; 1_000]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [b'x'; 10]);
        assert_eq!(fs::read(old(&path)).unwrap(), b"ab\n");
    }

    #[test]
    fn where_it_cannot_rotate_it_is_truncated() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sandglass.log");
        fs::create_dir_all(old(&path).join("in the way")).unwrap();
        let mut log = LogFile::open(&path, 10).unwrap();
        log.write_all(b"one line\n").unwrap();
        log.write_all(b"another\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"another\n");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(LogFile::open(&of_service(Some(file)), 10).is_err());
    }
}
