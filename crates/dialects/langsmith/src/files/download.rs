//! Reading a file, or a part of it, if it changed: `download`.

use atoll_core::{Code, Error};
use atoll_engine::guest_error;
use atoll_guest_protocol::messages::{FileInfo, FileKind, Read as ReadFile, Stat};
use atoll_server::dialect::{Source, body};
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED,
    RANGE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::OfFile;
use crate::App;
use crate::boxes;
use crate::error::{Failure, Result};
use crate::request::{Caller, Query, Read};
use crate::time;

const KIND: &str = "ReadError";

/// A range that was asked for, given the file's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    /// From the first to the last byte.
    Part(u64, u64),
    /// It begins behind the end.
    Nothing,
}

fn wanted(headers: &HeaderMap, size: u64, tag: &HeaderValue) -> Wanted {
    let stale = headers.get(IF_RANGE).is_some_and(|known| known != tag);
    match headers.get(RANGE).and_then(|value| value.to_str().ok()).filter(|_| !stale) {
        Some(text) => parse(text, size),
        None => Wanted::All,
    }
}

/// One range. What is not understood is ignored, as the protocol wants it.
fn parse(text: &str, size: u64) -> Wanted {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|text| text.split_once('-')) else {
        return Wanted::All;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (first, last) = match (first.trim(), last.trim()) {
        ("", suffix) => match number(suffix) {
            Some(suffix) => (Some(size.saturating_sub(suffix)), Some(u64::MAX)),
            None => (None, None),
        },
        (first, "") => (number(first), Some(u64::MAX)),
        (first, last) => (number(first), number(last)),
    };
    match (first, last) {
        (Some(first), Some(last)) if last < first => Wanted::All,
        (Some(first), Some(_)) if first >= size => Wanted::Nothing,
        (Some(first), Some(last)) => Wanted::Part(first, last.min(size - 1)),
        _ => Wanted::All,
    }
}

fn header(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// Changes whenever the file does, as far as size and time of change tell.
fn tag(info: &FileInfo) -> HeaderValue {
    header(format!("\"{:x}-{:x}\"", info.size, info.modified_ns))
}

fn fail(error: &Error) -> Failure {
    Failure::data(KIND, error)
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

/// The bytes of a file; with `HEAD`, only what it is.
pub(crate) async fn download(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(file): Query<OfFile>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response> {
    let path = file.absolute(KIND)?;
    let sandbox = caller.sandbox().map_err(|error| fail(&error))?;
    let lease = boxes::awake(app.host.engine(), sandbox).await.map_err(|error| fail(&error))?;
    let stat = Stat { path: path.clone(), no_follow: false };
    let info = lease.stat(stat).await.map_err(|error| fail(&guest_error(error)))?;
    if info.kind() == FileKind::Directory {
        return Err(fail(&Error::new(Code::IsADirectory, format!("'{path}' is a directory"))));
    }
    let mut answer = describe(&info);
    if headers.get(IF_NONE_MATCH).is_some_and(|known| Some(known) == answer.get(ETAG)) {
        return Ok((StatusCode::NOT_MODIFIED, answer).into_response());
    }
    let mut request = ReadFile { path, offset: 0, length: 0 };
    let mut status = StatusCode::OK;
    // Files of /proc have content but no size: they are sent as they come.
    let mut length = (info.size > 0).then_some(info.size);
    match wanted(&headers, info.size, &tag(&info)) {
        Wanted::All => {}
        Wanted::Nothing => return Err(Failure::range(info.size)),
        Wanted::Part(first, last) => {
            (request.offset, request.length) = (first, last - first + 1);
            length = Some(request.length);
            status = StatusCode::PARTIAL_CONTENT;
            answer.insert(CONTENT_RANGE, header(format!("bytes {first}-{last}/{}", info.size)));
        }
    }
    if let Some(length) = length {
        answer.insert(CONTENT_LENGTH, length.into());
    }
    if method == Method::HEAD {
        answer.entry(CONTENT_LENGTH).or_insert(info.size.into());
        return Ok((status, answer, Body::empty()).into_response());
    }
    let reader = lease.read(request).await.map_err(|error| fail(&guest_error(error)))?;
    Ok((status, answer, body(lease, Source::File(reader), None, length)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse("bytes=0-0", 10), Wanted::Part(0, 0));
        assert_eq!(parse("bytes=2-99", 10), Wanted::Part(2, 9));
        assert_eq!(parse("bytes=9-", 10), Wanted::Part(9, 9));
        assert_eq!(parse("bytes=-3", 10), Wanted::Part(7, 9));
        assert_eq!(parse("bytes=-30", 10), Wanted::Part(0, 9));
        for out in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert_eq!(parse(out, 10), Wanted::Nothing, "{out}");
        }
        assert_eq!(parse("bytes=0-", 0), Wanted::Nothing);
        for ignored in ["bytes=3-2", "bytes=0-1,4-5", "lines=1-2", "bytes=", "bytes=-", "bytes=a-b"] {
            assert_eq!(parse(ignored, 10), Wanted::All, "{ignored}");
        }
    }

    #[test]
    fn a_stale_range_is_the_whole_file() {
        let info = FileInfo { size: 10, modified_ns: 5, ..FileInfo::default() };
        let mut headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=1-2"))]);
        assert_eq!(wanted(&headers, 10, &tag(&info)), Wanted::Part(1, 2));
        headers.insert(IF_RANGE, tag(&info));
        assert_eq!(wanted(&headers, 10, &tag(&info)), Wanted::Part(1, 2));
        headers.insert(IF_RANGE, HeaderValue::from_static("\"other\""));
        assert_eq!(wanted(&headers, 10, &tag(&info)), Wanted::All);
    }
}
