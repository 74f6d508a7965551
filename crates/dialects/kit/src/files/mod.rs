//! Files of a sandbox, over HTTP.

mod download;
mod form;
#[cfg(test)]
mod fuzz;
mod mode;

pub use download::{SendError, send};
pub use form::{Form, Part};
pub use mode::permissions;
