//! Messages that both services share.
//! Names and numbers are the protocol's, as the descriptors in the wheels of `modal` 1.5 and 1.6 have them. Members of
//! a `oneof` are optional fields here: on the wire that is the same. Enumerations are numbers.

use std::collections::BTreeMap;

use super::messages;

messages! {
    /// An empty message.
    Empty {
    }
    /// Texts by name.
    StringMap {
        #[prost(btree_map = "string, string", tag = "1")] pub(crate) contents: BTreeMap<String, String>,
    }
    /// How a command, build or sandbox ended.
    GenericResult {
        #[prost(int32, tag = "1")] pub(crate) status: i32,
        #[prost(string, tag = "2")] pub(crate) exception: String,
        #[prost(int32, tag = "3")] pub(crate) exitcode: i32,
    }
    /// Variables: of a secret that was made before, or as they are.
    SecretSource {
        #[prost(string, optional, tag = "1")] pub(crate) secret_id: Option<String>,
        #[prost(message, optional, tag = "2")] pub(crate) env: Option<StringMap>,
    }
    /// A terminal.
    PTYInfo {
        #[prost(bool, tag = "1")] pub(crate) enabled: bool,
        #[prost(uint32, tag = "2")] pub(crate) winsz_rows: u32,
        #[prost(uint32, tag = "3")] pub(crate) winsz_cols: u32,
        #[prost(string, tag = "4")] pub(crate) env_term: String,
        #[prost(string, tag = "5")] pub(crate) env_colorterm: String,
    }
    /// The hosts that a sandbox may reach.
    NetworkAccess {
        #[prost(int32, tag = "1")] pub(crate) network_access_type: i32,
        #[prost(string, repeated, tag = "2")] pub(crate) allowed_cidrs: Vec<String>,
        #[prost(string, repeated, tag = "3")] pub(crate) allowed_domains: Vec<String>,
    }
    /// A volume in a sandbox.
    VolumeMount {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(string, tag = "2")] pub(crate) mount_path: String,
        #[prost(bool, tag = "4")] pub(crate) read_only: bool,
        #[prost(string, optional, tag = "5")] pub(crate) sub_path: Option<String>,
    }
    /// A piece of a log.
    TaskLogs {
        #[prost(string, tag = "1")] pub(crate) data: String,
        #[prost(int32, tag = "8")] pub(crate) file_descriptor: i32,
        #[prost(double, tag = "7")] pub(crate) timestamp: f64,
    }
    /// What is known of an image.
    ImageMetadata {
        #[prost(string, optional, tag = "1")] pub(crate) python_version_info: Option<String>,
        #[prost(string, optional, tag = "3")] pub(crate) workdir: Option<String>,
        #[prost(string, optional, tag = "5")] pub(crate) image_builder_version: Option<String>,
    }
}
