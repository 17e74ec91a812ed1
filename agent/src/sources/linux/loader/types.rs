//! The kernel's type information (BTF) for the loader, without the names that no object asks for.
//!
//! Used by `family`. A kernel has some 130,000 types, and for each type of each object aya-obj compares the names of all of them. A type
//! without a name costs little there (bench: 275 ms until the agent is ready, for 315), and all of them keep their ids, by which the
//! kernel attaches a program. Does not: interpret types.
//!
//! The format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h.

use std::collections::HashSet;
use std::fs;

use aya::{Btf, BtfError, Endianness};

/// Where the kernel has it.
const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Begin of what aya looks up by itself when it loads a program: the type of a tracepoint, the function of an iterator.
const LOOKED_UP: [&[u8]; 2] = [b"btf_trace_", b"bpf_iter_"];

/// `struct btf_type`: the offset of its name, the word `info`, and a size or a type.
const TYPE_LEN: usize = 12;

/// Reads the kernel's types.
///
/// # Errors
/// When the kernel has none, or they are not of the format.
pub fn of_kernel() -> Result<Btf, BtfError> {
    let mut types = fs::read(PATH).map_err(|error| BtfError::FileError {
        path: PATH.into(),
        error,
    })?;
    let strings = sandglass_probes::OBJECTS
        .iter()
        .flat_map(|object| object.split(|byte| *byte == 0));
    let asked_for: HashSet<&[u8]> = strings.map(without_flavor).collect();
    keep_names(&mut types, |name| {
        asked_for.contains(without_flavor(name)) || LOOKED_UP.iter().any(|begin| name.starts_with(begin))
    });
    Btf::parse(&types, Endianness::default())
}

/// Takes its name from each type that is not to `keep` it. Ends where the bytes are not of the format, which the parser reports.
fn keep_names(types: &mut [u8], keep: impl Fn(&[u8]) -> bool) -> Option<()> {
    let header_len = word(types, 4)?;
    let first = header_len.checked_add(word(types, 8)?)?;
    let end = first.checked_add(word(types, 12)?)?;
    let strings = header_len.checked_add(word(types, 16)?)?;
    let mut at = first;
    while at < end {
        let name_at = strings.checked_add(word(types, at)?)?;
        let name = types.get(name_at..)?.split(|byte| *byte == 0).next()?;
        if !keep(name) {
            types.get_mut(at..at + 4)?.fill(0);
        }
        at += TYPE_LEN + members_len(word(types, at + 4)?)?;
    }
    Some(())
}

/// Length of what follows a `struct btf_type`, by its word `info`; `None` for a kind that is not known.
fn members_len(info: usize) -> Option<usize> {
    let members = info & 0xffff;
    Some(match info >> 24 & 0x1f {
        // Pointers, forward declarations, typedefs, const, volatile, restrict, functions, floats and type tags.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections of data, enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumerations, prototypes of functions.
        6 | 13 => 8 * members,
        _ => return None,
    })
}

/// The word of 32 bits at this offset, in the machine's byte order.
fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(4)?)?.first_chunk()?;
    usize::try_from(u32::from_ne_bytes(*word)).ok()
}

/// The name of a type without what tells several definitions of it apart in an object: `task_struct` of `task_struct___smp`
/// (Documentation/bpf/libbpf/libbpf_overview.rst; aya-obj takes the first `___` too).
fn without_flavor(name: &[u8]) -> &[u8] {
    let flavor = name.windows(3).position(|bytes| bytes == b"___");
    &name[..flavor.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_names_that_are_not_kept_go() {
        let Ok(kernel) = fs::read(PATH) else {
            eprintln!("SKIPPED only_names_that_are_not_kept_go: the kernel has no type information");
            return;
        };
        let mut types = kernel.clone();
        keep_names(&mut types, |_| true).unwrap();
        assert!(types == kernel, "all are kept");
        keep_names(&mut types, |name| name == b"task_struct").unwrap();
        assert_eq!(types.len(), kernel.len());
        let left = RefCell::new(BTreeMap::new());
        keep_names(&mut types, |name| {
            *left.borrow_mut().entry(name.to_vec()).or_insert(0) += 1;
            true
        })
        .unwrap();
        let left = left.into_inner();
        assert_eq!(left.keys().collect::<Vec<_>>(), [&b""[..], b"task_struct"]);
        assert!(left[&b"task_struct"[..]] >= 1 && left[&b""[..]] > 10_000, "{left:?}");
        Btf::parse(&types, Endianness::default()).unwrap();
    }

    #[test]
    fn what_is_not_of_the_format_stays() {
        for garbage in [&b""[..], &[0xff; 64], &[0; 24]] {
            let mut types = garbage.to_vec();
            keep_names(&mut types, |_| false);
            assert_eq!(types, garbage);
        }
    }

    #[test]
    fn a_flavor_is_no_part_of_a_name() {
        assert_eq!(without_flavor(b"task_struct___smp"), b"task_struct");
        assert_eq!(without_flavor(b"task_struct"), b"task_struct");
        assert_eq!(without_flavor(b""), b"");
    }
}
