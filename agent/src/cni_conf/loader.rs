//! Which loader judges a configuration: the runtime, and the generation of libcni that its version is built with.
//!
//! Used by `file.rs` and `directory.rs`. Sources: `go.mod` of containerd and CRI-O at their release tags (containerd 1.5.18 to
//! 2.4.2, CRI-O 1.20.0 to 1.37.0). Does not: request the version from the runtime.

/// Which runtime a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// containerd, also inside k3s and RKE2.
    Containerd,
    /// CRI-O.
    Crio,
    /// None that is known here.
    Unknown,
}

impl RuntimeKind {
    /// From `runtime_name` of the CRI's `Version`.
    #[must_use]
    pub fn from_name(name: &str) -> RuntimeKind {
        match name {
            "containerd" => RuntimeKind::Containerd,
            "cri-o" => RuntimeKind::Crio,
            _ => RuntimeKind::Unknown,
        }
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RuntimeKind::Containerd => "containerd",
            RuntimeKind::Crio => "CRI-O",
            RuntimeKind::Unknown => "the runtime",
        }
    }
}

/// Versions of libcni that load configurations differently (`libcni/conf.go` at the tags v0.8.1, v1.1.2, v1.2.3, v1.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Libcni {
    /// 0.8 to 1.1: containerd up to 1.7, CRI-O up to 1.30.
    V1_1,
    /// 1.2: containerd 2.0, CRI-O 1.31 and 1.32. Knows `cniVersions` and `disableGC`, and flags may be words.
    V1_2,
    /// 1.3: containerd from 2.1, CRI-O from 1.33. Adds plugins from a directory of the network's name.
    V1_3,
}

impl Libcni {
    /// All of them, oldest first.
    pub const ALL: [Libcni; 3] = [Libcni::V1_1, Libcni::V1_2, Libcni::V1_3];

    /// The newest, which is assumed of an unknown runtime.
    pub const NEWEST: Libcni = Libcni::V1_3;

    /// Of a runtime's version as the CRI's `Version` has it, e.g. `1.7.29`, `v2.4.2` or `1.6.20~ds1`.
    #[must_use]
    pub fn of(runtime: RuntimeKind, version: &str) -> Option<Libcni> {
        let (second, third) = match runtime {
            RuntimeKind::Containerd => ((2, 0), (2, 1)),
            RuntimeKind::Crio => ((1, 31), (1, 33)),
            RuntimeKind::Unknown => return None,
        };
        let mut parts = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
        let mut part = || parts.next()?.parse::<u32>().ok();
        let version = (part()?, part()?);
        Some(match version {
            _ if version >= third => Libcni::V1_3,
            _ if version >= second => Libcni::V1_2,
            _ => Libcni::V1_1,
        })
    }

    /// The versions of a runtime that are built with this generation, for people.
    #[must_use]
    pub fn releases(self, runtime: RuntimeKind) -> &'static str {
        match (self, runtime) {
            (Libcni::V1_1, RuntimeKind::Crio) => "CRI-O up to 1.30",
            (Libcni::V1_2, RuntimeKind::Crio) => "CRI-O 1.31 and 1.32",
            (Libcni::V1_3, RuntimeKind::Crio) => "CRI-O from 1.33",
            (Libcni::V1_1, _) => "containerd up to 1.7",
            (Libcni::V1_2, _) => "containerd 2.0",
            (Libcni::V1_3, _) => "containerd from 2.1",
        }
    }
}

/// A runtime's loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loader {
    /// The runtime.
    pub runtime: RuntimeKind,
    /// The generation of its libcni; `None` while its version is not known.
    pub libcni: Option<Libcni>,
}

impl Loader {
    /// The generation that judges: the newest unless the runtime's version is known.
    #[must_use]
    pub fn generation(self) -> Libcni {
        self.libcni.unwrap_or(Libcni::NEWEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtimes_version_names_its_libcni() {
        for (runtime, version, expected) in [
            (RuntimeKind::Containerd, "1.6.20~ds1", Some(Libcni::V1_1)),
            (RuntimeKind::Containerd, "1.7.29", Some(Libcni::V1_1)),
            (RuntimeKind::Containerd, "v2.0.7", Some(Libcni::V1_2)),
            (RuntimeKind::Containerd, "v2.1.0-k3s1", Some(Libcni::V1_3)),
            (RuntimeKind::Containerd, "2.4.2-4-gdeadbee.m", Some(Libcni::V1_3)),
            (RuntimeKind::Crio, "1.30.10", Some(Libcni::V1_1)),
            (RuntimeKind::Crio, "1.32.0-dev", Some(Libcni::V1_2)),
            (RuntimeKind::Crio, "1.36.0", Some(Libcni::V1_3)),
            (RuntimeKind::Containerd, "<unknown>", None),
            (RuntimeKind::Containerd, "", None),
            (RuntimeKind::Unknown, "1.0.0", None),
        ] {
            assert_eq!(Libcni::of(runtime, version), expected, "{version}");
        }
    }
}
