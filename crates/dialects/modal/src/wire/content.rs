//! Files of volumes, and contents that travel beside the calls.
//! Names and numbers are the protocol's, as the descriptors in the wheels of `modal` 1.5 and 1.6 have them; nested messages have the
//! names of both. Members of a `oneof` are optional fields here: on the wire that is the same. Enumerations are numbers.

use super::apps::{MountFile, VolumeMetadata};
use super::messages;

messages! {
    /// A content is announced.
    BlobCreateRequest {
        #[prost(string, tag = "1")] pub(crate) content_md5: String,
        #[prost(string, tag = "2")] pub(crate) content_sha256_base64: String,
        #[prost(int64, tag = "3")] pub(crate) content_length: i64,
    }
    /// Addresses.
    UploadUrlList {
        #[prost(string, repeated, tag = "1")] pub(crate) items: Vec<String>,
    }
    /// Where to send it.
    BlobCreateResponse {
        #[prost(string, tag = "2")] pub(crate) blob_id: String,
        #[prost(string, optional, tag = "1")] pub(crate) upload_url: Option<String>,
        #[prost(string, repeated, tag = "4")] pub(crate) blob_ids: Vec<String>,
        #[prost(message, optional, tag = "5")] pub(crate) upload_urls: Option<UploadUrlList>,
    }
    /// Asks for the entries of a directory in a volume.
    VolumeListFilesRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(string, tag = "2")] pub(crate) path: String,
        #[prost(uint32, optional, tag = "3")] pub(crate) max_entries: Option<u32>,
        #[prost(bool, tag = "4")] pub(crate) recursive: bool,
    }
    /// A file or directory.
    FileEntry {
        #[prost(string, tag = "1")] pub(crate) path: String,
        #[prost(int32, tag = "2")] pub(crate) r#type: i32,
        #[prost(uint64, tag = "3")] pub(crate) mtime: u64,
        #[prost(uint64, tag = "4")] pub(crate) size: u64,
    }
    /// Some of them.
    VolumeListFilesResponse {
        #[prost(message, repeated, tag = "1")] pub(crate) entries: Vec<FileEntry>,
    }
    /// Part of a file of a volume.
    VolumeGetFile2Request {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(string, tag = "2")] pub(crate) path: String,
        #[prost(uint64, tag = "3")] pub(crate) start: u64,
        #[prost(uint64, tag = "4")] pub(crate) len: u64,
    }
    /// Where its blocks are.
    VolumeGetFile2Response {
        #[prost(string, repeated, tag = "1")] pub(crate) get_urls: Vec<String>,
        #[prost(uint64, tag = "2")] pub(crate) size: u64,
        #[prost(uint64, tag = "3")] pub(crate) start: u64,
        #[prost(uint64, tag = "4")] pub(crate) len: u64,
    }
    /// What to remove.
    VolumeRemoveFileRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(string, tag = "2")] pub(crate) path: String,
        #[prost(bool, tag = "3")] pub(crate) recursive: bool,
    }
    /// What to copy.
    VolumeCopyFilesRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(string, repeated, tag = "2")] pub(crate) src_paths: Vec<String>,
        #[prost(string, tag = "3")] pub(crate) dst_path: String,
        #[prost(bool, tag = "4")] pub(crate) recursive: bool,
    }
    /// Files whose contents were sent.
    VolumePutFilesRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(message, repeated, tag = "2")] pub(crate) files: Vec<MountFile>,
        #[prost(bool, tag = "3")] pub(crate) disallow_overwrite_existing_files: bool,
    }
    /// A block of a file, by its hash.
    VolumePutFiles2RequestBlock {
        #[prost(bytes = "vec", tag = "1")] pub(crate) contents_sha256: Vec<u8>,
    }
    /// A file in blocks.
    VolumePutFiles2RequestFile {
        #[prost(string, tag = "1")] pub(crate) path: String,
        #[prost(uint64, tag = "2")] pub(crate) size: u64,
        #[prost(message, repeated, tag = "3")] pub(crate) blocks: Vec<VolumePutFiles2RequestBlock>,
        #[prost(uint32, optional, tag = "4")] pub(crate) mode: Option<u32>,
    }
    /// Files in blocks.
    VolumePutFiles2Request {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(message, repeated, tag = "2")] pub(crate) files: Vec<VolumePutFiles2RequestFile>,
        #[prost(bool, tag = "3")] pub(crate) disallow_overwrite_existing_files: bool,
    }
    /// One that was not sent yet.
    VolumePutFiles2ResponseMissingBlock {
        #[prost(uint64, tag = "1")] pub(crate) file_index: u64,
        #[prost(uint64, tag = "2")] pub(crate) block_index: u64,
        #[prost(string, tag = "3")] pub(crate) put_url: String,
    }
    /// Those of all files.
    VolumePutFiles2Response {
        #[prost(message, repeated, tag = "1")] pub(crate) missing_blocks: Vec<VolumePutFiles2ResponseMissingBlock>,
    }
    /// Which page of a list.
    ListPagination {
        #[prost(int32, tag = "1")] pub(crate) max_objects: i32,
        #[prost(double, tag = "2")] pub(crate) created_before: f64,
    }
    /// Which volumes are there?
    VolumeListRequest {
        #[prost(message, optional, tag = "2")] pub(crate) pagination: Option<ListPagination>,
    }
    /// One of them.
    VolumeListItem {
        #[prost(string, tag = "1")] pub(crate) label: String,
        #[prost(string, tag = "2")] pub(crate) volume_id: String,
        #[prost(double, tag = "3")] pub(crate) created_at: f64,
        #[prost(message, optional, tag = "4")] pub(crate) metadata: Option<VolumeMetadata>,
    }
    /// All of them, newest first.
    VolumeListResponse {
        #[prost(message, repeated, tag = "1")] pub(crate) items: Vec<VolumeListItem>,
    }
    /// Which volume.
    VolumeGetByIdRequest {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
    }
    /// What is known of it.
    VolumeGetByIdResponse {
        #[prost(string, tag = "1")] pub(crate) volume_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) metadata: Option<VolumeMetadata>,
    }
}
