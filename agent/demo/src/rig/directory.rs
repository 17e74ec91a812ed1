//! A rig's directory: made under a lock, and cleared at the next start where its owner was killed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::RigError;
use super::programs::SEARCH;
use super::teardown::{self, Site};

/// Makes a directory of a new name and locks it.
pub(super) fn claim(base: &Path) -> Result<(PathBuf, File), RigError> {
    let failed = |path: &Path, source| RigError::SetUp {
        path: path.to_owned(),
        source,
    };
    fs::create_dir_all(base).map_err(|source| failed(base, source))?;
    let mut seed = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_nanos())
        ^ std::process::id().rotate_left(12);
    loop {
        let dir = base.join(format!("{:06x}", seed & 0xff_ffff));
        match fs::create_dir(&dir) {
            Ok(()) => {
                in_memory(&dir);
                let lock = File::open(&dir).map_err(|source| failed(&dir, source))?;
                flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| failed(&dir, error.into()))?;
                return Ok((dir, lock));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => seed = seed.wrapping_add(1),
            Err(source) => return Err(failed(&dir, source)),
        }
    }
}

/// Mounts a file system in memory on `dir`: containerd syncs its databases to disk within every call, which on a busy
/// disk takes longer than all the rest. Where that is not allowed, the disk will do.
fn in_memory(dir: &Path) {
    let _ = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "mode=0755,size=512m", "sandglass-demo"])
        .arg(dir)
        .env("PATH", SEARCH)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Clears every rig whose owner is gone, which is when its lock is free. A directory younger than a moment may be one that is
/// about to be locked.
pub(super) fn clear_left_behind(base: &Path) {
    for dir in teardown::entries(base) {
        let Ok(lock) = File::open(&dir) else { continue };
        let young = lock
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(1)));
        if young || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        tracing::info!(dir = %dir.display(), "removing what an earlier demo left behind");
        let site = Site { dir };
        if let Err(error) = site.clear() {
            tracing::warn!(dir = %site.dir.display(), %error, "an earlier demo was not removed completely");
        }
    }
}
