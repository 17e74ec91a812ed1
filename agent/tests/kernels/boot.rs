//! Finds the kernel of a machine in the cache and boots it in QEMU, with the agent and `kernels/init` as all there is.
//!
//! Does not: fetch kernels (`scripts/kernels.sh`), or judge what the machine prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::archive::Archive;
use super::machines::{Capabilities, Family, MACHINES, Machine, PLAIN, Profile};

/// What a machine consists of.
pub struct Parts {
    kernel: PathBuf,
    /// The kernel's folder in the cache: its modules lie there.
    folder: PathBuf,
    busybox: PathBuf,
    agent: PathBuf,
    /// What Debian's package of this name has.
    apparmor: PathBuf,
    /// Programs of this machine that confine the agent, with their names in the other.
    programs: Vec<(&'static str, PathBuf)>,
}

impl Parts {
    /// The error names what is not there: the machine is skipped.
    pub fn of(machine: &Machine, agent: &Path) -> Result<Parts, String> {
        let place = sandglass_lab::built::place(machine.platform.place);
        let mut folders: Vec<(String, PathBuf)> =
            releases(&place).filter(|(release, _)| machine.takes(release)).collect();
        folders.sort_by_key(|(release, _)| numbers(release));
        let (folder, kernel) = folders
            .into_iter()
            .rev()
            .find_map(|(_, folder)| Some((folder.clone(), image(&folder)?)))
            .ok_or("no such kernel in the cache (scripts/kernels.sh)")?;
        let busybox = place.join("busybox");
        if !busybox.is_file() {
            return Err("no busybox in the cache (scripts/kernels.sh)".to_owned());
        }
        let emulator = machine.platform.emulator;
        if Command::new(emulator).arg("--version").output().is_err() {
            return Err(format!("{emulator} is not installed"));
        }
        let mut programs = Vec::new();
        if machine
            .scenes
            .iter()
            .any(|scene| scene.capabilities != Capabilities::All)
        {
            // busybox has a setpriv too, which knows no bounding set.
            let setpriv = Path::new("/usr/bin/setpriv");
            if !setpriv.is_file() {
                return Err("setpriv is not installed".to_owned());
            }
            programs.push(("setpriv.util-linux", setpriv.to_owned()));
        }
        // Programs of this machine run on another of its architecture only.
        let nft = Path::new("/usr/sbin/nft");
        if nft.is_file() && std::env::consts::ARCH == machine.platform.name {
            programs.push(("nft", nft.to_owned()));
        }
        let apparmor = place.join("apparmor");
        if machine.scenes.iter().any(|scene| scene.profile != Profile::None) {
            let parser = ["sbin", "usr/sbin"].map(|folder| apparmor.join(folder).join("apparmor_parser"));
            let parser = parser.into_iter().find(|path| path.is_file());
            programs.push((
                "apparmor_parser",
                parser.ok_or("no AppArmor in the cache (scripts/kernels.sh)")?,
            ));
        }
        Ok(Parts {
            kernel,
            folder,
            busybox,
            agent: agent.to_owned(),
            apparmor,
            programs,
        })
    }
}

/// Kernels in the cache of this architecture that are of no machine's series and flavour: each is booted as it is.
pub fn others() -> Vec<Machine> {
    let place = sandglass_lab::built::place(PLAIN.platform.place);
    let unknown = releases(&place)
        .filter(|(release, folder)| image(folder).is_some() && !MACHINES.iter().any(|machine| machine.takes(release)));
    // For the rest of the test's process, as the names of the others.
    unknown.map(|(release, _)| Machine::plain(release.leak())).collect()
}

/// The folders of a place, with the kernels' releases, which are their names.
fn releases(place: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    entries(place).filter_map(|folder| Some((folder.file_name()?.to_str()?.to_owned(), folder)))
}

/// The numbers in a release: 6.1.0-9 is older than 6.1.0-10.
fn numbers(release: &str) -> Vec<u64> {
    let words = release.split(|letter: char| !letter.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The image of a kernel's package.
fn image(folder: &Path) -> Option<PathBuf> {
    find(folder, &|name| name.starts_with("vmlinuz"))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// The first file below `directory` whose name is wanted.
fn find(directory: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    entries(directory).find_map(|path| match path.is_dir() && !path.is_symlink() {
        true => find(&path, wanted),
        false => path.file_name()?.to_str().is_some_and(wanted).then_some(path),
    })
}

/// Boots the machine; returns what came over the serial line.
pub fn boot(machine: &Machine, parts: &Parts) -> Result<String> {
    let scratch = tempfile::tempdir()?;
    let initramfs = scratch.path().join("initramfs");
    fs::write(&initramfs, contents(machine, parts)?)?;
    let console = scratch.path().join("console");
    let platform = machine.platform;
    let mut emulator = Command::new(platform.emulator)
        .args(platform.options)
        .args(["-accel", platform.accelerator, "-cpu", "max", "-smp", "2", "-m", "1024"])
        .args([
            "-display",
            "none",
            "-monitor",
            "none",
            "-nic",
            "none",
            "-no-reboot",
            "-serial",
        ])
        .arg(format!("file:{}", console.display()))
        // A guest that gets no processor of the host for 20 s reports stalls of RCU, which say nothing of the agent.
        .arg("-append")
        .arg(format!(
            "console={} quiet panic=-1 rcupdate.rcu_cpu_stall_suppress=1 {}",
            platform.console, machine.command_line
        ))
        .arg("-kernel")
        .arg(&parts.kernel)
        .arg("-initrd")
        .arg(&initramfs)
        .stdin(Stdio::null())
        .spawn()?;
    let deadline = DEADLINE * u32::try_from(machine.scenes.len())?;
    let end = Instant::now() + deadline;
    while emulator.try_wait()?.is_none() {
        if Instant::now() > end {
            emulator.kill()?;
            emulator.wait()?;
            bail!(
                "{} did not end in {deadline:?}\n{}",
                machine.name,
                fs::read_to_string(&console)?
            );
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(String::from_utf8_lossy(&fs::read(&console)?).replace('\r', ""))
}

/// The initramfs.
fn contents(machine: &Machine, parts: &Parts) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in [
        "bin", "modules", "lib", "lib64", "sys", "proc", "dev", "tmp", "etc", "profiles",
    ] {
        archive.put(directory, 0o040_755, &[]);
    }
    archive.put("init", 0o100_755, INIT.as_bytes());
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
    archive.put("bin/busybox", 0o100_755, &fs::read(&parts.busybox)?);
    // Another agent than that of this build is static.
    match parts.agent == Path::new(env!("CARGO_BIN_EXE_sandglass")) {
        true => archive.program("sandglass", &parts.agent)?,
        false => archive.put("sandglass", 0o100_755, &fs::read(&parts.agent)?),
    }
    for (name, program) in &parts.programs {
        archive.program(&format!("bin/{name}"), program)?;
    }
    for scene in machine.scenes {
        let text = match scene.profile {
            Profile::None => continue,
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
    if machine.scenes.iter().any(|scene| scene.profile != Profile::None) {
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
    for module in MODULES {
        let file = find(&parts.folder, &|name| {
            name == format!("{module}.ko") || name == format!("{module}.ko.xz")
        });
        if let Some(file) = file {
            let suffix = if file.extension().is_some_and(|kind| kind == "xz") {
                ".xz"
            } else {
                ""
            };
            archive.put(&format!("modules/{module}.ko{suffix}"), 0o100_644, &fs::read(&file)?);
        }
    }
    Ok(archive.end())
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
/// For each scene; a boot with one takes 40 s where nothing else runs.
const DEADLINE: Duration = Duration::from_secs(400);
