//! The SELinux domain of this process, for messages about what it was refused.
//!
//! Used by the Linux source and by `doctor`. Does not: know what a policy allows, or ask the kernel to decide anything.

use std::fmt;
use std::fs;
use std::path::Path;

/// What an operator can do where a domain is too narrow.
pub const HINT: &str = "run the agent with the SELinux type spc_t (chart: linux.seLinuxOptions.type=spc_t), or allow its type bpf(2) and \
                        reading /proc; `ausearch -m avc -c sandglass` on the node lists what was denied";

/// The domain of a process: the context that it runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// `user:role:type`, and a level where the policy has levels; 512 bytes at most.
    context: String,
    mode: Mode,
}

/// Whether the kernel enforces its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Enforcing,
    /// What the policy does not allow is logged, and done.
    Permissive,
    /// selinuxfs is rarely mounted in containers, and `container_t` may not read it where it is.
    Unknown,
}

impl Domain {
    /// That of this process, whose `/proc` and `/sys` lie below `root`. None without SELinux, and before it has a policy: then the label
    /// is another module's (`cri-containerd.apparmor.d (enforce)`), or `kernel`, which is no context.
    #[must_use]
    pub fn of_this_process(root: &Path) -> Option<Domain> {
        // proc_pid_attr(5). Some kernels end it with a zero byte.
        let label = fs::read(root.join("proc/self/attr/current")).ok()?;
        let context = String::from_utf8(label).ok()?;
        let context = context.trim_end_matches(['\0', '\n']);
        let is_context = context.split(':').count() >= 3
            && context.split(':').take(3).all(|part| !part.is_empty())
            && context.len() <= CONTEXT_MAX
            && context.bytes().all(|byte| byte.is_ascii_graphic());
        let mode = || match fs::read(root.join("sys/fs/selinux/enforce")).as_deref() {
            Ok([b'0', ..]) => Mode::Permissive,
            Ok([b'1', ..]) => Mode::Enforcing,
            _ => Mode::Unknown,
        };
        is_context.then(|| Domain {
            context: context.to_owned(),
            mode: mode(),
        })
    }

    /// Whether a policy may be why this process was refused something. Not where it only logs, and not for types that Fedora's and
    /// Debian's policies leave unconfined: another cause is likelier there.
    #[must_use]
    pub fn may_refuse(&self) -> bool {
        let kind = self.context.split(':').nth(2).unwrap_or_default();
        self.mode != Mode::Permissive && !UNCONFINED.contains(&kind)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Enforcing => "enforcing",
            Mode::Permissive => "permissive",
            Mode::Unknown => "whether it is enforced cannot be read from here",
        };
        write!(f, "SELinux domain {} ({mode})", self.context)
    }
}

/// Of containers that are not confined (`container.te` of containers/container-selinux), of users' shells, and of services without a
/// domain of their own.
const UNCONFINED: [&str; 3] = ["spc_t", "unconfined_t", "unconfined_service_t"];
/// Longer than any context but those with a long list of categories.
const CONTEXT_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// The domain of a process with this label, where `enforce` reads like this.
    fn domain(label: &[u8], enforce: Option<&str>) -> Option<Domain> {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/self/attr/current", label);
        if let Some(enforce) = enforce {
            put("sys/fs/selinux/enforce", enforce.as_bytes());
        }
        Domain::of_this_process(root.path())
    }

    #[test]
    fn a_context_is_a_domain_and_other_labels_are_not() {
        let long = format!("a:b:{}", "c".repeat(CONTEXT_MAX));
        for label in [
            "",
            "kernel\0",
            "unconfined\n",
            "cri-containerd.apparmor.d (enforce)\n",
            ":ns:://profile (enforce)\n",
            "a:b\n",
            &long,
        ] {
            assert_eq!(domain(label.as_bytes(), Some("1")), None, "{label}");
        }
        assert_eq!(domain(&[0xff; 9], None), None);
        assert_eq!(Domain::of_this_process(Path::new("/nowhere")), None);
    }

    #[test]
    fn a_confined_domain_may_be_why_unless_it_is_permissive() {
        let label = b"system_u:system_r:container_t:s0:c1,c2\0";
        let described = |enforce| domain(label, enforce).map(|domain| (domain.to_string(), domain.may_refuse()));
        for (enforce, mode, may_refuse) in [
            (Some("1"), "enforcing", true),
            (Some("0"), "permissive", false),
            (None, "whether it is enforced cannot be read from here", true),
            (Some(""), "whether it is enforced cannot be read from here", true),
        ] {
            let text = format!("SELinux domain system_u:system_r:container_t:s0:c1,c2 ({mode})");
            assert_eq!(described(enforce), Some((text, may_refuse)));
        }
        for unconfined in ["system_u:system_r:spc_t:s0", "unconfined_u:unconfined_r:unconfined_t"] {
            let domain = domain(unconfined.as_bytes(), Some("1")).unwrap();
            assert!(!domain.may_refuse(), "{domain}");
        }
    }
}
