//! The demo's pause image: a static program of some 250 bytes, wrapped as an OCI image archive.
//!
//! Used by the demo's rig, which hands the archive to `ctr images import`: no registry, no compiler, no container
//! tool. The program does what Kubernetes' pause does: it sleeps until SIGTERM or SIGINT and lets the kernel reap what
//! is reparented to it (<https://github.com/kubernetes/kubernetes/blob/master/build/pause/linux/pause.c>).
//! Does not: make images of more than one layer.

use rustls::SupportedCipherSuite;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use serde_json::json;

/// Name under which the image is imported. Fully qualified, or the CRI would look for it on a registry.
pub const NAME: &str = "docker.io/sandglass/pause:1";

/// The machine code, position independent, its two signal sets (`set`: SIGINT and SIGTERM; `ign`: a `struct
/// sigaction` with `SIG_IGN`) behind it. Blocked signals are never ignored, not even by PID 1, so a wait for them needs
/// no handler and no stack: `rt_sigaction(SIGCHLD, ign)`, `rt_sigprocmask(SIG_BLOCK, set)`, `rt_sigtimedwait(set)`
/// until it succeeds, `exit_group(0)`.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const CODE: &[u8] = &[
    0xb8, 0x0d, 0x00, 0x00, 0x00,             //        mov  $13, %eax        rt_sigaction
    0xbf, 0x11, 0x00, 0x00, 0x00,             //        mov  $17, %edi        SIGCHLD
    0x48, 0x8d, 0x35, 0x4f, 0x00, 0x00, 0x00, //        lea  ign(%rip), %rsi
    0x31, 0xd2,                               //        xor  %edx, %edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00,       //        mov  $8, %r10d
    0x0f, 0x05,                               //        syscall
    0xb8, 0x0e, 0x00, 0x00, 0x00,             //        mov  $14, %eax        rt_sigprocmask
    0x31, 0xff,                               //        xor  %edi, %edi       SIG_BLOCK
    0x48, 0x8d, 0x35, 0x2f, 0x00, 0x00, 0x00, //        lea  set(%rip), %rsi
    0x31, 0xd2,                               //        xor  %edx, %edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00,       //        mov  $8, %r10d
    0x0f, 0x05,                               //        syscall
    0xb8, 0x80, 0x00, 0x00, 0x00,             // again: mov  $128, %eax       rt_sigtimedwait
    0x48, 0x8d, 0x3d, 0x19, 0x00, 0x00, 0x00, //        lea  set(%rip), %rdi
    0x31, 0xf6,                               //        xor  %esi, %esi
    0x31, 0xd2,                               //        xor  %edx, %edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00,       //        mov  $8, %r10d
    0x0f, 0x05,                               //        syscall
    0x85, 0xc0,                               //        test %eax, %eax       EINTR after a stop
    0x78, 0xe4,                               //        js   again
    0xb8, 0xe7, 0x00, 0x00, 0x00,             //        mov  $231, %eax       exit_group
    0x31, 0xff,                               //        xor  %edi, %edi
    0x0f, 0x05,                               //        syscall
    0x02, 0x40, 0, 0, 0, 0, 0, 0,             // set:   .quad 1 << (SIGINT - 1) | 1 << (SIGTERM - 1)
    1, 0, 0, 0, 0, 0, 0, 0,                   // ign:   .quad 1, 0, 0, 0
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// The same for arm64, as little-endian words.
#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
const CODE: &[u8] = &[
    0xc8, 0x10, 0x80, 0xd2, //        mov  x8, #134         rt_sigaction
    0x20, 0x02, 0x80, 0xd2, //        mov  x0, #17          SIGCHLD
    0xc1, 0x02, 0x00, 0x10, //        adr  x1, ign
    0x02, 0x00, 0x80, 0xd2, //        mov  x2, #0
    0x03, 0x01, 0x80, 0xd2, //        mov  x3, #8
    0x01, 0x00, 0x00, 0xd4, //        svc  #0
    0xe8, 0x10, 0x80, 0xd2, //        mov  x8, #135         rt_sigprocmask
    0x00, 0x00, 0x80, 0xd2, //        mov  x0, #0           SIG_BLOCK
    0xc1, 0x01, 0x00, 0x10, //        adr  x1, set
    0x02, 0x00, 0x80, 0xd2, //        mov  x2, #0
    0x03, 0x01, 0x80, 0xd2, //        mov  x3, #8
    0x01, 0x00, 0x00, 0xd4, //        svc  #0
    0x28, 0x11, 0x80, 0xd2, // again: mov  x8, #137         rt_sigtimedwait
    0x20, 0x01, 0x00, 0x10, //        adr  x0, set
    0x01, 0x00, 0x80, 0xd2, //        mov  x1, #0
    0x02, 0x00, 0x80, 0xd2, //        mov  x2, #0
    0x03, 0x01, 0x80, 0xd2, //        mov  x3, #8
    0x01, 0x00, 0x00, 0xd4, //        svc  #0
    0x40, 0xff, 0xff, 0x37, //        tbnz w0, #31, again   EINTR after a stop
    0xc8, 0x0b, 0x80, 0xd2, //        mov  x8, #94          exit_group
    0x00, 0x00, 0x80, 0xd2, //        mov  x0, #0
    0x01, 0x00, 0x00, 0xd4, //        svc  #0
    0x02, 0x40, 0, 0, 0, 0, 0, 0, // set: .quad 1 << (SIGINT - 1) | 1 << (SIGTERM - 1)
    1, 0, 0, 0, 0, 0, 0, 0,       // ign: .quad 1, 0, 0, 0
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Name of a second program in the image, which computes without end: for tests of statistics.
pub const COMPUTING: &str = "compute";

/// A jump to itself.
#[cfg(target_arch = "x86_64")]
const LOOP: &[u8] = &[0xeb, 0xfe];
#[cfg(target_arch = "aarch64")]
const LOOP: &[u8] = &[0x00, 0x00, 0x00, 0x14];

#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &str) = (62, "amd64");
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &str) = (183, "arm64");

