//! The kernel's type information (BTF) for the loader, cut down to what it looks up.
//!
//! Used by `family`. A kernel has some 130,000 types. For each type of each object aya-obj compares the names of all types that it relocates
//! against, which was a third of the agent's start: so it gets a small table of those that objects reference, with what these are made of,
//! as `bpftool gen min_core_btf` makes them. A program is attached by a type's place in the kernel's own table: for that there is the whole
//! table, without the names that aya does not look up. Does not: interpret types.
//!
//! The format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs;

use aya::{Btf, BtfError, Endianness};

/// Where the kernel has it.
const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Begin of what aya looks up by itself when it loads a program: the type of a tracepoint, the function of an iterator.
const LOOKED_UP: [&[u8]; 2] = [b"btf_trace_", b"bpf_iter_"];

/// `struct btf_type`: the offset of its name, the word `info`, and a size or a type.
const TYPE_LEN: usize = 12;

/// The kernel's types, in two tables.
pub struct KernelTypes {
    /// All types, in the kernel's order; of names only those that aya looks up.
    pub all: Btf,
    /// Those that objects reference, with what these are made of, in an order of their own. What a pointer points to is not in it.
    pub referenced: Btf,
}

impl KernelTypes {
    /// Reads the kernel's types.
    ///
    /// # Errors
    /// When the kernel has none, or they are not of the format.
    pub fn read() -> Result<KernelTypes, BtfError> {
        let types = fs::read(PATH).map_err(|error| BtfError::FileError {
            path: PATH.into(),
            error,
        })?;
        KernelTypes::of(types, &names_in(sandglass_probes::OBJECTS.iter().copied()))
    }

    fn of(mut types: Vec<u8>, names: &HashSet<&[u8]>) -> Result<KernelTypes, BtfError> {
        let table = Table::of(&types).ok_or(BtfError::InvalidTypeInfo)?;
        let referenced = table.only(&types, names).ok_or(BtfError::InvalidTypeInfo)?;
        table.keep_names(&mut types).ok_or(BtfError::InvalidTypeInfo)?;
        Ok(KernelTypes {
            all: Btf::parse(&types, Endianness::default())?,
            referenced: Btf::parse(&referenced, Endianness::default())?,
        })
    }
}

/// All texts of these objects: names of types are among them.
fn names_in<'o>(objects: impl Iterator<Item = &'o [u8]>) -> HashSet<&'o [u8]> {
    let texts = objects.flat_map(|object| object.split(|byte| *byte == 0));
    texts.map(without_flavor).filter(|name| !name.is_empty()).collect()
}

/// Where the types of a table lie.
struct Table {
    /// Offset and length of each type. Ids begin with 1; 0 is `void`, which is no type.
    places: Vec<(usize, usize)>,
    /// Offset of the names.
    names: usize,
}

impl Table {
    /// `None` where the bytes are not of the format.
    fn of(bytes: &[u8]) -> Option<Table> {
        let header_len = word(bytes, 4)?;
        let first = header_len.checked_add(word(bytes, 8)?)?;
        let end = first.checked_add(word(bytes, 12)?)?;
        let names = header_len.checked_add(word(bytes, 16)?)?;
        let mut places = Vec::new();
        let mut at = first;
        while at < end {
            let len = TYPE_LEN + members_len(word(bytes, at + 4)?)?;
            places.push((at, len));
            at += len;
        }
        (at == end && bytes.len() >= end).then_some(Table { places, names })
    }

    fn name<'b>(&self, bytes: &'b [u8], at: usize) -> Option<&'b [u8]> {
        let name = self.names.checked_add(word(bytes, at)?)?;
        let name = CStr::from_bytes_until_nul(bytes.get(name..)?).ok()?;
        Some(name.to_bytes())
    }

    /// Takes its name from each type that aya does not look up.
    fn keep_names(&self, bytes: &mut [u8]) -> Option<()> {
        for (at, _) in &self.places {
            let name = self.name(bytes, *at)?;
            if !LOOKED_UP.iter().any(|begin| name.starts_with(begin)) {
                bytes.get_mut(*at..at + 4)?.fill(0);
            }
        }
        Some(())
    }

    /// A table of the structures, unions and enumerations with these names, and of what they are made of. Names are as in the whole
    /// table.
    fn only(&self, bytes: &[u8], names: &HashSet<&[u8]>) -> Option<Vec<u8>> {
        let mut kept = Kept::default();
        for (id, (at, _)) in (1..).zip(&self.places) {
            if has_members(word(bytes, at + 4)?) && names.contains(without_flavor(self.name(bytes, *at)?)) {
                kept.id_of(id);
            }
        }
        let mut types = Vec::new();
        let mut next = 0;
        while let Some(id) = kept.ids.get(next) {
            let (at, len) = *self.places.get(id - 1)?;
            let begin = types.len();
            types.extend(bytes.get(at..at + len)?);
            let info = word(bytes, at + 4)?;
            for place in refers_to(info) {
                let id = match kind_of(info) {
                    KIND_POINTER => 0,
                    _ => kept.id_of(word(bytes, at + place)?),
                };
                let id = u32::try_from(id).ok()?.to_ne_bytes();
                types.get_mut(begin + place..begin + place + 4)?.copy_from_slice(&id);
            }
            next += 1;
        }
        let texts = bytes.get(self.names..self.names.checked_add(word(bytes, 20)?)?)?;
        let mut table = bytes.get(..4)?.to_vec();
        // Length of the header, then offset and length of the types and of the names.
        for length in [HEADER_LEN, 0, types.len(), types.len(), texts.len()] {
            table.extend(u32::try_from(length).ok()?.to_ne_bytes());
        }
        table.extend(types);
        table.extend(texts);
        Some(table)
    }
}

