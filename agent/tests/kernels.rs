//! Other kernels than this machine's, booted in QEMU without acceleration: the verifier of each must take every program,
//! and the programs must report the same.
//!
//! `scripts/kernels.sh` fetches them into the cache; each directory there with a `vmlinuz` is booted, with the agent
//! and `kernels/init` as all there is. Skipped, by name, where there is no kernel, no busybox or no QEMU; a series of [`SERIES`]
//! that is missing is named.
//! Those of arm64 run a static agent of that architecture, which `SANDGLASS_ARM64_AGENT` names (`scripts/image.sh arm64` builds it).
//! Does not: repeat the probes' own tests, or measure; such a machine is about fourteen times slower.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

const INIT: &str = include_str!("kernels/init");
const MODULES: [&str; 8] = [
    "crc32c_generic",
    "libcrc32c",
    "nfnetlink",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "veth",
];
/// The series that must be there: one that is not is named. Others in the cache are booted as well.
/// The oldest that probes are built for and one of the newest come from other releases of Debian.
const SERIES: [&str; 4] = ["5.10", "6.1", "6.12", "7"];
/// A boot and a run take half a minute where nothing else runs.
const DEADLINE: Duration = Duration::from_secs(400);

/// A machine that QEMU emulates, and the agent that runs on it.
struct Machine {
    /// Where its kernels are (`scripts/places.sh`).
    place: PathBuf,
    emulator: &'static str,
    options: &'static [&'static str],
    console: &'static str,
    agent: PathBuf,
    series: &'static [&'static str],
}

#[test]
fn every_probe_works_on_other_kernels() -> Result<()> {
    let machine = Machine {
        place: sandglass_lab::built::place("kernels"),
        emulator: "qemu-system-x86_64",
        options: &[],
        console: "ttyS0",
        agent: env!("CARGO_BIN_EXE_sandglass").into(),
        series: &SERIES,
    };
    every_kernel("every_probe_works_on_other_kernels", &machine)
}

#[test]
fn every_probe_works_on_kernels_of_arm64() -> Result<()> {
    let name = "every_probe_works_on_kernels_of_arm64";
    let Some(agent) = std::env::var_os("SANDGLASS_ARM64_AGENT") else {
        eprintln!("SKIPPED {name}: SANDGLASS_ARM64_AGENT names no static agent (scripts/image.sh arm64)");
        return Ok(());
    };
    let machine = Machine {
        place: sandglass_lab::built::place("kernels_arm64"),
        emulator: "qemu-system-aarch64",
        options: &["-machine", "virt"],
        console: "ttyAMA0",
        agent: agent.into(),
        series: &["6.1", "6.12"],
    };
    every_kernel(name, &machine)
}

/// Boots each kernel of the machine, and judges what the agent reports there.
#[expect(clippy::print_stderr, clippy::print_stdout, reason = "what a test skips and takes")]
fn every_kernel(name: &str, machine: &Machine) -> Result<()> {
    let kernels = kernels(&machine.place);
    let emulator = Command::new(machine.emulator).arg("--version").output();
    for (missing, what) in [
        (
            kernels.is_empty(),
            "no kernel in the cache (scripts/kernels.sh)".to_owned(),
        ),
        (
            !machine.busybox().is_file(),
            "no busybox in the cache (scripts/kernels.sh)".to_owned(),
        ),
        (emulator.is_err(), format!("{} is not installed", machine.emulator)),
    ] {
        if missing {
            eprintln!("SKIPPED {name}: {what}");
            return Ok(());
        }
    }
    for series in machine.series {
        let beginning = format!("{series}.");
        let is_of_series = |folder: &&Path| {
            folder
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&beginning))
        };
        if !kernels
            .iter()
            .filter_map(|kernel| machine.folder(kernel))
            .any(|folder| is_of_series(&folder))
        {
            eprintln!(
                "NOT RUN {name}::{}: no kernel of this series in the cache",
                series.replace('.', "_")
            );
        }
    }
    for kernel in kernels {
        let begin = Instant::now();
        let console = machine.boot(&kernel)?;
        judge(&console).with_context(|| format!("{}\n{console}", kernel.display()))?;
        println!("{}: as expected, {:?}", kernel.display(), begin.elapsed());
    }
    Ok(())
}