/// The pause program as a static ELF file: one header, one loaded segment, no sections.
#[must_use]
pub fn pause_program() -> Vec<u8> {
    program(CODE)
}

/// `code`, position independent, as a static ELF file.
fn program(code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + code.len() as u64;
    let mut elf = Vec::with_capacity(256);
    // e_ident: 64 bit, little endian, version 1, System V.
    elf.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // ET_EXEC, machine, version.
    elf.extend_from_slice(&2u16.to_le_bytes());
    elf.extend_from_slice(&MACHINE.0.to_le_bytes());
    elf.extend_from_slice(&1u32.to_le_bytes());
    // Entry, program headers, no section headers.
    for word in [BASE + HEADERS, 64, 0] {
        elf.extend_from_slice(&word.to_le_bytes());
    }
    // Flags; sizes and counts of the headers.
    elf.extend_from_slice(&0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        elf.extend_from_slice(&half.to_le_bytes());
    }
    // PT_LOAD, readable and executable, the whole file, aligned to the largest page size in use.
    elf.extend_from_slice(&1u32.to_le_bytes());
    elf.extend_from_slice(&5u32.to_le_bytes());
    for word in [0, BASE, BASE, size, size, 0x1_0000] {
        elf.extend_from_slice(&word.to_le_bytes());
    }
    elf.extend_from_slice(code);
    elf
}

/// The pause image as an OCI image archive (image-spec 1.0, "image layout" in a tar file).
#[must_use]
pub fn archive() -> Vec<u8> {
    let mut layer = Tar::default();
    layer.file("pause", &pause_program(), 0o755);
    layer.file(COMPUTING, &program(LOOP), 0o755);
    // runc mounts over these; with a read-only root file system it could not make them.
    for directory in ["dev", "etc", "proc", "sys"] {
        layer.directory(directory);
    }
    let layer = layer.finish();
    let config = json!({
        "architecture": MACHINE.1,
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    })
    .to_string()
    .into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    })
    .to_string()
    .into_bytes();
    let mut in_index = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    // The name that containerd's import takes.
    in_index["annotations"] = json!({"io.containerd.image.name": NAME});
    let index = json!({"schemaVersion": 2, "manifests": [in_index]}).to_string();

    let mut archive = Tar::default();
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644);
    archive.file("index.json", index.as_bytes(), 0o644);
    for blob in [&layer, &config, &manifest] {
        archive.file(&format!("blobs/sha256/{}", sha256(blob)), blob, 0o644);
    }
    archive.finish()
}

fn descriptor(media_type: &str, blob: &[u8]) -> serde_json::Value {
    json!({"mediaType": media_type, "digest": digest(blob), "size": blob.len()})
}

fn digest(blob: &[u8]) -> String {
    format!("sha256:{}", sha256(blob))
}

/// SHA-256 in hexadecimal, by the hash that the TLS stack brings along anyway.
fn sha256(blob: &[u8]) -> String {
    let output = match &TLS13_AES_128_GCM_SHA256 {
        SupportedCipherSuite::Tls13(suite) => suite.common.hash_provider.hash(blob),
        SupportedCipherSuite::Tls12(suite) => suite.common.hash_provider.hash(blob),
    };
    output.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tar file (POSIX ustar) of small files and directories, all owned by root, all from 1970.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn file(&mut self, name: &str, content: &[u8], mode: u32) {
        self.header(name, content.len(), mode, b'0');
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn directory(&mut self, name: &str) {
        self.header(&format!("{name}/"), 0, 0o755, b'5');
    }

    fn header(&mut self, name: &str, size: usize, mode: u32, kind: u8) {
        let mut header = [0u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{size:011o}").as_bytes());
        put(136, b"00000000000");
        // The checksum counts its own field as spaces.
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn sha256_is_sha256() {
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn pause_waits_for_sigterm_and_then_exits_with_success() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pause");
        std::fs::write(&path, pause_program()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = Command::new(&path).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none(), "it must wait");
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(5);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                panic!("pause did not end on SIGTERM");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!((status.code(), status.signal()), (Some(0), None));
    }

    #[test]
    fn tar_can_list_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        std::fs::write(&path, archive()).unwrap();
        let output = match Command::new("tar").arg("-tf").arg(&path).output() {
            Ok(output) => output,
            Err(error) => {
                eprintln!("SKIPPED tar_can_list_the_archive: no tar: {error}");
                return;
            }
        };
        let names = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{output:?}", output = output.stderr);
        assert_eq!(
            names.lines().filter(|name| name.starts_with("blobs/sha256/")).count(),
            3
        );
    }
}
