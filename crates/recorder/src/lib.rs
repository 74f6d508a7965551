//! The flight recorder.
pub mod event;
pub mod limits;
