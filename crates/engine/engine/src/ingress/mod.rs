//! The ways in: connections to ports of a sandbox, which clients may use them, SSH keys and tokens.

mod access;
mod cache;
mod port;
mod ssh_key;
mod ssh_token;

pub use access::{Access, NewAccess, VerifiedAccess};
pub(crate) use cache::ShareLinks;
pub use port::{PortConnection, PortListener};
pub use ssh_token::{NewSshKey, NewSshToken, SshSeed};
