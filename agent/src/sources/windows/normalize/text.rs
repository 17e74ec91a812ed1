//! Texts of ETW events in the form that events of the model have.
//!
//! Used by the other modules of `normalize`. Does not: fail; a text that is too long is cut.

use sandglass_etw::Guid;
use sandglass_model::masking;

/// A GUID as model events carry it: lower case, no braces.
pub fn guid_text(guid: Guid) -> String {
    guid.to_string()
}

/// An id: a GUID as in [`guid_text`], any other text in lower case.
pub fn object_id(text: &str) -> String {
    match text.parse::<Guid>() {
        Ok(guid) => guid_text(guid),
        Err(_) => bounded(text).to_lowercase(),
    }
}

/// A message or field, masked before it is cut: a secret that was cut in two may look like none.
pub fn masked(text: &str) -> String {
    bounded(&masking::text(text))
}

/// The first [`MAX_TEXT`] bytes of a text, cut between characters.
pub fn bounded(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Bound on the bytes of a text.
const MAX_TEXT: usize = 1_024;
