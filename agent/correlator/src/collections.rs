//! The maps that the state machine looks into on every event.
//!
//! Their hash is always the same and nothing iterates over them: no order can show, and a recording replays alike.

pub(crate) mod bounded;
pub(crate) mod bucket;
pub(crate) mod by_text;
pub(crate) mod mix;
pub(crate) mod recent;
