//! One file of network configuration: read within bounds, parsed, judged as the runtime's loader does.
//!
//! Used by `cni_conf.rs`. Sources: `loadFromConfDir` of go-cni's `opts.go` (v1.0.2 to v1.1.14), `loadNetworks` of ocicni's
//! `ocicni.go` (v0.4.0 to v0.5.0), `NetworkConfFromFile` of libcni's `conf.go`.
//! Does not: look for plugin binaries (`plugins.rs`), or read more than 1 MiB of a file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::error::{ConfError, ReadError, located};
use super::json::Value;
use super::libcni::{self, NetworkListFile};
use super::loader::{Libcni, Loader};
use super::network::Network;

/// Reads and judges one file. Its extension decides whether it holds a list or one plugin.
pub(super) fn load(path: &Path, loader: Loader) -> Result<Network, ConfError> {
    judge(path, &read_bounded(path).map_err(ConfError::Read)?, loader)
}

/// Judges the content of a file that is, or would be, at `path`.
///
/// # Errors
/// When the loader refuses it, or nobody can read it.
pub fn judge(path: &Path, bytes: &[u8], loader: Loader) -> Result<Network, ConfError> {
    let libcni = loader.generation();
    let root = parse(bytes)?;
    let is_list = extension(path) == Some(b"conflist");
    let list = if is_list {
        let mut list = libcni::list(root, libcni)?;
        if libcni >= Libcni::V1_3 && !list.inlined_only {
            add_from_directory(&mut list, path.parent().unwrap_or(Path::new("/")), libcni)?;
        }
        list
    } else {
        libcni::single(root, libcni)?
    };
    if list.plugins.is_empty() {
        return Err(ConfError::NoPlugins);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Network::new(list, &name, loader.runtime, is_list))
}

/// The generations of libcni that disagree with the newest about a file, with their verdicts.
pub(super) fn judged_otherwise(path: &Path, loader: Loader) -> Vec<(Libcni, Result<Network, ConfError>)> {
    let Ok(bytes) = read_bounded(path) else {
        return Vec::new();
    };
    let by = |libcni| {
        let libcni = Some(libcni);
        judge(path, &bytes, Loader { libcni, ..loader })
    };
    let newest = by(Libcni::NEWEST);
    let others = Libcni::ALL.into_iter().filter(|libcni| *libcni != Libcni::NEWEST);
    let judged = others.map(|libcni| (libcni, by(libcni)));
    judged
        .filter(|(_, verdict)| verdict.is_ok() != newest.is_ok())
        .collect()
}

/// Appends the plugins in the directory called like the network (libcni from 1.3). An unnamed network's is the directory of
/// the file itself.
fn add_from_directory(list: &mut NetworkListFile, parent: &Path, libcni: Libcni) -> Result<(), ConfError> {
    let directory = joined(parent, &list.name);
    let unlisted = |error: io::Error| ConfError::PluginDirectory {
        directory: directory.display().to_string(),
        reason: error.to_string(),
    };
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unlisted(error)),
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in entries.take(MAX_ENTRIES) {
        let entry = entry.map_err(unlisted)?;
        if extension(&entry.path()) == Some(b"conf") && !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files.push(entry.path());
        }
    }
    files.sort();
    for path in files {
        let file = path.display().to_string();
        let plugin = read_bounded(&path)
            .map_err(ConfError::Read)
            .and_then(|bytes| libcni::plugin(parse(&bytes)?, libcni, "the plugin"));
        let mut plugin = plugin.map_err(|error| ConfError::PluginFile {
            file,
            error: Box::new(error),
        })?;
        if let Value::Object(members) = Value::Object(plugin.members).canonical() {
            plugin.members = members;
            list.plugins.push(plugin);
        }
    }
    Ok(())
}

/// A name below a directory, cleaned as Go's `filepath.Join` does: by the text alone, `..` included.
fn joined(parent: &Path, name: &str) -> PathBuf {
    let mut path = parent.to_owned();
    for component in Path::new(name.trim_start_matches('/')).components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(part) => path.push(part),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path
}

fn parse(bytes: &[u8]) -> Result<Value, ConfError> {
    Value::parse(bytes).map_err(|error| located(bytes, &error))
}

/// The extension as Go's `filepath.Ext` sees it: what follows the last dot, even of a name that begins with it.
pub(super) fn extension(path: &Path) -> Option<&[u8]> {
    let name = path.file_name().map(OsStr::as_encoded_bytes)?;
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    Some(&name[dot + 1..])
}

/// Reads a regular file of at most 1 MiB.
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>, ReadError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => ReadError::Denied(error.to_string()),
        _ => ReadError::Io(error.to_string()),
    };
    // Checked before opening: to open a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Err(ReadError::Directory);
    }
    if !metadata.is_file() {
        return Err(ReadError::Special);
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ReadError::TooLarge);
    }
    Ok(bytes)
}

const MAX_FILE: u64 = 1 << 20;
const MAX_ENTRIES: usize = 4096;