/// Types that go into a smaller table.
#[derive(Default)]
struct Kept {
    /// By place in the smaller table, the id in the whole one.
    ids: Vec<usize>,
    /// By id in the whole table, the id in the smaller one.
    new: HashMap<usize, usize>,
}

impl Kept {
    /// The id in the smaller table of what has this id in the whole one: it goes into it.
    fn id_of(&mut self, id: usize) -> usize {
        // `void` is no type.
        if id == 0 {
            return 0;
        }
        *self.new.entry(id).or_insert_with(|| {
            self.ids.push(id);
            self.ids.len()
        })
    }
}

/// The kind of a type, by its word `info`.
fn kind_of(info: usize) -> usize {
    info >> 24 & 0x1f
}

/// Structures, unions and enumerations.
fn has_members(info: usize) -> bool {
    matches!(kind_of(info), 4 | 5 | 6 | 19)
}

/// Where a type has the ids of other types, of those kinds that a structure can be made of.
fn refers_to(info: usize) -> Vec<usize> {
    match kind_of(info) {
        // Pointers, typedefs, volatile, const, restrict, type tags.
        KIND_POINTER | 8..=11 | 18 => vec![8],
        // The array's elements and its index.
        3 => vec![TYPE_LEN, TYPE_LEN + 4],
        4 | 5 => (0..info & 0xffff).map(|member| TYPE_LEN + 12 * member + 4).collect(),
        _ => Vec::new(),
    }
}

/// Length of what follows a `struct btf_type`, by its word `info`; `None` for a kind that is not known.
fn members_len(info: usize) -> Option<usize> {
    let members = info & 0xffff;
    Some(match kind_of(info) {
        // Pointers, forward declarations, typedefs, const, volatile, restrict, functions, floats and type tags.
        KIND_POINTER | 7..=12 | 16 | 18 => 0,
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

/// `struct btf_header`.
const HEADER_LEN: usize = 24;
/// `BTF_KIND_PTR`.
const KIND_POINTER: usize = 2;

#[cfg(test)]
mod tests {
    use aya_obj::Object;
    use aya_obj::btf::BtfKind;

    use super::*;

    /// The kernel's table; without one the test has not run.
    fn kernel(test: &str) -> Option<Vec<u8>> {
        let types = fs::read(PATH).ok();
        if types.is_none() {
            eprintln!("SKIPPED {test}: the kernel has no type information");
        }
        types
    }

    /// Instructions of the object's functions after relocation against these types.
    fn relocated(object: &[u8], types: &Btf) -> Vec<String> {
        let mut object = Object::parse(object).unwrap();
        object.relocate_btf(types).unwrap();
        instructions(&object)
    }

    fn instructions(object: &Object) -> Vec<String> {
        let functions = object.functions.values();
        functions
            .map(|function| format!("{:?}", function.instructions))
            .collect()
    }

    #[test]
    fn objects_are_relocated_as_with_all_types() {
        let Some(whole) = kernel("objects_are_relocated_as_with_all_types") else {
            return;
        };
        let names = names_in(sandglass_probes::OBJECTS.iter().copied());
        let types = KernelTypes::of(whole.clone(), &names).unwrap();
        let whole = Btf::parse(&whole, Endianness::default()).unwrap();
        let mut relocations = 0;
        for object in sandglass_probes::OBJECTS {
            let with_all = relocated(object, &whole);
            assert!(with_all == relocated(object, &types.referenced));
            let before = Object::parse(object).unwrap();
            relocations += usize::from(with_all != instructions(&before));
        }
        // An object without relocations proves nothing.
        assert!(relocations >= 8, "{relocations} objects were changed");
    }

    #[test]
    fn what_is_looked_up_keeps_its_id() {
        let Some(whole) = kernel("what_is_looked_up_keeps_its_id") else {
            return;
        };
        let types = KernelTypes::of(whole.clone(), &HashSet::new()).unwrap();
        let whole = Btf::parse(&whole, Endianness::default()).unwrap();
        let id = |types: &Btf, name, kind| types.id_by_type_name_kind(name, kind).ok();
        for (name, kind) in [
            ("btf_trace_sched_process_exec", BtfKind::Typedef),
            ("bpf_iter_task", BtfKind::Func),
        ] {
            assert!(id(&whole, name, kind).is_some());
            assert_eq!(id(&types.all, name, kind), id(&whole, name, kind));
        }
        assert_eq!(id(&types.all, "task_struct", BtfKind::Struct), None);
        // What pointers point to is not taken along.
        let names = HashSet::from([&b"list_head"[..]]);
        let types = KernelTypes::of(fs::read(PATH).unwrap(), &names).unwrap();
        assert_eq!(id(&types.referenced, "list_head", BtfKind::Struct), Some(1));
        assert_eq!(id(&types.referenced, "task_struct", BtfKind::Struct), None);
    }

    #[test]
    fn what_is_not_of_the_format_is_an_error() {
        for garbage in [&b""[..], &[0xff; 64], &[1; 64], &[24; 28]] {
            assert!(KernelTypes::of(garbage.to_vec(), &HashSet::new()).is_err());
        }
        let Some(whole) = kernel("what_is_not_of_the_format_is_an_error") else {
            return;
        };
        let names = HashSet::from([&b"task_struct"[..]]);
        for len in [16, 24, 1000, whole.len() / 2] {
            assert!(KernelTypes::of(whole[..len].to_vec(), &names).is_err());
        }
    }

    #[test]
    fn a_flavor_is_no_part_of_a_name() {
        assert_eq!(without_flavor(b"task_struct___smp"), b"task_struct");
        assert_eq!(without_flavor(b"task_struct"), b"task_struct");
        assert_eq!(without_flavor(b""), b"");
    }
}
