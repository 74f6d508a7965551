//! Images and registries.

use std::collections::BTreeMap;

use atoll_core::secret::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ErrorBody;

/// Where an image of a cluster with an object store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImagePlace {
    /// On the node that answers, and as yet on no other.
    Here,
    /// On the node that answers, and every other can have it.
    Shared,
    /// Not on the node that answers: it comes when it is needed.
    Elsewhere,
}

/// An image that is ready to be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Digest of its manifest.
    pub digest: String,
    /// Names it goes by.
    pub names: Vec<String>,
    /// Unpacked size, bytes. Layers are shared between images.
    pub size_bytes: u64,
    /// Number of layers.
    pub layers: u32,
    /// Processor architecture.
    pub architecture: String,
    /// Default environment.
    pub env: BTreeMap<String, String>,
    /// Default user.
    pub user: Option<String>,
    /// Default working directory.
    pub workdir: Option<String>,
    /// Its entry point and command, for reference: a sandbox runs execs instead.
    pub command: Vec<String>,
    /// When it was made, as it says (RFC 3339).
    pub created: Option<String>,
    /// Where it is; absent where servers do not share images.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub place: Option<ImagePlace>,
}

/// All images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    /// The images.
    pub items: Vec<Image>,
}

/// User name and password for a registry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryCredentials {
    /// User name.
    pub username: String,
    /// Password or token. Never returned.
    #[schema(value_type = String, format = Password)]
    pub password: Secret,
}

impl Serialize for RegistryCredentials {
    /// For clients: the request that carries the password must carry it. No answer holds this type.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("RegistryCredentials", 2)?;
        out.serialize_field("username", &self.username)?;
        out.serialize_field("password", self.password.reveal())?;
        out.end()
    }
}

/// Pulls an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullImage {
    /// Reference, such as `docker.io/library/python:3.12`.
    pub reference: String,
    /// Credentials for this pull; the stored ones of the registry when absent.
    #[serde(default)]
    pub credentials: Option<RegistryCredentials>,
    /// `os/architecture`; the host's when absent.
    #[serde(default)]
    pub platform: Option<String>,
    /// Speak plain HTTP to this registry. Loopback registries may always.
    #[serde(default)]
    pub insecure_http: bool,
    /// Certificate authorities to trust for this registry besides the public ones, PEM.
    #[serde(default)]
    pub ca_pem: Option<String>,
}

/// What happens to a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerPhase {
    /// Coming from the registry.
    Download,
    /// Being unpacked.
    Unpack,
    /// Ready.
    Done,
}

/// One line of the progress stream (newline-delimited JSON). The last is `done` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageProgress {
    /// A layer moved on.
    Layer {
        /// Its digest.
        digest: String,
        /// What happens to it.
        phase: LayerPhase,
        /// Bytes done.
        done_bytes: u64,
        /// Bytes in all; 0 when not known.
        total_bytes: u64,
    },
    /// The image is ready.
    Done {
        /// The image.
        image: Image,
    },
    /// It failed.
    Error {
        /// Why.
        error: ErrorBody,
    },
}

/// What removing did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedImage {
    /// Whether the image itself is gone; otherwise only a name was taken off.
    pub removed: bool,
    /// Space freed, bytes.
    pub freed_bytes: u64,
}

/// What pruning did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PruneResult {
    /// Digests of removed images.
    pub removed: Vec<String>,
    /// Space freed, bytes.
    pub freed_bytes: u64,
}

/// A registry with stored credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegistryEntry {
    /// Host and port.
    pub host: String,
    /// User name. The password is never returned.
    pub username: String,
    /// When they were stored.
    pub updated_at_ms: u64,
}

/// All registries with stored credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegistryList {
    /// The registries.
    pub items: Vec<RegistryEntry>,
}
