//! Reads host-local's store: a directory with one file per address in use, which holds the id of the container.
//!
//! Used by the app's watch and by `doctor`. Source: containernetworking/plugins v1.6 `plugins/ipam/host-local/backend/disk`: the
//! file is called like the address and holds container id and interface name on two lines; beside it lie `lock` and
//! `last_reserved_ip.N`. libcni's cache (`libcni/api.go`, `cachedInfo`) says from 1.2 on where the container's namespace is.
//! The directory is listed only when its time has changed; entries, files read at once and ids kept are bounded. Files may hold
//! anything: what is no address or no regular file is counted and skipped.
//! Does not: follow a symbolic link of an address, take host-local's lock, or write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{IpPool, RangeSet};
use crate::cni_conf::{HostLocal, under};

/// The stores as read last.
#[derive(Debug, Default)]
pub struct Stores {
    /// By directory.
    known: BTreeMap<PathBuf, Listing>,
}

/// One directory as listed last.
#[derive(Debug, Default)]
struct Listing {
    conf: Option<HostLocal>,
    modified: Option<SystemTime>,
    used: Vec<u64>,
    outside: u64,
    skipped: u64,
    truncated: bool,
    unreadable: Option<String>,
    /// Container and interface by address, as far as they are kept; `None` for a file that could not be read.
    holders: BTreeMap<IpAddr, Option<Holder>>,
}

/// What an address's file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    container: String,
    ifname: String,
}

/// The containers that the runtime knows, or why that is not known.
pub type KnownContainers<'a> = Result<&'a BTreeSet<String>, &'a str>;

impl Stores {
    /// Reads the stores of these pools, below `root`.
    pub fn read(&mut self, pools: &[HostLocal], known: KnownContainers<'_>, root: &Path) -> Vec<IpPool> {
        let directories: BTreeSet<PathBuf> = pools.iter().map(|pool| under(root, &pool.store())).collect();
        self.known.retain(|directory, _| directories.contains(directory));
        pools
            .iter()
            .map(|pool| {
                let directory = under(root, &pool.store());
                let listing = self.known.entry(directory.clone()).or_default();
                listing.refresh(&directory, pool);
                listing.to_pool(&directory, pool, known, root)
            })
            .collect()
    }

    /// An address is in use, so that it is worth asking which containers exist.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        self.known.values().any(|listing| !listing.holders.is_empty())
    }
}

impl Listing {
    /// Lists the directory again if it has changed.
    fn refresh(&mut self, directory: &Path, pool: &HostLocal) {
        let modified = fs::metadata(directory).and_then(|metadata| metadata.modified());
        let same = |modified: &SystemTime| {
            // A change within the granularity of the file system's times leaves the same time.
            let settled = modified.elapsed().is_ok_and(|age| age > TIME_GRANULARITY);
            settled && self.modified == Some(*modified) && self.conf.as_ref() == Some(pool)
        };
        match modified {
            Ok(modified) if same(&modified) => {}
            Ok(modified) => {
                let listed = self.list(directory, pool);
                self.unreadable = listed.err().map(|error| error.to_string());
                let read_before = SystemTime::now().duration_since(modified).unwrap_or_default() > TIME_GRANULARITY;
                self.modified = Some(modified).filter(|_| read_before && self.unreadable.is_none());
                self.conf = Some(pool.clone());
            }
            Err(error) => {
                // Nothing was allocated yet, or the directory is not mounted into the agent's container.
                let is_absent = error.kind() == io::ErrorKind::NotFound;
                let is_hidden = is_absent && !directory.ancestors().skip(1).take(2).any(Path::exists);
                *self = Listing {
                    unreadable: match (is_absent, is_hidden) {
                        (_, true) => Some("there is none yet, or it is not mounted here".to_owned()),
                        (true, false) => None,
                        (false, _) => Some(error.to_string()),
                    },
                    used: vec![0; pool.sets.len()],
                    ..Listing::default()
                };
            }
        }
    }

    fn list(&mut self, directory: &Path, pool: &HostLocal) -> io::Result<()> {
        let before = std::mem::take(&mut self.holders);
        self.used = vec![0; pool.sets.len()];
        (self.outside, self.skipped, self.truncated) = (0, 0, false);
        let mut reads = 0;
        for (number, entry) in fs::read_dir(directory)?.enumerate() {
            if number >= ENTRIES_MAX {
                self.truncated = true;
                break;
            }
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let address = name.parse::<IpAddr>().ok().filter(|_| is_file);
            let Some(address) = address else {
                self.skipped += u64::from(name != "lock" && !name.starts_with("last_reserved_ip"));
                continue;
            };
            match pool.set_of(address).and_then(|set| self.used.get_mut(set)) {
                Some(used) => *used += 1,
                None => self.outside += 1,
            }
            if self.holders.len() >= HOLDERS_MAX {
                self.truncated = true;
                continue;
            }
            let mut holder = before.get(&address).cloned().flatten();
            if holder.is_none() && reads < READS_MAX {
                reads += 1;
                holder = holder_of(&entry.path()).map(|(holder, _)| holder);
            }
            self.holders.insert(address, holder);
        }
        Ok(())
    }

