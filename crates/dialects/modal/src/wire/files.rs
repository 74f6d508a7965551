//! Files, for clients before 1.6.
//! Names and numbers are the protocol's, as the descriptors in the wheels of `modal` 1.5 and 1.6 have them. Members of
//! a `oneof` are optional fields here: on the wire that is the same. Enumerations are numbers.

use bytes::Bytes;

use super::messages;

messages! {
    /// Opens a file.
    ContainerFileOpenRequest {
        #[prost(string, optional, tag = "1")] pub(crate) file_descriptor: Option<String>,
        #[prost(string, tag = "2")] pub(crate) path: String,
        #[prost(string, tag = "3")] pub(crate) mode: String,
    }
    /// Writes at the file's position.
    ContainerFileWriteRequest {
        #[prost(string, tag = "1")] pub(crate) file_descriptor: String,
        #[prost(bytes = "bytes", tag = "2")] pub(crate) data: Bytes,
    }
    /// Reads from the file's position.
    ContainerFileReadRequest {
        #[prost(string, tag = "1")] pub(crate) file_descriptor: String,
        #[prost(uint32, optional, tag = "2")] pub(crate) n: Option<u32>,
    }
    /// Writes the bytes that were kept back.
    ContainerFileFlushRequest {
        #[prost(string, tag = "1")] pub(crate) file_descriptor: String,
    }
    /// Reads to the end of the line.
    ContainerFileReadLineRequest {
        #[prost(string, tag = "1")] pub(crate) file_descriptor: String,
    }
    /// Moves the file's position.
    ContainerFileSeekRequest {
        #[prost(string, tag = "1")] pub(crate) file_descriptor: String,
        #[prost(int32, tag = "2")] pub(crate) offset: i32,
        #[prost(int32, tag = "3")] pub(crate) whence: i32,
    }
    /// Closes it.
    ContainerFileCloseRequest {
        #[prost(string, tag = "1")] pub(crate) file_descriptor: String,
    }
    /// Names in a directory.
    ContainerFileLsRequest {
        #[prost(string, tag = "1")] pub(crate) path: String,
    }
    /// Makes a directory.
    ContainerFileMkdirRequest {
        #[prost(string, tag = "1")] pub(crate) path: String,
        #[prost(bool, tag = "2")] pub(crate) make_parents: bool,
    }
    /// Removes a file or directory.
    ContainerFileRmRequest {
        #[prost(string, tag = "1")] pub(crate) path: String,
        #[prost(bool, tag = "2")] pub(crate) recursive: bool,
    }
    /// Watches a file or directory.
    ContainerFileWatchRequest {
        #[prost(string, tag = "1")] pub(crate) path: String,
        #[prost(bool, tag = "2")] pub(crate) recursive: bool,
        #[prost(uint64, optional, tag = "3")] pub(crate) timeout_secs: Option<u64>,
    }
    /// One operation.
    ContainerFilesystemExecRequest {
        #[prost(message, optional, tag = "1")] pub(crate) file_open_request: Option<ContainerFileOpenRequest>,
        #[prost(message, optional, tag = "2")] pub(crate) file_write_request: Option<ContainerFileWriteRequest>,
        #[prost(message, optional, tag = "3")] pub(crate) file_read_request: Option<ContainerFileReadRequest>,
        #[prost(message, optional, tag = "4")] pub(crate) file_flush_request: Option<ContainerFileFlushRequest>,
        #[prost(message, optional, tag = "5")] pub(crate) file_read_line_request: Option<ContainerFileReadLineRequest>,
        #[prost(message, optional, tag = "6")] pub(crate) file_seek_request: Option<ContainerFileSeekRequest>,
        #[prost(message, optional, tag = "9")] pub(crate) file_close_request: Option<ContainerFileCloseRequest>,
        #[prost(message, optional, tag = "11")] pub(crate) file_ls_request: Option<ContainerFileLsRequest>,
        #[prost(message, optional, tag = "12")] pub(crate) file_mkdir_request: Option<ContainerFileMkdirRequest>,
        #[prost(message, optional, tag = "13")] pub(crate) file_rm_request: Option<ContainerFileRmRequest>,
        #[prost(message, optional, tag = "14")] pub(crate) file_watch_request: Option<ContainerFileWatchRequest>,
        #[prost(string, tag = "10")] pub(crate) task_id: String,
    }
    /// The id under which the client fetches the output.
    ContainerFilesystemExecResponse {
        #[prost(string, tag = "1")] pub(crate) exec_id: String,
        #[prost(string, optional, tag = "2")] pub(crate) file_descriptor: Option<String>,
    }
    /// The output that the client fetches.
    ContainerFilesystemExecGetOutputRequest {
        #[prost(string, tag = "1")] pub(crate) exec_id: String,
        #[prost(float, tag = "2")] pub(crate) timeout: f32,
    }
    /// The error of an operation.
    SystemErrorMessage {
        #[prost(int32, tag = "1")] pub(crate) error_code: i32,
        #[prost(string, tag = "2")] pub(crate) error_message: String,
    }
    /// A piece of output.
    FilesystemRuntimeOutputBatch {
        #[prost(bytes = "bytes", repeated, tag = "1")] pub(crate) output: Vec<Bytes>,
        #[prost(message, optional, tag = "2")] pub(crate) error: Option<SystemErrorMessage>,
        #[prost(uint64, tag = "3")] pub(crate) batch_index: u64,
        #[prost(bool, tag = "4")] pub(crate) eof: bool,
    }
}
