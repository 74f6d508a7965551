//! Files of a sandbox, over HTTP.

mod download;
mod form;
#[cfg(test)]
mod fuzz;
mod range;

pub use download::{SendError, send};
pub use form::{Form, Part};
pub use range::{Wanted, wanted};
