//! BPF objects that a process holds, and whether the kernel still has them: an agent that ends must leave none.
//!
//! Used by the end-to-end tests and the cluster's. Linux only; runs `bpftool`, which shares no code with the agent.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// A program, map or link: its kind, as bpftool names it, and its id.
pub type Object = (&'static str, u32);

/// The objects that a process holds, from its descriptors (proc_pid_fdinfo(5); `bpf_prog_show_fdinfo` and its siblings in
/// `kernel/bpf/syscall.c`). Empty where the process is gone.
#[must_use]
pub fn objects_of(pid: u32) -> BTreeSet<Object> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .into_iter()
        .flatten()
        .flatten();
    let texts = descriptors.filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok());
    texts.flat_map(|text| parse(&text)).collect()
}

/// Waits until none of `objects` exists, 30 s at most.
///
/// # Errors
/// Those that still do; or, as `None`, that bpftool is not installed.
pub fn wait_until_gone(objects: &BTreeSet<Object>) -> Result<(), Option<Vec<Object>>> {
    if Command::new("bpftool").arg("version").output().is_err() {
        return Err(None);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let still: Vec<Object> = objects.iter().filter(|object| exists(object)).copied().collect();
        if still.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Some(still));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn exists((kind, id): &Object) -> bool {
    let shown = Command::new("bpftool")
        .args([kind, "show", "id", &id.to_string()])
        .output();
    shown.is_ok_and(|output| output.status.success())
}

fn parse(fdinfo: &str) -> Vec<Object> {
    let object = |line: &str| {
        let (key, id) = line.split_once(':')?;
        let kinds = [("prog_id", "prog"), ("map_id", "map"), ("link_id", "link")];
        let (_, kind) = kinds.into_iter().find(|(name, _)| *name == key)?;
        Some((kind, id.trim().parse().ok()?))
    };
    fdinfo.lines().filter_map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_maps_and_links_are_distinguished() {
        let link = "pos:\t0\nflags:\t02000000\nlink_type:\traw_tracepoint\nlink_id:\t7\nprog_id:\t12\n";
        assert_eq!(parse(link), [("link", 7), ("prog", 12)]);
        assert_eq!(parse("pos:\t0\nmap_type:\t27\nmap_id:\t9\n"), [("map", 9)]);
        assert_eq!(parse("pos:\t0\n"), []);
    }
}
