//! One file of network configuration: read within bounds, parsed, judged as libcni does.
//!
//! Rules: CNI specification 1.1.0, section 1, and libcni (<https://github.com/containernetworking/cni/blob/main/libcni/conf.go>).
//! Does not: look for plugin binaries (`plugins.rs`), or keep anything of a file but names, types and versions.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::plugins::{Plugin, delegates};

/// A network that a file configures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// `name`.
    pub name: String,
    /// `cniVersion`, or the highest usable of `cniVersions`; empty when not given.
    pub version: String,
    /// The chain.
    pub plugins: Vec<Plugin>,
    /// What is not wrong enough to stop it.
    pub remarks: Vec<Remark>,
    /// `disableCheck`.
    pub check_disabled: bool,
    /// `disableGC`.
    pub gc_disabled: bool,
}

impl Network {
    /// Whether a runtime may ask CHECK (from 0.4.0).
    #[must_use]
    pub fn has_check(&self) -> bool {
        !self.check_disabled && at_least(&self.version, (0, 4, 0))
    }

    /// Whether a runtime may ask STATUS (from 1.1.0).
    #[must_use]
    pub fn has_status(&self) -> bool {
        at_least(&self.version, (1, 1, 0))
    }

    /// Whether a runtime may ask GC (from 1.1.0).
    #[must_use]
    pub fn has_gc(&self) -> bool {
        !self.gc_disabled && at_least(&self.version, (1, 1, 0))
    }
}

/// Why a file configures no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// It cannot be read.
    #[error("{0}")]
    Read(ReadError),
    /// It is not JSON.
    #[error("line {line}, column {column}: {reason}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// It is JSON, but no object.
    #[error("not a JSON object")]
    NotAnObject,
    /// A key has a value of the wrong type.
    #[error("{key:?} is not {expected}")]
    Type {
        /// Which key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// `name` is missing or empty.
    #[error("\"name\" is missing")]
    NoName,
    /// `name` has characters that libcni refuses.
    #[error("\"name\" {0:?} is not allowed: letters, digits, and after the first also . _ -")]
    BadName(String),
    /// There are no plugins.
    #[error("\"plugins\" is missing or empty")]
    NoPlugins,
    /// A plugin has no `type`.
    #[error("\"type\" of {0} is missing")]
    NoType(String),
    /// `type` is a path.
    #[error("\"type\" {0:?} is not a file name")]
    BadType(String),
    /// A list in a file whose name says that it holds one plugin.
    #[error("a list (\"plugins\") in a file that is not called .conflist")]
    ListInConf,
    /// One plugin in a file whose name says that it holds a list.
    #[error("one plugin (\"type\") in a file that is called .conflist")]
    ConfInList,
    /// Some version is no version.
    #[error("\"cniVersion\" {0:?} is not a version")]
    BadVersion(String),
}

impl ConfError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            ConfError::Read(ReadError::TooLarge) => "a configuration is a few KiB: is this the right file?",
            ConfError::Read(_) => "check the file's owner and mode, or run as root",
            ConfError::Json { .. } | ConfError::NotAnObject => "`jq . FILE` shows the same place",
            ConfError::Type { .. } | ConfError::BadVersion(_) => "see the CNI specification, section 1",
            ConfError::NoName | ConfError::BadName(_) => "give the network a name, for example \"name\": \"pods\"",
            ConfError::NoPlugins | ConfError::NoType(_) | ConfError::BadType(_) => {
                "\"type\" names the plugin's binary, for example \"type\": \"bridge\""
            }
            ConfError::ListInConf => "rename the file to end in .conflist",
            ConfError::ConfInList => "put the plugin into \"plugins\": [ ... ], or rename the file to end in .conf",
        }
    }
}

