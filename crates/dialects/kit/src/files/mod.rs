//! Files of a sandbox, over HTTP.

mod download;
mod form;
#[cfg(test)]
mod fuzz;

pub use download::{SendError, send};
pub use form::{Form, Part};
