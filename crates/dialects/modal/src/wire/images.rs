//! Images.
//! Names and numbers are the protocol's, as the descriptors in the wheels of `modal` 1.5 and 1.6 have them. Members of
//! a `oneof` are optional fields here: on the wire that is the same. Enumerations are numbers.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::common::{GenericResult, ImageMetadata, TaskLogs};

use super::messages;

messages! {
    /// An image by the name that the Dockerfile calls it.
    BaseImage {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
        #[prost(string, tag = "2")] pub(crate) docker_tag: String,
    }
    /// A small file beside the Dockerfile.
    ImageContextFile {
        #[prost(string, tag = "1")] pub(crate) filename: String,
        #[prost(bytes = "bytes", tag = "2")] pub(crate) data: Bytes,
    }
    /// How to log in to a registry.
    ImageRegistryConfig {
        #[prost(int32, tag = "1")] pub(crate) registry_auth_type: i32,
        #[prost(string, tag = "2")] pub(crate) secret_id: String,
    }
    /// A recipe.
    Image {
        #[prost(message, repeated, tag = "5")] pub(crate) base_images: Vec<BaseImage>,
        #[prost(string, repeated, tag = "6")] pub(crate) dockerfile_commands: Vec<String>,
        #[prost(message, repeated, tag = "7")] pub(crate) context_files: Vec<ImageContextFile>,
        #[prost(string, repeated, tag = "12")] pub(crate) secret_ids: Vec<String>,
        #[prost(string, tag = "15")] pub(crate) context_mount_id: String,
        #[prost(message, optional, tag = "17")] pub(crate) image_registry_config: Option<ImageRegistryConfig>,
        #[prost(btree_map = "string, string", tag = "22")] pub(crate) build_args: BTreeMap<String, String>,
    }
    /// The image that a client wants.
    ImageGetOrCreateRequest {
        #[prost(message, optional, tag = "2")] pub(crate) image: Option<Image>,
        #[prost(string, tag = "4")] pub(crate) app_id: String,
        #[prost(string, tag = "5")] pub(crate) existing_image_id: String,
        #[prost(string, tag = "6")] pub(crate) build_function_id: String,
        #[prost(bool, tag = "7")] pub(crate) force_build: bool,
        #[prost(string, tag = "9")] pub(crate) builder_version: String,
        #[prost(bool, tag = "11")] pub(crate) ignore_cache: bool,
    }
    /// The image.
    ImageGetOrCreateResponse {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) result: Option<GenericResult>,
        #[prost(message, optional, tag = "3")] pub(crate) metadata: Option<ImageMetadata>,
    }
    /// The image whose build to follow.
    ImageJoinStreamingRequest {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
        #[prost(float, tag = "2")] pub(crate) timeout: f32,
        #[prost(string, tag = "3")] pub(crate) last_entry_id: String,
        #[prost(bool, tag = "4")] pub(crate) include_logs_for_finished: bool,
    }
    /// How it goes.
    ImageJoinStreamingResponse {
        #[prost(message, optional, tag = "1")] pub(crate) result: Option<GenericResult>,
        #[prost(message, repeated, tag = "2")] pub(crate) task_logs: Vec<TaskLogs>,
        #[prost(string, tag = "3")] pub(crate) entry_id: String,
        #[prost(bool, tag = "4")] pub(crate) eof: bool,
        #[prost(message, optional, tag = "5")] pub(crate) metadata: Option<ImageMetadata>,
    }
    /// Which image.
    ImageFromIdRequest {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
    }
    /// The image.
    ImageFromIdResponse {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) metadata: Option<ImageMetadata>,
    }
    /// Which image.
    ImageDeleteRequest {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
    }
}
