//! What a machine of the test `kernels` has: the agent, `kernels/init`, and the programs and profiles that its scenes need.
//!
//! Does not: find or boot the kernel (`boot.rs`), or judge what the machine prints (`judge.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::archive::{Archive, stripped};
use super::boot::{Bounds, Kernel};
use super::machines::{Capabilities, Family, Machine, Profile, Scene};

/// What a machine consists of.
pub struct Parts {
    pub kernel: Kernel,
    agent: PathBuf,
    /// What Debian's package of this name has.
    apparmor: PathBuf,
    /// SELinux' policy, where a scene has a domain.
    policy: Option<PathBuf>,
    /// Programs of this machine that the other has too, with their names there.
    programs: Vec<(&'static str, PathBuf)>,
    /// nft, flock and setpriv of another architecture, with their libraries: in place of those of this machine.
    tools: Option<PathBuf>,
}

impl Parts {
    /// The error names what is not there: the machine is skipped.
    pub fn of(machine: &Machine, agent: &Path) -> Result<Parts, String> {
        let kernel = Kernel::of(machine)?;
        let mut programs = Vec::new();
        let mut tools = None;
        let confines = |scene: &Scene| scene.capabilities != Capabilities::All;
        // Programs of this machine run on another of its architecture only.
        if std::env::consts::ARCH == machine.platform.name {
            if machine.scenes.iter().any(confines) {
                // busybox has a setpriv too, which knows no bounding set.
                let setpriv = Path::new("/usr/bin/setpriv");
                if !setpriv.is_file() {
                    return Err("setpriv is not installed".to_owned());
                }
                programs.push(("setpriv.util-linux", setpriv.to_owned()));
            }
            for (name, path) in [
                ("nft", "/usr/sbin/nft"),
                ("flock", "/usr/bin/flock"),
                ("ptp", "/usr/lib/cni/ptp"),
                ("host-local", "/usr/lib/cni/host-local"),
            ] {
                if Path::new(path).is_file() {
                    programs.push((name, path.into()));
                }
            }
        } else {
            let fetched = sandglass_lab::built::place(machine.platform.place).join("tools");
            tools = fetched.is_dir().then_some(fetched);
            if tools.is_none() && machine.scenes.iter().any(confines) {
                return Err("no setpriv of the machine's architecture in the cache".to_owned());
            }
        }
        let apparmor = sandglass_lab::built::place(machine.platform.place).join("apparmor");
        if machine.scenes.iter().any(|scene| scene.profile.is_of_apparmor()) {
            let parser = ["sbin", "usr/sbin"].map(|folder| apparmor.join(folder).join("apparmor_parser"));
            let parser = parser.into_iter().find(|path| path.is_file());
            programs.push((
                "apparmor_parser",
                parser.ok_or("no AppArmor in the cache (scripts/kernels.sh)")?,
            ));
        }
        let policy = sandglass_lab::built::place(machine.platform.place).join("selinux/policy");
        let has_domain = |scene: &Scene| matches!(scene.profile, Profile::Domain(_));
        let policy = machine.scenes.iter().any(has_domain).then_some(policy);
        if policy.as_ref().is_some_and(|policy| !policy.is_file()) {
            return Err("no SELinux policy in the cache (scripts/kernels.sh)".to_owned());
        }
        Ok(Parts {
            kernel,
            agent: agent.to_owned(),
            apparmor,
            policy,
            programs,
            tools,
        })
    }
}

/// The initramfs.
pub fn archive(machine: &Machine, parts: &Parts) -> Result<Archive> {
    let mut archive = parts.kernel.archive(INIT, &MODULES)?;
    archive.put("profiles", 0o040_755, &[]);
    let family = match machine.family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    let scenes = machine.scenes.iter().enumerate();
    let calls: String = scenes
        .map(|(number, scene)| format!("    {}\n", scene.call(number)))
        .collect();
    let text = format!("family={family}\nscenes() {{\n{calls}}}\n");
    archive.put("machine", 0o100_644, text.as_bytes());
    let scratch = tempfile::tempdir()?;
    let agent = stripped(&parts.agent, machine.platform.strip, scratch.path());
    // Another agent than that of this build is static.
    match parts.agent == Path::new(env!("CARGO_BIN_EXE_sandglass")) {
        true => archive.program("sandglass", &agent)?,
        false => archive.put("sandglass", 0o100_755, &fs::read(&agent)?),
    }
    for (name, program) in &parts.programs {
        archive.program(&format!("bin/{name}"), program)?;
    }
    if let Some(tools) = &parts.tools {
        for folder in ["bin", "lib"] {
            for entry in fs::read_dir(tools.join(folder))? {
                let entry = entry?;
                let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
                archive.put(&name, 0o100_755, &fs::read(entry.path())?);
            }
        }
    }
    for scene in machine.scenes {
        let text = match scene.profile {
            Profile::None | Profile::Domain(_) => continue,
            Profile::Runtime => RUNTIME_PROFILE.to_owned(),
            // The agent of the image is static; that of a test maps libraries.
            Profile::Ours => OUR_PROFILE.replace("  /sandglass mrix,\n", "  /sandglass mrix,\n  /lib{,64}/** mr,\n"),
        };
        archive.put(
            &format!("profiles/{}", scene.profile.name()),
            0o100_644,
            text.as_bytes(),
        );
    }
    if let Some(policy) = &parts.policy {
        archive.put("policy", 0o100_644, &fs::read(policy)?);
    }
    if machine.scenes.iter().any(|scene| scene.profile.is_of_apparmor()) {
        archive.put("etc/apparmor", 0o040_755, &[]);
        archive.put("etc/apparmor/parser.conf", 0o100_644, &[]);
        archive.put("etc/apparmor.d", 0o040_755, &[]);
        for folder in ["abi", "abstractions", "tunables"] {
            archive.folder(
                &format!("etc/apparmor.d/{folder}"),
                &parts.apparmor.join("etc/apparmor.d").join(folder),
            )?;
        }
    }
    Ok(archive)
}

/// For each scene; a boot with one takes 40 s where nothing else runs.
pub fn bounds(machine: &Machine) -> Result<Bounds> {
    Ok(Bounds {
        memory_mib: 1024,
        disk_kib: 1024,
        deadline: Duration::from_secs(400) * u32::try_from(machine.scenes.len())?,
    })
}

const INIT: &str = include_str!("init");
const RUNTIME_PROFILE: &str = include_str!("cri-containerd.apparmor.d");
const OUR_PROFILE: &str = include_str!("../../../deploy/helm/sandglass/profiles/apparmor");
const MODULES: [&str; 12] = [
    "crc32c_generic",
    "libcrc32c",
    "nfnetlink",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nf_tables",
    "nft_chain_nat",
    "nft_nat",
    "veth",
];
