//! libcni's rules for the content of a configuration, generation by generation.
//!
//! Used by `file.rs`. Sources: `NetworkConfFromBytes`, `NetworkPluginConfFromBytes` and `ConfListFromConf` of
//! `libcni/conf.go`, `PluginConf` of `pkg/types/types.go`, `ParseVersion` of `pkg/version/plugin.go`, at the tags v1.1.2,
//! v1.2.3 and v1.3.1; all conditions are held against the real loaders by `agent/tests/cni_loaders`.
//! Does not: read files, or require what only a plugin or the specification requires.

use super::error::ConfError;
use super::json::{Members, Value, equal_fold, exact};
use super::loader::Libcni;

/// A configuration that libcni accepts, with at least one plugin unless more come from a directory.
#[derive(Debug)]
pub(super) struct NetworkListFile {
    /// `name`; may be empty.
    pub(super) name: String,
    /// `cniVersion`, or the highest usable of `cniVersions`; may be empty.
    pub(super) version: String,
    pub(super) check_disabled: bool,
    pub(super) gc_disabled: bool,
    /// `loadOnlyInlinedPlugins`.
    pub(super) inlined_only: bool,
    pub(super) plugins: Vec<PluginConf>,
}

/// One plugin's configuration, as far as libcni decodes it.
#[derive(Debug, Default)]
pub(super) struct PluginConf {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) kind: String,
    /// The whole configuration as the plugin receives it.
    pub(super) members: Members,
}

/// A file that is called `.conflist`.
pub(super) fn list(root: Value, libcni: Libcni) -> Result<NetworkListFile, ConfError> {
    if !root.numbers_fit() {
        return Err(ConfError::NumberRange);
    }
    let root = match root.canonical() {
        Value::Object(members) => members,
        // `null` leaves the Go map empty.
        Value::Null => Members::new(),
        _ => return Err(ConfError::NotAnObject),
    };
    let name = match exact(&root, "name") {
        Some(name) => name.as_text().ok_or_else(|| wrong_type("name", TEXT))?.to_owned(),
        None => return Err(missing(&root, "name")),
    };
    let version = version(&root, libcni)?;
    let check_disabled = flag(&root, "disableCheck", libcni)?;
    let gc_disabled = libcni >= Libcni::V1_2 && flag(&root, "disableGC", libcni)?;
    let inlined_only = libcni >= Libcni::V1_3 && flag(&root, "loadOnlyInlinedPlugins", libcni)?;
    let plugins = match root.iter().position(|(key, _)| key == "plugins") {
        Some(at) => inlined(root.into_iter().nth(at), libcni)?,
        None if libcni >= Libcni::V1_3 && !inlined_only => Vec::new(),
        None if exact(&root, "type").is_some() => return Err(ConfError::ConfInList),
        None => return Err(missing(&root, "plugins")),
    };
    Ok(NetworkListFile {
        name,
        version,
        check_disabled,
        gc_disabled,
        inlined_only,
        plugins,
    })
}

fn inlined(member: Option<(String, Value)>, libcni: Libcni) -> Result<Vec<PluginConf>, ConfError> {
    let Some((_, Value::List(values))) = member else {
        return Err(wrong_type("plugins", "a list"));
    };
    if values.is_empty() {
        return Err(ConfError::NoPlugins);
    }
    let plugin = |(index, value)| plugin(value, libcni, &format!("plugins[{index}]"));
    values.into_iter().enumerate().map(plugin).collect()
}

