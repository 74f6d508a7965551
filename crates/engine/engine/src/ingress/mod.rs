//! The ways in: connections to ports of a sandbox, who may use them, and SSH keys.

mod access;
mod cache;
mod port;
mod ssh_key;

pub use access::{Access, NewAccess, VerifiedAccess};
pub(crate) use cache::ShareLinks;
pub use port::{PortConnection, PortListener};
