//! Names of the kernel's drop reasons, from the type information of the running kernel.
//!
//! Used by `drops`. The numbers change from release to release, so there is no table of them here. Reads two enums out of BTF
//! (Documentation/bpf/btf.rst) and keeps nothing else. A file that is not as expected gives no names, and a reason without a
//! name is its number. Does not: know reasons that are newer than the kernel's BTF.

use std::collections::BTreeMap;

/// The names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// `enum skb_drop_reason` (include/net/dropreason-core.h), without the prefix; empty before Linux 5.17.
    core: BTreeMap<u32, String>,
    /// `enum skb_drop_reason_subsys` (include/net/dropreason.h), likewise; empty before Linux 6.4.
    subsystems: BTreeMap<u32, String>,
}

impl Reasons {
    /// The names of the running kernel; empty when it has no BTF.
    #[must_use]
    pub fn of_this_kernel() -> Reasons {
        std::fs::read("/sys/kernel/btf/vmlinux").map_or_else(|_| Reasons::default(), |btf| Reasons::parse(&btf))
    }

    /// The names in the bytes of a BTF file; empty where there is no such enum.
    fn parse(btf: &[u8]) -> Reasons {
        // An enumerator without the prefix, such as SKB_NOT_DROPPED_YET, is no reason of a drop.
        let short = |prefix: &'static str| {
            move |(name, value): (&str, u32)| Some((value, name.strip_prefix(prefix)?.to_owned()))
        };
        Reasons {
            core: enumerators(btf, "skb_drop_reason")
                .unwrap_or_default()
                .into_iter()
                .filter_map(short("SKB_DROP_REASON_"))
                .collect(),
            subsystems: enumerators(btf, "skb_drop_reason_subsys")
                .unwrap_or_default()
                .into_iter()
                .filter_map(short("SKB_DROP_REASON_SUBSYS_"))
                .collect(),
        }
    }

    /// The name of a reason without its prefix. A reason of a subsystem is the subsystem's name and a number
    /// (include/net/dropreason-core.h, SKB_DROP_REASON_SUBSYS_MASK: the upper half is the subsystem; since Linux 6.4). The
    /// names of a subsystem's own reasons are in other enums, each with its own layout, and are not read.
    #[must_use]
    pub fn name(&self, reason: u32) -> String {
        let (subsystem, number) = (reason >> 16, reason & 0xffff);
        match subsystem {
            0 => match self.core.get(&number) {
                Some(name) => name.clone(),
                None if number == 0 => "NOT_SPECIFIED".to_owned(),
                None => format!("REASON_{number}"),
            },
            _ => match self.subsystems.get(&subsystem) {
                Some(name) => format!("{name}_{number}"),
                None => format!("SUBSYSTEM_{subsystem}_{number}"),
            },
        }
    }
}

/// Names and values of the enum called `wanted`; `None` when it is not there, or the bytes are no BTF. One pass over
/// the types, some megabytes, at start only.
fn enumerators<'b>(btf: &'b [u8], wanted: &str) -> Option<Vec<(&'b str, u32)>> {
    // The first two bytes: a file of the other byte order has them swapped, and is no file of this kernel.
    if word(btf, 0)? & 0xffff != BTF_MAGIC {
        return None;
    }
    let header = word(btf, 4)? as usize;
    let section = |offset: usize, len: usize| {
        let begin = header.checked_add(word(btf, offset)? as usize)?;
        btf.get(begin..begin.checked_add(word(btf, len)? as usize)?)
    };
    // struct btf_header (include/uapi/linux/btf.h): magic, version and flags in one word, the header's length, then offset and
    // length of the types and of the strings, both counted from the header's end.
    let (types, strings) = (section(8, 12)?, section(16, 20)?);
    let mut at = 0;
    while at < types.len() {
        // struct btf_type: name, then `info` (kind in bits 24 to 28, members in the lower 16), then size or type.
        let (facts, size) = (word(types, at + 4)?, word(types, at + 8)?);
        let (kind, members) = (facts >> 24 & 31, (facts & 0xffff) as usize);
        let body = at + 12;
        // An enum without members is a forward declaration; the one with members stands elsewhere.
        if kind == KIND_ENUM && text(strings, word(types, at)?)? == wanted && members > 0 {
            // struct btf_enum: offset of the name, then the value.
            let one = |n: usize| {
                let name = text(strings, word(types, body + n * 8)?)?;
                Some((name, word(types, body + n * 8 + 4)?))
            };
            return (0..members).map(one).collect();
        }
        let _ = size;
        at = body + body_len(kind, members)?;
    }
    None
}