/// A file of one plugin, called `.conf` or `.json`: libcni makes a list of it.
pub(super) fn single(root: Value, libcni: Libcni) -> Result<NetworkListFile, ConfError> {
    let place = "the plugin";
    let has_plugins = |members: &Members| members.iter().any(|(key, _)| key == "plugins");
    let is_list = root.as_object().is_some_and(has_plugins);
    let numbers_fit = root.numbers_fit();
    let decoded = plugin(root, libcni, place).map_err(|error| match error {
        ConfError::NoType { .. } if is_list => ConfError::ListInConf,
        other => other,
    })?;
    if !numbers_fit {
        return Err(ConfError::NumberRange);
    }
    // The list's plugin is decoded again from a Go map, in which keys of different case are in another order than in the file.
    let again = plugin(Value::Object(decoded.members).canonical(), libcni, place)?;
    Ok(NetworkListFile {
        name: decoded.name,
        version: decoded.version,
        check_disabled: false,
        gc_disabled: false,
        inlined_only: true,
        plugins: vec![again],
    })
}

/// One plugin's configuration. Go takes a member for a field whose name differs in case only, and the last one wins.
pub(super) fn plugin(value: Value, libcni: Libcni, place: &str) -> Result<PluginConf, ConfError> {
    let members = match value {
        Value::Object(members) => members,
        // `null` leaves the Go struct as it is.
        Value::Null => Members::new(),
        _ => return Err(wrong_type(place, "an object")),
    };
    let mut conf = PluginConf::default();
    for (key, value) in &members {
        let is = |field: &str| equal_fold(key, field);
        if is("cniVersion") {
            text(key, value, &mut conf.version)?;
        } else if is("name") {
            text(key, value, &mut conf.name)?;
        } else if is("type") {
            text(key, value, &mut conf.kind)?;
        } else if is("capabilities") {
            for (capability, value) in object(key, value)? {
                if !matches!(value, Value::Null | Value::Bool(_)) {
                    return Err(wrong_type(&format!("{key}.{capability}"), "true or false"));
                }
            }
        } else if is("ipam") {
            fields(key, value, &["type"], &[])?;
        } else if is("dns") {
            fields(key, value, &["domain"], &["nameservers", "search", "options"])?;
        } else if is("prevResult") {
            object(key, value)?;
            if !value.numbers_fit() {
                return Err(ConfError::NumberRange);
            }
        } else if libcni >= Libcni::V1_2 && is("cni.dev/valid-attachments") {
            for (index, value) in elements(key, value)?.iter().enumerate() {
                fields(&format!("{key}[{index}]"), value, &["containerID", "ifname"], &[])?;
            }
        }
    }
    if conf.kind.is_empty() {
        let like = like(&members, "type");
        return Err(ConfError::NoType {
            place: place.to_owned(),
            like,
        });
    }
    conf.members = members;
    Ok(conf)
}

/// An object of texts and of lists of texts; members of other names may be anything.
fn fields(place: &str, value: &Value, texts: &[&str], lists: &[&str]) -> Result<(), ConfError> {
    for (key, value) in object(place, value)? {
        let place = format!("{place}.{key}");
        let is = |field: &&str| equal_fold(key, field);
        if texts.iter().any(is) {
            text(&place, value, &mut String::new())?;
        } else if lists.iter().any(is) {
            for (index, value) in elements(&place, value)?.iter().enumerate() {
                text(&format!("{place}[{index}]"), value, &mut String::new())?;
            }
        }
    }
    Ok(())
}

/// Decodes into a Go `string`: `null` leaves it as it was.
fn text(place: &str, value: &Value, into: &mut String) -> Result<(), ConfError> {
    match value {
        Value::Null => Ok(()),
        Value::Text(text) => {
            into.clone_from(text);
            Ok(())
        }
        _ => Err(wrong_type(place, TEXT)),
    }
}

fn object<'a>(place: &str, value: &'a Value) -> Result<&'a [(String, Value)], ConfError> {
    match value {
        Value::Null => Ok(&[]),
        Value::Object(members) => Ok(members),
        _ => Err(wrong_type(place, "an object")),
    }
}

fn elements<'a>(place: &str, value: &'a Value) -> Result<&'a [Value], ConfError> {
    match value {
        Value::Null => Ok(&[]),
        Value::List(values) => Ok(values),
        _ => Err(wrong_type(place, "a list")),
    }
}