    fn to_pool(&self, directory: &Path, pool: &HostLocal, known: KnownContainers<'_>, root: &Path) -> IpPool {
        // Where no address is in use none is leaked, whatever the runtime knows.
        let leaks = match self.holders.is_empty() && self.unreadable.is_none() {
            true => Ok(Vec::new()),
            false => known.map(|known| self.leaks(directory, pool, known, root)),
        };
        let sets = pool.capacities().enumerate().map(|(set, addresses)| RangeSet {
            addresses,
            used: self.used.get(set).copied().unwrap_or_default(),
            leaked: leaks
                .as_ref()
                .ok()
                .map(|leaks| leaks.get(set).copied().unwrap_or_default()),
        });
        IpPool {
            network: pool.network.clone(),
            directory: directory.display().to_string(),
            sets: sets.collect(),
            outside: self.outside,
            skipped: self.skipped,
            truncated: self.truncated,
            unreadable: self.unreadable.clone(),
            leaks_unknown: leaks.err().map(str::to_owned),
        }
    }

    /// Addresses of containers that are gone, per set. Each candidate's file is read again: the address may have another
    /// container since the directory was listed.
    fn leaks(&self, directory: &Path, pool: &HostLocal, known: &BTreeSet<String>, root: &Path) -> Vec<u64> {
        let mut leaks = vec![0; pool.sets.len()];
        let candidates = self.holders.iter().filter(|(_, holder)| {
            let holder = holder.as_ref();
            holder.is_some_and(|holder| !known.contains(&holder.container))
        });
        for (address, _) in candidates.take(READS_MAX) {
            let Some(set) = pool.set_of(*address) else { continue };
            let Some((holder, metadata)) = holder_of(&directory.join(address.to_string())) else {
                continue;
            };
            if !known.contains(&holder.container)
                && is_settled(&metadata)
                && !has_namespace(pool, &holder, root)
                && let Some(leaked) = leaks.get_mut(set)
            {
                *leaked += 1;
            }
        }
        leaks
    }
}

/// Reads an address's file; `None` for one that is gone, no regular file or not host-local's.
fn holder_of(path: &Path) -> Option<(Holder, Metadata)> {
    // Checked before opening, since to open a pipe would wait for its writer; a link leads out of the store.
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let mut bytes = Vec::new();
    file.take(HOLDER_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let mut lines = text.lines().map(str::trim);
    let container = lines.next().filter(|id| !id.is_empty())?.to_owned();
    let ifname = lines.next().unwrap_or_default().to_owned();
    Some((Holder { container, ifname }, metadata))
}

/// Old enough that the runtime knows the container if it exists: it lists a sandbox only when its network is complete.
fn is_settled(metadata: &Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age > SETTLED_AFTER)
}

/// libcni remembers a network namespace of this attachment, and it exists: the container is another runtime's.
fn has_namespace(pool: &HostLocal, holder: &Holder, root: &Path) -> bool {
    let is_name = |text: &str| !text.is_empty() && !text.contains('/');
    if !is_name(&holder.container) || !is_name(&holder.ifname) {
        return false;
    }
    let name = format!("{}-{}-{}", pool.network, holder.container, holder.ifname);
    let path = under(root, CACHE).join(name);
    let namespace = || -> Option<String> {
        if !fs::symlink_metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(&path).ok()?.take(CACHE_MAX).read_to_end(&mut bytes).ok()?;
        let cached: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
        cached["netns"]
            .as_str()
            .filter(|path| path.starts_with('/'))
            .map(str::to_owned)
    };
    namespace().is_some_and(|namespace| {
        // In a container the node's names are visible through its processes only: kthreadd, or the first one. A link in the
        // path would lead into the container, and `/var/run` is one.
        let path = match namespace.strip_prefix("/var/run/") {
            Some(rest) => format!("/run/{rest}"),
            None => namespace,
        };
        let roots = [root, Path::new("/proc/2/root"), Path::new("/proc/1/root")];
        roots.iter().any(|root| under(root, &path).exists())
    })
}

/// libcni's cache of results (`CacheDir` of `libcni/api.go`), for every runtime that does not set another.
const CACHE: &str = "/var/lib/cni/results";
/// Entries of a directory that are counted: a /14 and more. Listing so many takes a fraction of a second.
const ENTRIES_MAX: usize = 262_144;
/// Addresses of which the container is kept.
const HOLDERS_MAX: usize = 16_384;
/// Files that are read in one round.
const READS_MAX: usize = 4_096;
/// Bytes of an address's file: an id of 64 digits and an interface name, with room.
const HOLDER_MAX: u64 = 512;
const CACHE_MAX: u64 = 1 << 20;
/// As long as an ADD may take, the timeout of a plugin.
const SETTLED_AFTER: Duration = Duration::from_secs(300);
/// Coarser than any file system's times.
const TIME_GRANULARITY: Duration = Duration::from_secs(2);

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
