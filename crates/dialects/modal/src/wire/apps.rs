//! Apps, environments, secrets, volumes and files of the client.
//! Names and numbers are the protocol's, as the descriptors in the wheels of `modal` 1.5 and 1.6 have them. Members of
//! a `oneof` are optional fields here: on the wire that is the same. Enumerations are numbers.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::messages;

messages! {
    /// The server's first answer.
    ClientHelloResponse {
        #[prost(string, tag = "1")] pub(crate) warning: String,
        #[prost(string, tag = "2")] pub(crate) image_builder_version: String,
    }
    /// A token for calls that want one beside the key.
    AuthTokenGetResponse {
        #[prost(string, tag = "1")] pub(crate) token: String,
    }
    /// Which app.
    AppGetOrCreateRequest {
        #[prost(string, tag = "1")] pub(crate) app_name: String,
        #[prost(string, tag = "2")] pub(crate) environment_name: String,
        #[prost(int32, tag = "3")] pub(crate) object_creation_type: i32,
    }
    /// What is known of an app.
    AppHandleMetadata {
        #[prost(string, tag = "1")] pub(crate) description: String,
        #[prost(string, tag = "2")] pub(crate) app_id: String,
        #[prost(string, tag = "3")] pub(crate) environment_name: String,
    }
    /// The app.
    AppGetOrCreateResponse {
        #[prost(string, tag = "1")] pub(crate) app_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) handle_metadata: Option<AppHandleMetadata>,
    }
    /// An app without a name of its own.
    AppCreateRequest {
        #[prost(string, tag = "2")] pub(crate) description: String,
        #[prost(string, tag = "5")] pub(crate) environment_name: String,
    }
    /// The app.
    AppCreateResponse {
        #[prost(string, tag = "1")] pub(crate) app_id: String,
    }
    /// Which environment.
    EnvironmentGetOrCreateRequest {
        #[prost(string, tag = "1")] pub(crate) deployment_name: String,
    }
    /// How images are built there.
    EnvironmentSettings {
        #[prost(string, tag = "1")] pub(crate) image_builder_version: String,
    }
    /// What is known of it.
    EnvironmentMetadata {
        #[prost(string, tag = "1")] pub(crate) name: String,
        #[prost(message, optional, tag = "2")] pub(crate) settings: Option<EnvironmentSettings>,
    }
    /// The environment.
    EnvironmentGetOrCreateResponse {
        #[prost(string, tag = "1")] pub(crate) environment_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) metadata: Option<EnvironmentMetadata>,
    }
    /// A secret: by name, or with its values.
    SecretGetOrCreateRequest {
        #[prost(string, tag = "1")] pub(crate) deployment_name: String,
        #[prost(int32, tag = "4")] pub(crate) object_creation_type: i32,
        #[prost(btree_map = "string, string", tag = "5")] pub(crate) env_dict: BTreeMap<String, String>,
        #[prost(string, repeated, tag = "7")] pub(crate) required_keys: Vec<String>,
    }
    /// The part of a secret that clients may know: by its keys they find out which kind of login it is.
    SecretMetadata {
        #[prost(string, tag = "1")] pub(crate) name: String,
        #[prost(string, repeated, tag = "3")] pub(crate) keys: Vec<String>,
    }
    /// The secret.
    SecretGetOrCreateResponse {
        #[prost(string, tag = "1")] pub(crate) secret_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) metadata: Option<SecretMetadata>,
    }
    /// A volume.
    VolumeGetOrCreateRequest {
        #[prost(string, tag = "1")] pub(crate) deployment_name: String,
        #[prost(int32, tag = "4")] pub(crate) object_creation_type: i32,
        #[prost(int32, tag = "6")] pub(crate) version: i32,
    }
    /// When something was made.
    CreationInfo {
        #[prost(double, tag = "1")] pub(crate) created_at: f64,
    }
    /// What is known of it.
    VolumeMetadata {
        #[prost(int32, tag = "1")] pub(crate) version: i32,
        #[prost(string, tag = "2")] pub(crate) name: String,
        #[prost(message, optional, tag = "3")] pub(crate) creation_info: Option<CreationInfo>,
    }
    /// The volume.
    VolumeGetOrCreateResponse {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(int32, tag = "2")] pub(crate) version: i32,
        #[prost(message, optional, tag = "3")] pub(crate) metadata: Option<VolumeMetadata>,
    }
    /// Which volume.
    VolumeDeleteRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
    }
    /// Which volume.
    VolumeCommitRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
    }
    /// Tells the client whether to reload.
    VolumeCommitResponse {
        #[prost(bool, tag = "1")] pub(crate) skip_reload: bool,
    }
    /// Which volume.
    VolumeReloadRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
    }
    /// A file of the client, by its content.
    MountFile {
        #[prost(string, tag = "1")] pub(crate) filename: String,
        #[prost(string, tag = "3")] pub(crate) sha256_hex: String,
        #[prost(uint64, optional, tag = "4")] pub(crate) size: Option<u64>,
        #[prost(uint32, optional, tag = "5")] pub(crate) mode: Option<u32>,
    }
    /// Files to be put into sandboxes.
    MountGetOrCreateRequest {
        #[prost(string, tag = "1")] pub(crate) deployment_name: String,
        #[prost(message, repeated, tag = "5")] pub(crate) files: Vec<MountFile>,
        #[prost(int32, tag = "4")] pub(crate) object_creation_type: i32,
    }
    /// What is known of them.
    MountHandleMetadata {
        #[prost(string, tag = "1")] pub(crate) content_checksum_sha256_hex: String,
    }
    /// The files.
    MountGetOrCreateResponse {
        #[prost(string, tag = "1")] pub(crate) mount_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) handle_metadata: Option<MountHandleMetadata>,
    }
    /// The content of one; without any, the question whether it is there.
    MountPutFileRequest {
        #[prost(string, tag = "2")] pub(crate) sha256_hex: String,
        #[prost(bytes = "bytes", optional, tag = "3")] pub(crate) data: Option<Bytes>,
        #[prost(string, optional, tag = "5")] pub(crate) data_blob_id: Option<String>,
    }
    /// Whether it is there.
    MountPutFileResponse {
        #[prost(bool, tag = "2")] pub(crate) exists: bool,
    }
    /// Which contents are there?
    MountBatchedCheckExistenceRequest {
        #[prost(string, repeated, tag = "1")] pub(crate) sha256_hex_hashes: Vec<String>,
    }
    /// Those that are not.
    MountBatchedCheckExistenceResponse {
        #[prost(string, repeated, tag = "1")] pub(crate) missing_sha256_hex_hashes: Vec<String>,
    }
}
