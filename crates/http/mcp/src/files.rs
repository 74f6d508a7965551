//! Files: `read_file`, `write_file`, `list_files`.

use atoll_client::{Client, ClientError, WriteFile};
use atoll_core::Code;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;

use crate::error::{Result, ToolError};
use crate::run::name;
use crate::session::Session;
use crate::types::{
    Encoding, FileContent, FileInfo, FileWritten, Files, ListFilesParams, ReadFileParams, WriteFileParams,
};

/// Bytes of one answer of `read_file` unless told otherwise, and at most.
const READ_BYTES: u32 = 64 << 10;
pub(crate) const READ_MAX_BYTES: u32 = 256 << 10;
/// Entries of one answer of `list_files` unless told otherwise, and at most.
const LIST_COUNT: u32 = 200;
const LIST_MAX_COUNT: u32 = 1000;
const DEPTH_MAX: u32 = 10;

/// Up to `max` bytes of a file from `offset` on, and whether there are more.
pub(crate) async fn piece(
    client: &Client,
    sandbox: &str,
    path: &str,
    offset: u64,
    max: usize,
) -> std::result::Result<(Vec<u8>, bool), ClientError> {
    // One byte more than is shown tells whether there is more. An empty file has no ranges.
    let range = (offset > 0).then(|| (offset, Some(offset.saturating_add(max as u64))));
    let mut download = client.read_file(sandbox, path, range).await?;
    let mut content = Vec::new();
    while content.len() <= max {
        match download.next().await {
            Some(bytes) => content.extend_from_slice(&bytes?),
            None => return Ok((content, false)),
        }
    }
    content.truncate(max);
    Ok((content, true))
}

/// Content as text where it is text. A character that is cut by the end of the piece is left for the next one.
pub(crate) fn encode(mut content: Vec<u8>, more: bool) -> (String, Encoding, usize) {
    if more
        && let Err(error) = std::str::from_utf8(&content)
        && error.error_len().is_none()
        && error.valid_up_to() > 0
    {
        content.truncate(error.valid_up_to());
    }
    let len = content.len();
    match String::from_utf8(content) {
        Ok(text) => (text, Encoding::Utf8, len),
        Err(error) => (BASE64.encode(error.as_bytes()), Encoding::Base64, len),
    }
}

/// Reads a piece of a file.
pub(crate) async fn read(session: &Session, params: ReadFileParams) -> Result<FileContent> {
    let sandbox = session.sandbox(params.sandbox.as_deref()).await?;
    let max = params.max_bytes.unwrap_or(READ_BYTES).clamp(4, READ_MAX_BYTES) as usize;
    let (content, more) = match piece(&session.client, &sandbox, &params.path, params.offset, max).await {
        Ok(piece) => piece,
        Err(error) => return Err(session.explain(&sandbox, error).await),
    };
    let (content, encoding, len) = encode(content, more);
    let next_offset = more.then(|| params.offset.saturating_add(len as u64));
    Ok(FileContent { path: params.path, content, encoding, next_offset })
}

/// Writes a whole file.
pub(crate) async fn write(session: &Session, params: WriteFileParams) -> Result<FileWritten> {
    let content = match params.encoding {
        Encoding::Utf8 => Bytes::from(params.content),
        Encoding::Base64 => match BASE64.decode(params.content.as_bytes()) {
            Ok(content) => Bytes::from(content),
            Err(error) => {
                return Err(ToolError::new(
                    Code::InvalidArgument,
                    format!("content: it is no base64: {error}"),
                    "leave 'encoding' out to write text",
                ));
            }
        },
    };
    let sandbox = session.sandbox(params.sandbox.as_deref()).await?;
    let write = WriteFile { mode: params.mode, user: None, parents: true };
    let body = futures::stream::iter([Ok(content)]);
    match session.client.write_file(&sandbox, &params.path, &write, body).await {
        Ok(written) => Ok(FileWritten { path: params.path, bytes: written.bytes }),
        Err(error) => Err(session.explain(&sandbox, error).await),
    }
}

/// Lists a directory.
pub(crate) async fn list(session: &Session, params: ListFilesParams) -> Result<Files> {
    let sandbox = session.sandbox(params.sandbox.as_deref()).await?;
    let depth = params.depth.unwrap_or(1).clamp(1, DEPTH_MAX);
    let limit = params.limit.unwrap_or(LIST_COUNT).clamp(1, LIST_MAX_COUNT);
    let list = match session.client.list_files(&sandbox, &params.path, Some(depth), Some(limit)).await {
        Ok(list) => list,
        Err(error) => return Err(session.explain(&sandbox, error).await),
    };
    let truncated = list.truncated || list.items.len() > limit as usize;
    let entries = list.items.into_iter().take(limit as usize).map(|entry| FileInfo {
        kind: name(&entry.kind),
        path: entry.path,
        bytes: entry.size_bytes,
        mode: entry.mode,
        target: entry.target,
    });
    Ok(Files { entries: entries.collect(), truncated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_character_is_left() {
        assert_eq!(encode("aé".as_bytes()[..2].to_vec(), true), ("a".to_owned(), Encoding::Utf8, 1));
        assert_eq!(encode("aé".as_bytes().to_vec(), true), ("aé".to_owned(), Encoding::Utf8, 3));
        assert_eq!(encode(vec![0xff, b'a'], true), ("/2E=".to_owned(), Encoding::Base64, 2));
        // At the end of the file nothing is left for later.
        assert_eq!(encode("aé".as_bytes()[..2].to_vec(), false).1, Encoding::Base64);
    }
}
