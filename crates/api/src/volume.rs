//! Volumes.

use atoll_core::volume::{VolumeDraft, VolumeState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Makes a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name: 1 to 63 letters, digits, `-` and `_`.
    pub name: String,
    /// Its size; 10 GiB when absent. A copy has the size of its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Name or id of a volume: begins with what that holds at this moment, while it is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// With `from`: it is a snapshot, which cannot be written to.
    #[serde(default)]
    pub read_only: bool,
}

impl From<CreateVolume> for VolumeDraft {
    fn from(request: CreateVolume) -> Self {
        Self {
            name: request.name,
            size_bytes: request.size_bytes,
            from: request.from,
            read_only: request.read_only,
        }
    }
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Its size.
    pub size_bytes: u64,
    /// It cannot be written to.
    pub read_only: bool,
    /// Name of the volume it was copied from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Space for files, as sandboxes see it. In listings absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Used of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// What it takes on the host; shared with copies and counted in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Ids of the sandboxes that have it.
    pub used_by: Vec<String>,
    /// Id of the key that made it.
    pub owner: Option<String>,
    /// When it was made.
    pub created_at_ms: u64,
}

/// All volumes, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes.
    pub items: Vec<Volume>,
}
