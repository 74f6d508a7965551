//! SSH.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where SSH clients connect. The login name is the sandbox, or `SANDBOX+USER`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SshInfo {
    /// The public host key, as it stands in `known_hosts` without names.
    pub host_key: String,
    /// A name for this server that does not change with its address.
    pub host_key_alias: String,
}

/// Registers an SSH public key for the API key of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSshKey {
    /// What it is for, for people.
    pub name: String,
    /// The line of a file such as `~/.ssh/id_ed25519.pub`.
    pub public_key: String,
    /// It stops working this long from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// An SSH public key. Who logs in with it may do what its API key may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SshKey {
    /// Its id.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// Kind and key, as in `authorized_keys`.
    pub public_key: String,
    /// As SSH programs show it.
    pub fingerprint: String,
    /// Id of the API key it stands for.
    pub owner: String,
    /// When it was registered.
    pub created_at_ms: u64,
    /// When it stops working.
    pub expires_at_ms: Option<u64>,
}

/// SSH keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SshKeyList {
    /// The oldest first.
    pub items: Vec<SshKey>,
}