/// Kernel images, one of each directory.
fn kernels(place: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = entries(place)
        .filter_map(|directory| find(&directory, &|name| name.starts_with("vmlinuz")))
        .collect();
    found.sort();
    found
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

impl Machine {
    fn busybox(&self) -> PathBuf {
        self.place.join("busybox")
    }

    /// The kernel's folder in the cache, which has the kernel's name; newer images have not.
    fn folder<'a>(&self, kernel: &'a Path) -> Option<&'a Path> {
        kernel
            .ancestors()
            .find(|directory| directory.parent() == Some(&self.place))
    }

    /// Boots a kernel with `kernels/init`; returns what came over the serial line.
    fn boot(&self, kernel: &Path) -> Result<String> {
        let scratch = tempfile::tempdir()?;
        let initramfs = scratch.path().join("initramfs");
        fs::write(&initramfs, self.archive(kernel)?)?;
        let console = scratch.path().join("console");
        let mut machine = Command::new(self.emulator)
            .args(self.options)
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"])
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
            .arg("-append")
            .arg(format!("console={} quiet panic=-1", self.console))
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(&initramfs)
            .stdin(Stdio::null())
            .spawn()?;
        let end = Instant::now() + DEADLINE;
        while machine.try_wait()?.is_none() {
            if Instant::now() > end {
                machine.kill()?;
                machine.wait()?;
                bail!(
                    "{} did not end in {DEADLINE:?}\n{}",
                    kernel.display(),
                    fs::read_to_string(&console)?
                );
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(String::from_utf8_lossy(&fs::read(&console)?).replace('\r', ""))
    }

    /// The initramfs: a cpio archive of the form "newc" (Documentation/driver-api/early-userspace/buffer-format.rst).
    fn archive(&self, kernel: &Path) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for directory in ["bin", "modules", "lib", "lib64", "sys", "proc", "dev", "tmp"] {
            archive.put(directory, 0o040_755, &[]);
        }
        archive.put("init", 0o100_755, INIT.as_bytes());
        archive.put("bin/busybox", 0o100_755, &fs::read(self.busybox())?);
        archive.put("sandglass", 0o100_755, &fs::read(&self.agent)?);
        for library in libraries(&self.agent)? {
            let bytes = fs::read(&library)?;
            let file = library
                .file_name()
                .and_then(|name| name.to_str())
                .context("a library without a name")?;
            archive.put(&format!("lib64/{file}"), 0o100_755, &bytes);
            archive.put(&format!("lib/{file}"), 0o100_755, &bytes);
        }
        // The modules lie in the package beside the image.
        let root = self.folder(kernel).context("a kernel outside of the cache")?;
        for module in MODULES {
            let file = find(root, &|name| {
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
}

/// What the agent of this build is linked with, the loader included; another agent is static.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    if program != Path::new(env!("CARGO_BIN_EXE_sandglass")) {
        return Ok(Vec::new());
    }
    let output = Command::new("ldd").arg(program).output()?;
    ensure!(output.status.success(), "ldd {}", program.display());
    let text = String::from_utf8(output.stdout)?;
    Ok(text
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}

#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn put(&mut self, name: &str, mode: u32, content: &[u8]) {
        let inode = self.0.len() / 4 + 1;
        let (size, name_size) = (content.len(), name.len() + 1);
        // Inode, mode, owner, group, links, time, size, device and its own, each twice, length of the name, check sum.
        let fields = [inode, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let head: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.0.extend_from_slice(format!("070701{head}").as_bytes());
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.align();
        self.0.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.put("TRAILER!!!", 0, &[]);
        self.0
    }
}

/// Compares the console with what `kernels/init` must print.
fn judge(console: &str) -> Result<()> {
    ensure!(console.contains("\nend of the run"), "the run did not come to its end");
    ensure!(
        console.contains("\nagent ended with 0\n"),
        "the agent did not end as it should"
    );
    ensure!(
        console.contains("\nmodules: yes\n"),
        "the kernel's modules could not be loaded"
    );
    let complaints: Vec<&str> = console.lines().filter(|line| line.starts_with("complaint: ")).collect();
    ensure!(complaints.is_empty(), "the kernel complains: {complaints:?}");
    let metrics = part(console, "metrics")?;
    for (probe, hooks) in [
        ("exec", &["tp_btf", "raw_tp"][..]),
        ("stdio", &["pipe pages at exit"]),
        ("netns", &["/proc/PID/root, inotify"]),
        ("connect", &["tp_btf inet_sock_set_state", "raw_tp inet_sock_set_state"]),
        ("drops", &["tp_btf", "tp_btf without reason"]),
        ("dns", &["cgroup_skb"]),
        ("conntrack", &["ctnetlink filter"]),
    ] {
        let attached = |hook: &&str| {
            metrics.contains(&format!(
                "\nsandglass_probe_attached{{probe=\"{probe}\",hook=\"{hook}\"}} 1\n"
            ))
        };
        ensure!(
            hooks.iter().any(attached),
            "probe {probe} is not attached to one of {hooks:?}"
        );
    }
    for (metric, count) in [
        (
            "sandglass_cni_plugin_duration_seconds_count{operation=\"ADD\",plugin=\"plug\",result=\"success\"}",
            2,
        ),
        (
            "sandglass_cni_plugin_duration_seconds_count{operation=\"ADD\",plugin=\"plug\",result=\"error\"}",
            1,
        ),
        // Of the plugin's own words: its exit code alone would be another class.
        (
            "sandglass_cni_operation_errors_total{operation=\"ADD\",plugin=\"plug\",error=\"cni_try_again_later\"}",
            1,
        ),
        (
            "sandglass_connect_duration_seconds_count{scope=\"sandbox\",result=\"established\"}",
            1,
        ),
        (
            "sandglass_connect_duration_seconds_count{scope=\"sandbox\",result=\"refused\"}",
            1,
        ),
        ("sandglass_dns_unanswered_total{scope=\"sandbox\"}", 1),
        (
            "sandglass_untrusted_processes_total{claim=\"plugin\",reason=\"capabilities\"}",
            1,
        ),
        (
            "sandglass_untrusted_processes_total{claim=\"plugin\",reason=\"pid_namespace\"}",
            1,
        ),
        (
            "sandglass_untrusted_processes_total{claim=\"plugin\",reason=\"user_namespace\"}",
            1,
        ),
        (
            "sandglass_untrusted_processes_total{claim=\"runtime\",reason=\"capabilities\"}",
            1,
        ),
    ] {
        ensure!(
            metrics.contains(&format!("\n{metric} {count}\n")),
            "not {count}: {metric}"
        );
    }
    let drops = |line: &str| line.starts_with("sandglass_packet_drops_total{scope=\"sandbox\",packet=\"dns\"");
    ensure!(
        metrics.lines().any(|line| drops(line) && !line.ends_with(" 0")),
        "no drop of a query is reported"
    );
    let lost = |line: &str| line.starts_with("sandglass_events_lost_total{") && !line.ends_with(" 0");
    ensure!(!metrics.lines().any(lost), "events were lost");
    let sandboxes = part(console, "sandboxes")?;
    ensure!(!metrics.contains("plugin=\"false\""), "a forged plugin is a label");
    ensure!(
        !sandboxes.contains("forged") && !sandboxes.contains("victim"),
        "a forged plugin is a sandbox"
    );
    for wanted in [
        "\"verdict\":\"plugin plug failed: no policy allows this pod\"",
        "\"pod\":\"good\"",
        "\"pod\":\"large\"",
    ] {
        ensure!(sandboxes.contains(wanted), "the list of sandboxes lacks {wanted}");
    }
    Ok(())
}

/// What stands between the lines `begin NAME` and `end NAME`.
fn part<'a>(console: &'a str, name: &str) -> Result<&'a str> {
    let behind = console
        .split_once(&format!("begin {name}\n"))
        .context("no beginning")?
        .1;
    Ok(behind.split_once(&format!("end {name}\n")).context("no end")?.0)
}
