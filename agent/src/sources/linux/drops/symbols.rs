//! The kernel function that an address lies in, from `/proc/kallsyms` where the agent may read it.
//!
//! Used by `drops`. Few functions drop packets, so each address is searched once, in one pass over the file, and cached.
//! Does not: hold the file in memory. Where addresses are hidden (kptr_restrict) every name is empty.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// The cache.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Names by address, at most [`KNOWN_MAX`]. An address without a name has an empty one, so that it is not searched again.
    known: HashMap<u64, String>,
}

impl Symbols {
    /// The function that contains a code address; empty when it is not known. The first question for an address reads
    /// `/proc/kallsyms` once, some 200,000 lines; every further one is a lookup in the cache.
    pub fn function(&mut self, address: u64) -> String {
        if address == 0 {
            return String::new();
        }
        if let Some(name) = self.known.get(&address) {
            return name.clone();
        }
        // A kernel has far fewer places that drop packets: addresses above the bound are not searched.
        if self.known.len() >= KNOWN_MAX {
            return String::new();
        }
        let name = File::open("/proc/kallsyms")
            .ok()
            .and_then(|file| nearest(BufReader::with_capacity(1 << 16, file), address))
            .unwrap_or_default();
        self.known.insert(address, name.clone());
        name
    }
}

/// The last function at or before the address. Lines: `ffffffff81000000 T _stext`, perhaps with `[module]` behind.
fn nearest(mut lines: impl BufRead, address: u64) -> Option<String> {
    let mut best: Option<(u64, String)> = None;
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).ok()? == 0 {
            break;
        }
        let mut fields = line.split_ascii_whitespace();
        let (Some(start), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let Ok(start) = u64::from_str_radix(start, 16) else {
            continue;
        };
        // The letters of nm(1): code of this file or of all, and weak symbols. Where kptr_restrict hides the addresses, every
        // line has address 0 (kernel/kallsyms.c, s_show, as in Linux 6.12).
        let is_code = matches!(kind, "t" | "T" | "w" | "W");
        let is_nearer = start <= address && best.as_ref().is_none_or(|(nearest, _)| *nearest < start);
        if is_code && start != 0 && is_nearer {
            best = Some((start, name.to_owned()));
        }
    }
    let (start, name) = best?;
    // The compiler's parts of a function (`.part.0`, `.cold`) are that function to a reader.
    let name = name.split('.').next().unwrap_or_default();
    (address - start < FUNCTION_MAX).then(|| name.to_owned())
}

/// Most addresses in the cache.
const KNOWN_MAX: usize = 256;
/// No function is so long: an address this far behind one lies in none.
const FUNCTION_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "ffffffff81000000 T _stext\nffffffff81000100 t nf_hook_slow.part.0\nffffffff81000180 d some_data\n\
                         ffffffffa0000000 t drop_it\t[module]\nbroken\n0000000000000000 T hidden\n";

    /// Data symbols and broken lines are passed over, and an address far behind the last function lies in none.
    #[test]
    fn the_function_before_an_address_is_found() {
        for (address, name) in [
            (0xffff_ffff_8100_0000, Some("_stext")),
            (0xffff_ffff_8100_0190, Some("nf_hook_slow")),
            (0xffff_ffff_a000_0010, Some("drop_it")),
            (0xffff_ffff_8000_0000, None),
            (0xffff_ffff_b000_0000, None),
        ] {
            assert_eq!(nearest(LINES.as_bytes(), address).as_deref(), name, "{address:x}");
        }
    }

    #[test]
    fn hidden_addresses_give_no_name() {
        assert_eq!(
            nearest("0000000000000000 T a\n".as_bytes(), 0xffff_ffff_8100_0000),
            None
        );
        assert_eq!(Symbols::default().function(0), "");
    }
}