/// A flag of a list: a boolean, or from libcni 1.2 also the text `true` or `false` in any case.
fn flag(root: &Members, key: &str, libcni: Libcni) -> Result<bool, ConfError> {
    match exact(root, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        // libcni lowers all of Unicode; no letter outside of ASCII becomes one of these words' letters.
        Some(Value::Text(word)) if libcni >= Libcni::V1_2 && word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::Text(word)) if libcni >= Libcni::V1_2 && word.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(wrong_type(key, "true or false")),
    }
}

/// `cniVersion`, or the highest of it and `cniVersions` that libcni knows.
fn version(root: &Members, libcni: Libcni) -> Result<String, ConfError> {
    let single = match exact(root, "cniVersion") {
        None => "",
        Some(version) => version.as_text().ok_or_else(|| wrong_type("cniVersion", TEXT))?,
    };
    let several = match exact(root, "cniVersions") {
        Some(Value::List(several)) if libcni >= Libcni::V1_2 => several,
        Some(_) if libcni >= Libcni::V1_2 => return Err(wrong_type("cniVersions", "a list")),
        _ => return Ok(single.to_owned()),
    };
    let mut known: Vec<&str> = Vec::new();
    let single = Some(single).filter(|single| !single.is_empty());
    for (index, value) in several.iter().enumerate() {
        let place = || format!("cniVersions[{index}]");
        let version = value.as_text().ok_or_else(|| wrong_type(&place(), TEXT))?;
        known.extend(usable(version)?);
    }
    if let Some(single) = single {
        known.extend(usable(single)?);
    }
    Ok(highest(known).or(single).unwrap_or_default().to_owned())
}

/// The version, unless it is newer than libcni's own.
fn usable(version: &str) -> Result<Option<&str>, ConfError> {
    match number(version) {
        Some(parsed) => Ok((parsed <= NEWEST_VERSION).then_some(version)),
        None => Err(ConfError::BadVersion(version.to_owned())),
    }
}

/// The last after libcni's sort. Its comparison calls different texts of one version, such as 1.0 and 1.0.0, less than each
/// other, so the result depends on the sort: Go's insertion sort, which it uses up to twelve elements.
fn highest(mut versions: Vec<&str>) -> Option<&str> {
    for end in 1..versions.len() {
        let mut at = end;
        while at > 0 && versions[at] != versions[at - 1] && number(versions[at]) <= number(versions[at - 1]) {
            versions.swap(at, at - 1);
            at -= 1;
        }
    }
    versions.last().copied()
}

/// A version of the specification as libcni parses it: up to three numbers, and 0.1.0 when it is empty.
pub(super) fn number(version: &str) -> Option<(i64, i64, i64)> {
    if version.is_empty() {
        return Some((0, 1, 0));
    }
    let mut parts = version.split('.').map(|part| part.parse::<i64>().ok());
    let number = (
        parts.next()??,
        parts.next().unwrap_or(Some(0))?,
        parts.next().unwrap_or(Some(0))?,
    );
    parts.next().is_none().then_some(number)
}

fn wrong_type(key: &str, expected: &'static str) -> ConfError {
    ConfError::Type {
        key: key.to_owned(),
        expected,
    }
}

fn missing(members: &Members, key: &'static str) -> ConfError {
    ConfError::Missing {
        key,
        like: like(members, key),
    }
}

/// A member whose name differs from this one in case only.
fn like(members: &Members, key: &str) -> Option<String> {
    let found = members.iter().find(|(have, _)| have != key && equal_fold(have, key));
    found.map(|(have, _)| have.clone())
}

const TEXT: &str = "a text";
/// `version.Current()` of libcni from 1.2; older ones do not read `cniVersions`.
pub(super) const NEWEST_VERSION: (i64, i64, i64) = (1, 1, 0);
