//! Who may claim to be a plugin or a runtime, or is followed as a daemon: the configured exceptions, and what was refused. `trust.h` is the kernel side.
//!
//! Does not: decide; that is `probes/bpf/trust.h`.

/// Claim of a refused process: `CNI_COMMAND` in its environment.
pub const CLAIM_PLUGIN: u32 = 0;
/// Claim of a refused process: a runtime's name.
pub const CLAIM_RUNTIME: u32 = 1;
/// Claim of a refused process: it received a request of a plugin.
pub const CLAIM_DAEMON: u32 = 2;

/// Refused: the process is not in the initial user namespace.
pub const REFUSED_USER_NAMESPACE: u32 = 0;
/// Refused: the process is not in the initial pid namespace.
pub const REFUSED_PID_NAMESPACE: u32 = 1;
/// Refused: neither CAP_NET_ADMIN nor CAP_SYS_ADMIN is effective.
pub const REFUSED_CAPABILITIES: u32 = 2;
/// Refused: these capabilities came with the executed file (set-user-ID, file capabilities), not from the caller.
pub const REFUSED_FILE_PRIVILEGES: u32 = 3;
/// Number of reasons.
pub const REFUSED_REASONS: u32 = 4;
/// Slots of the map of counters: `claim * REFUSED_REASONS + reason`.
pub const REFUSED_COUNTERS: u32 = 3 * REFUSED_REASONS;

/// Slots of the map of refused processes, in groups. A cgroup writes into one group only, so one with many names does not
/// overwrite those of most others.
pub const REFUSED_SLOTS: u32 = REFUSED_GROUPS * REFUSED_GROUP;
/// Groups of slots.
pub const REFUSED_GROUPS: u32 = 16;
/// Slots of a group; the path selects one.
pub const REFUSED_GROUP: u32 = 16;
/// Most bytes of a refused executable's path.
pub const REFUSED_PATH_MAX: u32 = 128;

/// Most configured cgroups.
pub const TRUSTED_CGROUPS_MAX: u32 = 16;
/// Most configured users.
pub const TRUSTED_USERS_MAX: u32 = 16;
/// An unused place among the users: no user has this id (include/linux/uidgid.h, INVALID_UID).
pub const NO_USER: u32 = 0xffff_ffff;

/// The configured exceptions, written by user space.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedOwners {
    /// Ids of cgroups (v2) whose processes, and those of all cgroups below, are trusted; 0 where unused.
    pub cgroups: [u64; TRUSTED_CGROUPS_MAX as usize],
    /// User ids, as the initial user namespace has them; [`NO_USER`] where unused.
    pub users: [u32; TRUSTED_USERS_MAX as usize],
}

/// The newest refused process of a slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRecord {
    /// When, nanoseconds of the boot clock; 0: the slot was never written.
    pub at_ns: u64,
    /// Id of its cgroup (v2).
    pub cgroup_id: u64,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Real user id, as the initial user namespace has it.
    pub uid: u32,
    /// One of the `CLAIM_` constants.
    pub claim: u32,
    /// One of the `REFUSED_` reasons.
    pub reason: u32,
    /// Bytes of the path.
    pub path_len: u32,
    /// Zero.
    pub unused: u32,
    /// The executed file's path as given to `execve`, cut.
    pub path: [u8; REFUSED_PATH_MAX as usize],
}