/// Something about a network that works, but perhaps not as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// `cniVersion` is missing.
    NoVersion,
    /// `cniVersion` is newer than any known.
    FutureVersion(String),
    /// A plugin of a list has a `name` of its own, which is overwritten.
    NameOverwritten {
        /// The plugin's type.
        plugin: String,
        /// The name that does not count.
        name: String,
    },
    /// A plugin of a list has a `cniVersion` of its own, which is overwritten.
    VersionOverwritten {
        /// The plugin's type.
        plugin: String,
        /// The version that does not count.
        version: String,
    },
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The system says no.
    #[error("cannot read: {0}")]
    Io(String),
    /// A pipe, a device, a directory.
    #[error("not a regular file")]
    NotAFile,
    /// Larger than 1 MiB.
    #[error("larger than 1 MiB")]
    TooLarge,
}

/// Reads a regular file of at most 1 MiB.
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>, ReadError> {
    let io = |error: std::io::Error| ReadError::Io(error.to_string());
    // Asked before opening: to open a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(ReadError::NotAFile);
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ReadError::TooLarge);
    }
    Ok(bytes)
}

/// Reads and judges one file. Its extension decides whether it holds a list or one plugin.
pub(super) fn load(path: &Path) -> Result<Network, ConfError> {
    let bytes = read_bounded(path).map_err(ConfError::Read)?;
    let is_list = path.extension().is_some_and(|extension| extension == "conflist");
    let mut network = parse(&bytes, is_list)?;
    if is_list && !network.inlined_only {
        let directory = path.parent().unwrap_or(Path::new("/")).join(&network.network.name);
        add_from_directory(&mut network.network, &directory)?;
    }
    if network.network.plugins.is_empty() {
        return Err(ConfError::NoPlugins);
    }
    Ok(network.network)
}

struct Parsed {
    network: Network,
    inlined_only: bool,
}

fn parse(bytes: &[u8], is_list: bool) -> Result<Parsed, ConfError> {
    let object = object(bytes)?;
    match (is_list, object.contains_key("plugins"), object.contains_key("type")) {
        (false, true, false) => return Err(ConfError::ListInConf),
        (true, false, true) => return Err(ConfError::ConfInList),
        _ => {}
    }
    let name = text(&object, "name")?;
    if name.is_empty() {
        return Err(ConfError::NoName);
    }
    if !name_is_allowed(name) {
        return Err(ConfError::BadName(bounded(name)));
    }
    let mut network = Network {
        name: name.to_owned(),
        version: version(&object)?,
        plugins: Vec::new(),
        remarks: Vec::new(),
        check_disabled: flag(&object, "disableCheck")?,
        gc_disabled: flag(&object, "disableGC")?,
    };
    match number(&network.version) {
        _ if network.version.is_empty() => network.remarks.push(Remark::NoVersion),
        Some(version) if version > NEWEST => network.remarks.push(Remark::FutureVersion(network.version.clone())),
        Some(_) => {}
        None => return Err(ConfError::BadVersion(bounded(&network.version))),
    }
    if is_list {
        add_inlined(&mut network, &object)?;
    } else {
        network.plugins.push(plugin(&object, "the plugin")?);
    }
    Ok(Parsed {
        network,
        inlined_only: flag(&object, "loadOnlyInlinedPlugins")?,
    })
}

fn add_inlined(network: &mut Network, object: &Map<String, Value>) -> Result<(), ConfError> {
    let plugins = match object.get("plugins") {
        None => return Ok(()),
        Some(Value::Array(plugins)) if plugins.is_empty() => return Err(ConfError::NoPlugins),
        Some(Value::Array(plugins)) => plugins,
        Some(_) => {
            return Err(ConfError::Type {
                key: "plugins".to_owned(),
                expected: "a list",
            });
        }
    };
    for (index, value) in plugins.iter().take(MAX_PLUGINS).enumerate() {
        let place = format!("plugins[{index}]");
        let Value::Object(object) = value else {
            return Err(ConfError::Type {
                key: place,
                expected: "an object",
            });
        };
        let plugin = plugin(object, &place)?;
        let (name, version) = (text(object, "name")?, text(object, "cniVersion")?);
        if !name.is_empty() && name != network.name {
            network.remarks.push(Remark::NameOverwritten {
                plugin: plugin.kind.clone(),
                name: bounded(name),
            });
        }
        if !version.is_empty() && version != network.version {
            network.remarks.push(Remark::VersionOverwritten {
                plugin: plugin.kind.clone(),
                version: bounded(version),
            });
        }
        network.plugins.push(plugin);
    }
    Ok(())
}