/// Bytes behind the three words that every type begins with (Documentation/bpf/btf.rst, section 2.2). `None` for a kind that is
/// newer than this code: its length is not known, so that nothing behind it can be read.
fn body_len(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Integer, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Structure, union, data section, 64-bit enum.
        4 | 5 | 15 | 19 => members * 12,
        // Enum, function prototype.
        KIND_ENUM | 13 => members * 8,
        _ => return None,
    })
}

/// A 32-bit number in the byte order of the machine, as the kernel writes its own BTF.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

/// A string of the string section: from its offset to the next zero.
fn text(strings: &[u8], at: u32) -> Option<&str> {
    let rest = strings.get(at as usize..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    str::from_utf8(&rest[..end]).ok()
}

// include/uapi/linux/btf.h: BTF_MAGIC and BTF_KIND_ENUM.
const BTF_MAGIC: u32 = 0xeb9f;
const KIND_ENUM: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    /// A BTF with an integer, both enums, and what may stand between them.
    fn btf() -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |text: &str| {
            let at = u32::try_from(strings.len()).unwrap();
            strings.extend(text.bytes().chain([0]));
            at
        };
        let mut types = Vec::new();
        types.extend([name("int"), 1 << 24, 4, 32]);
        types.extend([name("pair"), 4 << 24 | 1, 4, name("a"), 1, 0]);
        types.extend([name("skb_drop_reason"), 6 << 24 | 2, 4]);
        types.extend([name("SKB_NOT_DROPPED_YET"), 0, name("SKB_DROP_REASON_NOT_SPECIFIED"), 2]);
        types.extend([name("skb_drop_reason_subsys"), 6 << 24 | 1, 4]);
        types.extend([name("SKB_DROP_REASON_SUBSYS_OPENVSWITCH"), 3]);
        let types: Vec<u8> = types.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        let (types_len, strings_len) = (
            u32::try_from(types.len()).unwrap(),
            u32::try_from(strings.len()).unwrap(),
        );
        let header = [BTF_MAGIC | 1 << 16, 24, 0, types_len, types_len, strings_len];
        let header = header.iter().flat_map(|word: &u32| word.to_ne_bytes());
        header.chain(types).chain(strings).collect()
    }

    #[test]
    fn names_come_from_the_types() {
        let reasons = Reasons::parse(&btf());
        for (reason, name) in [
            (2, "NOT_SPECIFIED"),
            (77, "REASON_77"),
            (3 << 16 | 5, "OPENVSWITCH_5"),
            (9 << 16 | 1, "SUBSYSTEM_9_1"),
        ] {
            assert_eq!(reasons.name(reason), name);
        }
    }

    /// A file that ends anywhere must not panic the agent at its start.
    #[test]
    fn any_prefix_of_it_gives_names_or_none() {
        let whole = btf();
        for len in 0..whole.len() {
            let _ = Reasons::parse(&whole[..len]);
        }
        assert_eq!(Reasons::parse(&[]), Reasons::default());
        assert_eq!(Reasons::default().name(0), "NOT_SPECIFIED");
    }

    /// Reads the running kernel's own types: the layout above is that of real files, too.
    #[test]
    fn this_kernel_names_its_netfilter_drop() {
        let Ok(btf) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("SKIPPED this_kernel_names_its_netfilter_drop: no kernel types here");
            return;
        };
        let reasons = Reasons::parse(&btf);
        if reasons.core.is_empty() {
            eprintln!("SKIPPED this_kernel_names_its_netfilter_drop: it gives no reasons");
            return;
        }
        assert!(
            reasons.core.values().any(|name| name == "NETFILTER_DROP"),
            "{reasons:?}"
        );
    }
}
