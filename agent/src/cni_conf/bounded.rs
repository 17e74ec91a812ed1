//! The bound on every text that is kept of a configuration file.
//!
//! Used by `network` and `plugins`. A name or type may be as long as the file (1 MiB), and findings and labels repeat it.
//! A leaf.

/// The first 256 bytes of `text` at most, cut between two characters.
pub(super) fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

const MAX_TEXT: usize = 256;
