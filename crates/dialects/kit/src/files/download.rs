//! An answer with a file, or a part of it, if it changed.

use atoll_core::Error;
use atoll_engine::GuestLease;
use atoll_guest_protocol::messages::FileInfo;
use atoll_server::dialect::{OpenFile, Wanted, wanted};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::time;

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
/// What reading gives; [`atoll_core::Code::IsADirectory`]; a range outside the file.
pub async fn send(
    lease: GuestLease,
    path: String,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, SendError> {
    let only_head = *method == Method::HEAD;
    let look = only_head || headers.contains_key(RANGE) || headers.contains_key(IF_NONE_MATCH);
    let mut file = OpenFile::open(lease, path, look).await?;
    let (tag, mut answer) = (tag(file.info()), describe(file.info()));
    if headers.get(IF_NONE_MATCH).is_some_and(|known| *known == tag) {
        return Ok((StatusCode::NOT_MODIFIED, answer).into_response());
    }
    let size = file.size().await?;
    let mut status = StatusCode::OK;
    // Where the size is unknown, the answer holds all of the file and ignores the range.
    let (part, length) = match size.map(|size| (size, wanted(headers, size, Some(&tag)))) {
        Some((size, Wanted::Nothing)) => return Err(SendError::Range(size)),
        Some((size, Wanted::Part(first, last))) => {
            status = StatusCode::PARTIAL_CONTENT;
            answer.insert(CONTENT_RANGE, header(format!("bytes {first}-{last}/{size}")));
            (Some((first, last)), Some(last - first + 1))
        }
        Some((_, Wanted::All)) | None => (None, size),
    };
    if let Some(length) = length {
        answer.insert(CONTENT_LENGTH, length.into());
    }
    let body = if only_head { Body::empty() } else { file.body(part).await? };
    Ok((status, answer, body).into_response())
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
