//! Keeps the agent's resident memory small: it counts once for every node of a fleet.
//!
//! Used at start, and by the composition root while the agent runs. What concerns the allocator is for glibc only; musl
//! and Windows give memory back, or do not, by themselves. Does not: replace the allocator.

/// One arena for all threads: they allocate little at once, and glibc's arena for each keeps what the others freed.
/// To be called before any other thread exists.
pub fn keep_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number in the allocator before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives memory back that was freed: after the kernel's type information was read, or a burst of sandboxes is over.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets go of the program's code: most of what has run by the end of the start (reading type information, configuration,
/// the command line) never runs again. Of 8 MB an agent at work needs 2, which come back from the page cache by themselves,
/// 64 KiB at a time.
pub fn forget_code() {
    #[cfg(target_os = "linux")]
    for mapping in std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
        let Some((begin, end)) = code_of_a_file(mapping) else {
            continue;
        };
        // SAFETY: pages of a file, mapped private, that cannot be written: none differs from the file, and a missing one
        // is read from it again.
        let _ = unsafe {
            rustix::mm::madvise(
                begin as *mut std::ffi::c_void,
                end - begin,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
    }
}

/// Begin and end of a mapping of `/proc/PID/maps` that holds a file's code.
#[cfg(any(target_os = "linux", test))]
fn code_of_a_file(mapping: &str) -> Option<(usize, usize)> {
    let mut fields = mapping.split_ascii_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    (fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/')).then_some(())?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(begin)?, address(end)?)).filter(|(begin, end)| begin < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_let_go() {
        let lines = [
            "55d0c0400000-55d0c0a00000 r-xp 00200000 fe:00 131 /usr/bin/sandglass",
            "55d0c0000000-55d0c0400000 r--p 00000000 fe:00 131 /usr/bin/sandglass",
            "7ffd1f5f2000-7ffd1f5f4000 r-xp 00000000 00:00 0 [vdso]",
            "7f0000000000-7f0000001000 rwxp 00000000 00:00 0",
            "7f0000002000-7f0000001000 r-xp 00000000 fe:00 1 /x",
            "",
            "zz-yy r-xp 0 0 0 /x",
        ];
        let found: Vec<_> = lines.into_iter().filter_map(code_of_a_file).collect();
        assert_eq!(found, [(0x55d0_c040_0000, 0x55d0_c0a0_0000)]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_program_goes_on_without_its_code() {
        let pages = || -> u64 {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(2).unwrap().parse().unwrap()
        };
        let before = pages();
        forget_code();
        assert!(pages() < before, "{} pages of {before}", pages());
    }
}
