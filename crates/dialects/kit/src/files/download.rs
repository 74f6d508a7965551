//! An answer with a file, or a part of it, if it changed.
//!
//! Files that the kernel makes up (`/proc`, `/sys`) have another size than their content. So a file that says it is
//! small is read before the answer begins: the answer tells the size that the content really has.

use atoll_core::{Code, Error};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::client::FileReader;
use atoll_guest_protocol::messages::{FileInfo, FileKind, Read as ReadFile, Stat};
use atoll_server::dialect::{Source, body};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LAST_MODIFIED,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::range::{Wanted, wanted};
use crate::time;

/// Files that say they are at most this large are read before the answer begins, bytes.
const READ_AHEAD_BYTES: u64 = 64 << 10;

/// Why there is no answer with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendError {
    /// It cannot be read.
    Engine(Error),
    /// The range lies outside the file, which has this many bytes: 416, with `Content-Range: bytes */SIZE`.
    Range(u64),
}

impl From<Error> for SendError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// Answers a `GET` or `HEAD` with the file at an absolute path. Takes one `Range`, `If-Range` and `If-None-Match`.
///
/// # Errors
/// What reading gives; [`Code::IsADirectory`]; a range outside the file.
pub async fn send(
    lease: GuestLease,
    path: String,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, SendError> {
    let stat = Stat { path: path.clone(), no_follow: false };
    let info = lease.stat(stat).await.map_err(guest_error)?;
    if info.kind() == FileKind::Directory {
        return Err(Error::new(Code::IsADirectory, format!("'{path}' is a directory")).into());
    }
    let answer = describe(&info);
    if headers.get(IF_NONE_MATCH).is_some_and(|known| Some(known) == answer.get(ETAG)) {
        return Ok((StatusCode::NOT_MODIFIED, answer).into_response());
    }
    if info.size > READ_AHEAD_BYTES {
        return stream(lease, path, info, answer, method, headers).await;
    }
    let mut reader = lease.read(ReadFile { path, offset: 0, length: 0 }).await.map_err(guest_error)?;
    let (content, ended) = read_ahead(&mut reader).await?;
    if ended {
        return small(content, &info, answer, method, headers);
    }
    // The file is larger than it said, and its real size is unknown: the answer holds all of it and ignores the range.
    if *method == Method::HEAD {
        return Ok((StatusCode::OK, answer).into_response());
    }
    Ok((StatusCode::OK, answer, body(lease, Source::File(reader), Some(content), None)).into_response())
}

/// Reads until the end, or until it is more than a small file. Says whether it ended.
async fn read_ahead(reader: &mut FileReader) -> Result<(Bytes, bool), Error> {
    let mut content = BytesMut::new();
    while content.len() as u64 <= READ_AHEAD_BYTES {
        match reader.next().await.map_err(guest_error)? {
            Some(piece) => content.extend_from_slice(&piece),
            None => return Ok((content.freeze(), true)),
        }
    }
    Ok((content.freeze(), false))
}

/// The answer with a file whose content was read already.
fn small(
    content: Bytes,
    info: &FileInfo,
    mut answer: HeaderMap,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, SendError> {
    let size = content.len() as u64;
    let (status, content) = match wanted(headers, size, &tag(info)) {
        Wanted::All => (StatusCode::OK, content),
        Wanted::Nothing => return Err(SendError::Range(size)),
        Wanted::Part(first, last) => {
            answer.insert(CONTENT_RANGE, header(format!("bytes {first}-{last}/{size}")));
            let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(content.len());
            (StatusCode::PARTIAL_CONTENT, content.slice(at(first)..at(last + 1)))
        }
    };
    answer.insert(CONTENT_LENGTH, content.len().into());
    let body = if *method == Method::HEAD { Body::empty() } else { Body::from(content) };
    Ok((status, answer, body).into_response())
}

/// The answer with a file that is sent while it is read.
async fn stream(
    lease: GuestLease,
    path: String,
    info: FileInfo,
    mut answer: HeaderMap,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, SendError> {
    let mut request = ReadFile { path, offset: 0, length: 0 };
    let (mut status, mut length) = (StatusCode::OK, info.size);
    match wanted(headers, info.size, &tag(&info)) {
        Wanted::All => {}
        Wanted::Nothing => return Err(SendError::Range(info.size)),
        Wanted::Part(first, last) => {
            (request.offset, request.length) = (first, last - first + 1);
            (status, length) = (StatusCode::PARTIAL_CONTENT, request.length);
            answer.insert(CONTENT_RANGE, header(format!("bytes {first}-{last}/{}", info.size)));
        }
    }
    answer.insert(CONTENT_LENGTH, length.into());
    if *method == Method::HEAD {
        return Ok((status, answer, Body::empty()).into_response());
    }
    let reader = lease.read(request).await.map_err(guest_error)?;
    Ok((status, answer, body(lease, Source::File(reader), None, Some(length))).into_response())
}

fn header(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// Changes whenever the file does, as far as size and time of change tell.
fn tag(info: &FileInfo) -> HeaderValue {
    header(format!("\"{:x}-{:x}\"", info.size, info.modified_ns))
}

fn describe(info: &FileInfo) -> HeaderMap {
    let seconds = u64::try_from(info.modified_ns.div_euclid(1_000_000_000)).unwrap_or_default();
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (ETAG, tag(info)),
        (LAST_MODIFIED, header(time::http(seconds))),
    ])
}
