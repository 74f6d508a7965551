//! Who may use a sandbox, and who has it for itself.

use atoll_core::sharing::{Role, Visibility};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A role that a key has on a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// Id of the key.
    pub key: String,
    /// The most it may do with the sandbox, if its scope goes as far.
    pub role: Role,
}

/// Who may use a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxAccess {
    /// Id of the key that made it: may do everything that its scope allows.
    pub owner: Option<String>,
    /// Whether keys without a grant see it.
    pub visibility: Visibility,
    /// Whether that is the server's default.
    pub is_default: bool,
    /// Roles by key.
    pub grants: Vec<Grant>,
}

/// Sets whether keys without a grant see a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetVisibility {
    /// `null` leaves it to the server's default.
    pub visibility: Option<Visibility>,
}

/// Gives a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutGrant {
    /// The most it may do with the sandbox.
    pub role: Role,
}

/// Asks for exclusive use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeLease {
    /// It ends by itself this long from now; at most a day.
    pub ttl_ms: u64,
    /// The name that others are shown: 1 to 128 bytes. The key's id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

/// Exclusive use of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Id of the key that took it.
    pub key: String,
    /// The name it was taken under.
    pub holder: String,
    /// When it was taken.
    pub taken_at_ms: u64,
    /// When it ends by itself.
    pub expires_at_ms: u64,
}

/// Who has a sandbox for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseStatus {
    /// Absent when no key has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}