/// libcni after 1.3 appends the plugins it finds in a directory called like the network.
fn add_from_directory(network: &mut Network, directory: &Path) -> Result<(), ConfError> {
    let entries = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_PLUGINS);
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    files.sort();
    for path in files {
        let bytes = read_bounded(&path).map_err(ConfError::Read)?;
        network
            .plugins
            .push(plugin(&object(&bytes)?, &path.display().to_string())?);
    }
    Ok(())
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, ConfError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        let text = error.to_string();
        let reason = text
            .rsplit_once(" at line ")
            .map_or(text.as_str(), |(reason, _)| reason);
        let reason = match bytes {
            [0xef, 0xbb, 0xbf, ..] => "the file starts with a byte order mark, which JSON does not allow",
            [] => "the file is empty",
            _ => reason,
        };
        ConfError::Json {
            line: error.line().max(1),
            column: error.column().max(1),
            reason: reason.to_owned(),
        }
    })?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(ConfError::NotAnObject),
    }
}

fn plugin(object: &Map<String, Value>, place: &str) -> Result<Plugin, ConfError> {
    let kind = text(object, "type")?;
    if kind.is_empty() {
        return Err(ConfError::NoType(place.to_owned()));
    }
    // libcni refuses a path, see FindInPath in its pkg/invoke/find.go.
    if kind.contains('/') || kind.len() > MAX_TEXT || kind == "." || kind == ".." {
        return Err(ConfError::BadType(bounded(kind)));
    }
    Ok(Plugin {
        kind: kind.to_owned(),
        delegates: delegates(kind, object),
    })
}

fn version(object: &Map<String, Value>) -> Result<String, ConfError> {
    let single = text(object, "cniVersion")?;
    let several = match object.get("cniVersions") {
        None => return Ok(bounded(single)),
        Some(Value::Array(several)) => several,
        Some(_) => {
            return Err(ConfError::Type {
                key: "cniVersions".to_owned(),
                expected: "a list",
            });
        }
    };
    let mut best = "";
    for version in several.iter().filter_map(Value::as_str).chain([single]) {
        let parsed = number(version);
        if parsed.is_none() && !version.is_empty() {
            return Err(ConfError::BadVersion(bounded(version)));
        }
        if parsed.is_some_and(|parsed| parsed <= NEWEST) && parsed > number(best) {
            best = version;
        }
    }
    Ok(bounded(if best.is_empty() { single } else { best }))
}

/// A text, empty when absent.
fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, ConfError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(ConfError::Type {
            key: key.to_owned(),
            expected: "a text",
        }),
    }
}

/// A flag as libcni reads it: a boolean, or the word for it.
fn flag(object: &Map<String, Value>, key: &str) -> Result<bool, ConfError> {
    match object.get(key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(ConfError::Type {
            key: key.to_owned(),
            expected: "true or false",
        }),
    }
}

fn name_is_allowed(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.len() <= MAX_TEXT && name.bytes().all(inner) && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
}

fn number(version: &str) -> Option<(u64, u64, u64)> {
    let mut parts = version.split('.').map(|part| part.parse::<u64>().ok());
    let number = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    parts.next().is_none().then_some(number)
}

fn at_least(version: &str, least: (u64, u64, u64)) -> bool {
    number(version).is_some_and(|version| version >= least)
}

fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

/// The newest specification.
const NEWEST: (u64, u64, u64) = (1, 1, 0);
const MAX_FILE: u64 = 1 << 20;
const MAX_PLUGINS: usize = 64;
/// Bytes of a name, a type, a version.
const MAX_TEXT: usize = 256;
