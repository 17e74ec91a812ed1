//! The demo.
pub mod image;
pub mod networks;
pub mod rig;
pub mod scenarios;
