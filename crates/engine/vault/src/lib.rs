//! Secrets at rest, and API keys.
//!
//! - [`Vault`] seals values with a key that lies in a file of its own beside the database: a thief of a copy of
//!   the database alone has no secret. AES-256-GCM with a random nonce for each value; the
//!   context (such as `registry:docker.io`) is authenticated with it, so that a sealed value
//!   cannot be moved to another row and be opened there. The key can be changed while the server runs, or
//!   come from outside (a variable, a key management service).
//! - [`ApiKey`] and [`AccessToken`] are texts that a client shows. Each is at least 160 random bits, so a plain hash of it is
//!   enough to store: there is nothing to guess that a slow hash would protect.
//!
//! The vault does not protect against a user who can read both files: root, and the user that the server runs as.

mod api_key;
mod foreign;
mod key_file;
mod vault;

pub use api_key::{AccessToken, ApiKey, HASH_BYTES, InvalidApiKey};
pub use vault::{Vault, VaultError};
