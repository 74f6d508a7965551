//! Reading a file, or a part of it.

use std::io::Write as _;

use atoll_core::{Code, Error};
use atoll_guest_protocol::messages::{FileInfo, FileKind};
use atoll_server::dialect::{OpenFile, Wanted, wanted};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{TryStreamExt as _, stream};
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, LAST_MODIFIED, VARY,
};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::{Operation, admitted, failure};
use crate::App;
use crate::envd::paths;
use crate::error::{Failure, Result};

/// How the answer is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

/// Gzip for a client that asks for it, by naming nothing else or by refusing bytes as they are; `None` when it takes
/// neither. Most HTTP libraries name all encodings that they can undo, and do not ask for gzip with that: between two
/// programs, compressing takes longer than it saves.
fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let Some(accepted) = headers.get(ACCEPT_ENCODING) else { return Some(Encoding::Identity) };
    let text = accepted.to_str().unwrap_or_default();
    let (mut gzip, mut others, mut identity) = (false, false, true);
    for part in text.split(',') {
        let (name, parameters) = part.split_once(';').unwrap_or((part, ""));
        let quality = parameters.trim().strip_prefix("q=").and_then(|text| text.trim().parse::<f32>().ok());
        let refused = quality.is_some_and(|quality| quality <= 0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => gzip = !refused,
            "identity" | "*" if refused => identity = false,
            "identity" | "" => {}
            _ => others |= !refused,
        }
    }
    match (gzip, identity) {
        (true, false) => Some(Encoding::Gzip),
        (true, true) if !others => Some(Encoding::Gzip),
        (_, true) => Some(Encoding::Identity),
        (false, false) => None,
    }
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// `inline; filename="…"` with the name in plain characters, and beside it the name with all characters.
fn disposition(name: &str) -> HeaderValue {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ' { c } else { '_' })
        .collect();
    let mut text = format!("inline; filename=\"{plain}\"");
    if plain != name {
        text.push_str("; filename*=UTF-8''");
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                text.push(char::from(byte));
            } else {
                text.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
            }
        }
    }
    header(&text)
}

fn hex_digit(value: u8) -> char {
    char::from_digit(value.into(), 16).map_or('0', |digit| digit.to_ascii_uppercase())
}

fn told(error: Error, path: &str) -> Failure {
    match error.code {
        Code::FileNotFound | Code::NotADirectory => {
            Failure::not_found(format!("path '{path}' does not exist"))
        }
        Code::IsADirectory => Failure::bad(format!("path '{path}' is a directory")),
        _ => Failure::of_file(&error),
    }
}

/// The bytes of a file.
pub(crate) async fn download(State(app): State<App>, request: Request) -> Result<Response> {
    let (mut parts, _) = request.into_parts();
    let (envd, query) = admitted(&mut parts, &app, Operation::Read).await?;
    let asked = query.path.as_deref().filter(|path| !path.is_empty());
    let asked = asked.ok_or_else(|| Failure::bad("the query parameter 'path' is missing"))?;
    let guest = envd.guest().await.map_err(|error| Failure::of_file(&error))?;
    let path = paths::resolve(&envd, &guest, asked).await.map_err(failure)?;
    let wrong = |error: Error| told(error, &path);
    let mut file = OpenFile::open(guest, path.clone(), true).await.map_err(wrong)?;
    if file.info().kind() != FileKind::File {
        return Err(Failure::bad(format!("path '{path}' is not a regular file")));
    }
    let encoding = encoding(&parts.headers)
        .ok_or_else(|| Failure::new(StatusCode::NOT_ACCEPTABLE, "no acceptable encoding found"))?;
    let size = file.size().await.map_err(wrong)?;
    let Plan { status, headers, part } = plan(&parts.headers, encoding, file.info(), size, &path);
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok((status, headers).into_response());
    }
    let body = file.body(part).await.map_err(wrong)?;
    let body = if headers.contains_key(CONTENT_ENCODING) { gzipped(body) } else { body };
    Ok((status, headers, body).into_response())
}

struct Plan {
    status: StatusCode,
    headers: HeaderMap,
    /// The first and the last byte of the part that is sent, unless all are.
    part: Option<(u64, u64)>,
}

/// `size` is `None` where it is unknown: then the answer holds all of the file and ignores the range.
fn plan(asked: &HeaderMap, encoding: Encoding, info: &FileInfo, size: Option<u64>, path: &str) -> Plan {
    let seconds = u64::try_from(info.modified_ns.div_euclid(1_000_000_000)).unwrap_or_default();
    let mut headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (VARY, HeaderValue::from_static("Accept-Encoding")),
        (CONTENT_DISPOSITION, disposition(paths::name(path))),
        (LAST_MODIFIED, header(&atoll_dialect_kit::time::http(seconds))),
    ]);
    // Files here have no versions that a client could have kept.
    let (status, part, length) = match size.map(|size| (size, wanted(asked, size, None))) {
        Some((size, Wanted::Nothing)) => {
            headers.insert(CONTENT_RANGE, header(&format!("bytes */{size}")));
            (StatusCode::RANGE_NOT_SATISFIABLE, None, None)
        }
        Some((size, Wanted::Part(first, last))) => {
            headers.insert(CONTENT_RANGE, header(&format!("bytes {first}-{last}/{size}")));
            (StatusCode::PARTIAL_CONTENT, Some((first, last)), Some(last - first + 1))
        }
        Some((_, Wanted::All)) | None if encoding == Encoding::Gzip => {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            (StatusCode::OK, None, None)
        }
        Some((_, Wanted::All)) | None => (StatusCode::OK, None, size),
    };
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    Plan { status, headers, part }
}

/// A file that is compressed while it is sent.
fn gzipped(file: Body) -> Body {
    let packer = GzEncoder::new(Vec::new(), Compression::fast());
    Body::from_stream(stream::try_unfold(Some((file.into_data_stream(), packer)), |state| async move {
        let Some((mut file, mut packer)) = state else { return Ok(None) };
        while packer.get_ref().is_empty() {
            match file.try_next().await.map_err(std::io::Error::other)? {
                Some(piece) => packer.write_all(&piece)?,
                None => return Ok(Some((Bytes::from(packer.finish()?), None))),
            }
        }
        let packed = Bytes::from(std::mem::take(packer.get_mut()));
        Ok::<_, std::io::Error>(Some((packed, Some((file, packer)))))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: http::HeaderName, text: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(text))])
    }

    #[test]
    fn encodings() {
        let of = |text| encoding(&headers(ACCEPT_ENCODING, text));
        assert_eq!(encoding(&HeaderMap::new()), Some(Encoding::Identity));
        assert_eq!(of("gzip"), Some(Encoding::Gzip));
        assert_eq!(of("gzip, identity;q=0.5"), Some(Encoding::Gzip));
        assert_eq!(of("gzip, deflate, br"), Some(Encoding::Identity));
        assert_eq!(of("gzip, deflate, identity;q=0"), Some(Encoding::Gzip));
        assert_eq!(of("gzip;q=0, identity"), Some(Encoding::Identity));
        assert_eq!(of("br"), Some(Encoding::Identity));
        assert_eq!(of("identity;q=0"), None);
        assert_eq!(of("gzip;q=0.5, *;q=0"), Some(Encoding::Gzip));
    }

    #[test]
    fn names_of_downloads() {
        assert_eq!(disposition("a b.txt"), "inline; filename=\"a b.txt\"");
        assert_eq!(disposition("ä\"\r\n"), "inline; filename=\"____\"; filename*=UTF-8''%C3%A4%22%0D%0A");
    }
}
