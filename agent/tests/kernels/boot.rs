//! Finds the kernel of a machine in the cache and boots it in QEMU, with the archive that a test made as all there is.
//!
//! Used by the tests `kernels` and, in the demo's crate, `guests`. Does not: fetch kernels (`scripts/kernels.sh`), or know what
//! a machine runs and prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::archive::Archive;
use super::machines::{MACHINES, Machine, Platform};

/// A kernel in the cache, with its modules and with busybox.
pub struct Kernel {
    image: PathBuf,
    /// The kernel's folder in the cache: its modules lie there.
    folder: PathBuf,
    busybox: PathBuf,
}

/// What came of a machine.
pub struct Booted {
    /// What came over the serial line.
    pub console: String,
    /// What the emulator took of the host's processors.
    pub processors: Duration,
}

/// How much a machine has, and for how long it may run.
pub struct Bounds {
    pub memory_mib: u32,
    /// A disk of this many KiB, of which it reads 256 a second.
    pub disk_kib: u64,
    pub deadline: Duration,
}

impl Kernel {
    /// That of the machine. The error names what is not there: the machine is skipped.
    pub fn of(machine: &Machine) -> Result<Kernel, String> {
        let place = sandglass_lab::built::place(machine.platform.place);
        let mut folders: Vec<(String, PathBuf)> =
            releases(&place).filter(|(release, _)| machine.takes(release)).collect();
        folders.sort_by_key(|(release, _)| numbers(release));
        let (folder, image) = folders
            .into_iter()
            .rev()
            .find_map(|(_, folder)| Some((folder.clone(), image(&folder)?)))
            .ok_or_else(|| format!("no such kernel in the cache ({})", machine.script()))?;
        let busybox = place.join("busybox");
        if !busybox.is_file() {
            return Err("no busybox in the cache (scripts/kernels.sh)".to_owned());
        }
        let emulator = machine.platform.emulator;
        if Command::new(emulator).arg("--version").output().is_err() {
            return Err(format!("{emulator} is not installed"));
        }
        Ok(Kernel { image, folder, busybox })
    }

    /// The begin of an archive: folders, `init` and what it sources, busybox, and of `modules`, which come in the order in which
    /// they are loaded, those that the kernel has not built in.
    pub fn archive(&self, init: &str, modules: &[&str]) -> Result<Archive> {
        let mut archive = Archive::default();
        for directory in ["bin", "modules", "lib", "lib64", "sys", "proc", "dev", "tmp", "etc"] {
            archive.put(directory, 0o040_755, &[]);
        }
        archive.put("init", 0o100_755, init.as_bytes());
        archive.put("prelude", 0o100_644, PRELUDE.as_bytes());
        archive.put("bin/busybox", 0o100_755, &fs::read(&self.busybox)?);
        let mut order = String::new();
        for module in modules {
            let file = find(&self.folder, &|name| {
                name == format!("{module}.ko") || name == format!("{module}.ko.xz")
            });
            let Some(file) = file else { continue };
            let suffix = if file.extension().is_some_and(|kind| kind == "xz") {
                ".xz"
            } else {
                ""
            };
            archive.put(&format!("modules/{module}.ko{suffix}"), 0o100_644, &fs::read(&file)?);
            order.push_str(module);
            order.push('\n');
        }
        archive.put("modules/order", 0o100_644, order.as_bytes());
        Ok(archive)
    }
}

/// Kernels in the cache of this architecture that are of no machine's series and flavour: each is booted as it is.
pub fn others(platform: &'static Platform) -> Vec<Machine> {
    let place = sandglass_lab::built::place(platform.place);
    let known = |release: &str| {
        let machines = MACHINES.iter().filter(|machine| machine.platform.name == platform.name);
        machines.into_iter().any(|machine| machine.takes(release))
    };
    let unknown = releases(&place).filter(|(release, folder)| image(folder).is_some() && !known(release));
    // For the rest of the test's process, as the names of the others.
    unknown
        .map(|(release, _)| Machine::plain(release.leak(), platform))
        .collect()
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

/// Boots the machine, and waits for its end.
pub fn boot(machine: &Machine, kernel: &Kernel, archive: Archive, bounds: &Bounds) -> Result<Booted> {
    let scratch = tempfile::tempdir()?;
    let initramfs = scratch.path().join("initramfs");
    fs::write(&initramfs, archive.end())?;
    let console = scratch.path().join("console");
    let disk = scratch.path().join("disk");
    fs::File::create(&disk)?.set_len(bounds.disk_kib << 10)?;
    let platform = machine.platform;
    let mut emulator = Command::new(platform.emulator)
        .args(platform.options)
        .args(["-accel", platform.accelerator, "-cpu", platform.processor, "-smp", "2"])
        .args(["-m", &bounds.memory_mib.to_string()])
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
        // NVMe: its driver is in every kernel, or is not needed for another assertion.
        .args(["-device", "nvme,drive=disk,serial=1", "-drive"])
        .arg(format!(
            "if=none,id=disk,format=raw,throttling.bps-total=262144,file={}",
            disk.display()
        ))
        // A guest that gets no processor of the host for 20 s reports stalls of RCU, which say nothing of the agent. With PREEMPT_RT much
        // output on the emulated serial line counts as interrupts that nobody wanted, and Linux shuts the line off
        // (kernel/irq/spurious.c, note_interrupt): the end of the console was missing. At its boot the kernel tests its
        // cryptography, and complains of itself when a test takes longer than 60 s (crypto/api.c, crypto_larval_wait). Of denials that
        // come faster than it writes them to its log it keeps 64 by default; it then loses the others, and says so on the console, between the
        // lines of what is judged (kernel/audit.c, audit_log_start).
        .arg("-append")
        .arg(format!(
            "console={} quiet panic=-1 rcupdate.rcu_cpu_stall_suppress=1 noirqdebug cryptomgr.notests audit_backlog_limit=8192 {} {}",
            platform.console, platform.command_line, machine.command_line
        ))
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initramfs)
        .stdin(Stdio::null())
        .spawn()
        .context(platform.emulator)?;
    let deadline = bounds.deadline;
    let end = Instant::now() + deadline;
    let mut processors = Duration::ZERO;
    while emulator.try_wait()?.is_none() {
        processors = taken(emulator.id()).unwrap_or(processors);
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
    Ok(Booted {
        console: String::from_utf8_lossy(&fs::read(&console)?).replace('\r', ""),
        processors,
    })
}

/// What a process has taken of processors (proc_pid_stat(5), utime and stime; in hundredths of a second on every architecture).
fn taken(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may have anything in it.
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * 10))
}

const PRELUDE: &str = include_str!("prelude");
