//! Builds the kernel side: `wire.h` from the wire records (cbindgen), then every `bpf/*.bpf.c` with clang.
//!
//! `SANDGLASS_CLANG` names the compiler; `SANDGLASS_BPF_OBJECTS` names a directory with ready-made objects, for
//! machines without clang. Does not: need kernel headers, libbpf or a particular kernel.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Object file, source, and what distinguishes the rungs of one family.
const OBJECTS: &[(&str, &str, &[&str])] = &[
    ("exec.tp_btf.o", "exec.bpf.c", &[]),
    ("exec.raw_tp.o", "exec.bpf.c", &["-DRAW_TP"]),
    ("dns.cgroup_skb.o", "dns.bpf.c", &[]),
    ("dns.old_task.o", "dns.bpf.c", &["-DOLD_TASK"]),
    ("drop.tp_btf.o", "drop.bpf.c", &[]),
    ("drop.no_reason.o", "drop.bpf.c", &["-DNO_REASON"]),
    ("connect.tp_btf.o", "connect.bpf.c", &[]),
    ("connect.raw_tp.o", "connect.bpf.c", &["-DRAW_TP"]),
    ("conntrack.o", "conntrack.bpf.c", &[]),
    ("symbols.o", "symbols.bpf.c", &[]),
];

const HINT: &str = "install clang 14 or newer (apt-get install clang), name one in SANDGLASS_CLANG, or name a \
                    directory of ready-made objects in SANDGLASS_BPF_OBJECTS";

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    for watched in ["build.rs", "src/wire.rs", "src/wire", "bpf"] {
        println!("cargo::rerun-if-changed={watched}");
    }
    for variable in ["SANDGLASS_CLANG", "SANDGLASS_BPF_OBJECTS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: not run by cargo")?);
    if let Some(ready) = env::var_os("SANDGLASS_BPF_OBJECTS") {
        return copy_objects(Path::new(&ready), &out);
    }
    write_header(&out)?;
    let clang = find_tool("SANDGLASS_CLANG", "clang").ok_or_else(|| format!("clang not found: {HINT}"))?;
    let strip = find_tool("SANDGLASS_LLVM_STRIP", "llvm-strip");
    for (object, source, flags) in OBJECTS {
        let object = out.join(object);
        compile(&clang, &Path::new("bpf").join(source), &object, &out, flags)?;
        if let Some(strip) = &strip {
            // Only for size: drops DWARF, keeps BTF. An object that could not be stripped works as well.
            let _ = Command::new(strip).arg("-g").arg(&object).status();
        }
    }
    Ok(())
}

fn copy_objects(ready: &Path, out: &Path) -> Result<(), String> {
    println!("cargo::rerun-if-changed={}", ready.display());
    for (object, _, _) in OBJECTS {
        let from = ready.join(object);
        std::fs::copy(&from, out.join(object)).map_err(|error| format!("cannot copy {}: {error}", from.display()))?;
    }
    Ok(())
}

/// C declarations of everything in the wire modules.
fn write_header(out: &Path) -> Result<(), String> {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        no_includes: true,
        pragma_once: true,
        // Nothing exported refers to the records, so each is named here by being `pub` in the one source.
        export: cbindgen::ExportConfig {
            include: [
                "RecordHeader",
                "ForkRecord",
                "GoroutineWords",
                "ExecRecord",
                "ExitRecord",
                "Calibration",
                "DnsRecord",
                "DropRecord",
                "ConnectRecord",
                "FlowRecord",
                "TrustedOwners",
                "RefusedRecord",
                "ThreadTimes",
                "WakeRecord",
                "RunRecord",
                "AsleepRecord",
                "SocketRecord",
                "ExtackRecord",
                "FileLockRecord",
                "ContentionRecord",
                "MessageRecord",
                "CriSockets",
                "SandboxRequestRecord",
                "SandboxResponseRecord",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..Default::default()
        },
        ..Default::default()
    };
    cbindgen::Builder::new()
        .with_config(config)
        .with_src("src/wire.rs")
        .with_src("src/wire/dns.rs")
        .with_src("src/wire/connect.rs")
        .with_src("src/wire/conntrack.rs")
        .with_src("src/wire/cri.rs")
        .with_src("src/wire/daemons.rs")
        .with_src("src/wire/trust.rs")
        .with_src("src/wire/waits.rs")
        .with_src("src/wire/asleep.rs")
        .with_src("src/wire/extack.rs")
        .with_src("src/wire/locks.rs")
        .generate()
        .map_err(|error| format!("cannot make wire.h from src/wire.rs: {error}"))?
        .write_to_file(out.join("wire.h"));
    Ok(())
}

fn compile(clang: &OsString, source: &Path, object: &Path, include: &Path, flags: &[&str]) -> Result<(), String> {
    let target = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    let output = Command::new(clang)
        .args([
            "-target",
            target,
            "-mcpu=v3",
            "-g",
            "-O2",
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .arg(format!("-D__TARGET_ARCH_{}", kernel_arch()))
        // Same object wherever the tree lies.
        .arg(format!(
            "-ffile-prefix-map={}=.",
            env::current_dir().unwrap_or_default().display()
        ))
        .arg(format!("-ffile-prefix-map={}=.", include.display()))
        .arg("-I")
        .arg(include)
        .args(flags)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| format!("cannot run {}: {error}: {HINT}", clang.display()))?;
    if output.status.success() {
        return Ok(());
    }
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        println!("cargo::warning={line}");
    }
    Err(format!(
        "{} could not compile {}: {HINT}",
        clang.display(),
        source.display()
    ))
}

/// The kernel's name of the target architecture.
fn kernel_arch() -> String {
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86".to_owned(),
        Ok("aarch64") => "arm64".to_owned(),
        Ok("riscv64") => "riscv".to_owned(),
        Ok(other) => other.to_owned(),
        Err(_) => "unknown".to_owned(),
    }
}

/// The tool named in `variable`, else the newest of the versions a distribution names, else the plain name.
fn find_tool(variable: &str, name: &str) -> Option<OsString> {
    if let Some(tool) = env::var_os(variable) {
        return Some(tool);
    }
    (14..=19)
        .rev()
        .map(|version| format!("{name}-{version}"))
        .chain([name.to_owned()])
        .find(|tool| {
            Command::new(tool)
                .arg("--version")
                .output()
                .is_ok_and(|output| output.status.success())
        })
        .map(OsString::from)
}
