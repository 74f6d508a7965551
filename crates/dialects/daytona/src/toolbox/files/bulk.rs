//! Several files in one answer: `multipart/form-data`, with a part for each file or for its error.
//!
//! The parts tell their length, for clients that show their progress. A file that grows meanwhile is cut at its old
//! end; a file that shrinks breaks the answer off, so that the client notices.

use atoll_core::{Code, Error};
use atoll_engine::{FileReader, GuestLease, guest_error};
use atoll_guest_protocol::messages::{FileKind, Read, Stat};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use http::Method;
use http::header::CONTENT_TYPE;
use serde::Deserialize;

use super::{fail, guest, paths};
use crate::error::{Failure, Result};
use crate::request::Json;
use crate::who::Inside;

/// Files of one answer.
const FILES_MAX_COUNT: usize = 10_000;
/// Small files, and files whose size the kernel does not tell, are read before their part begins, bytes.
const READ_AHEAD_BYTES: u64 = 64 << 10;

/// The files that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    paths: Vec<String>,
}

/// Sends files.
pub(super) async fn download(inside: Inside, Json(Wanted { paths }): Json<Wanted>) -> Result<Response> {
    if paths.is_empty() {
        return Err(Failure::bad_daemon("request body must have 'paths'"));
    }
    if paths.len() > FILES_MAX_COUNT {
        return Err(Failure::bad_daemon(format!("more than {FILES_MAX_COUNT} paths")));
    }
    let random = getrandom::u64().map_err(|error| {
        tracing::error!(%error, "no randomness for a boundary");
        Failure::internal("the host's random generator failed")
    })?;
    let boundary = format!("daytona-{random:016x}");
    let kind = format!("multipart/form-data; boundary={boundary}");
    let sending = Sending {
        guest: guest(&inside).await?,
        inside,
        paths: paths.into_iter(),
        boundary,
        state: State::Between,
    };
    let body = Body::from_stream(stream::try_unfold(sending, |mut sending| async move {
        Ok::<_, std::io::Error>(sending.next().await?.map(|piece| (piece, sending)))
    }));
    Ok(([(CONTENT_TYPE, kind)], body).into_response())
}

struct Sending {
    inside: Inside,
    guest: GuestLease,
    paths: std::vec::IntoIter<String>,
    boundary: String,
    state: State,
}

enum State {
    /// The next file is due.
    Between,
    /// So many bytes of a file still have to be sent.
    Content(Box<FileReader>, u64),
    Done,
}

/// A part's content: all of it, or a reader and the bytes that it still has to read.
enum Content {
    Whole(Bytes),
    Stream(Box<FileReader>, u64),
}

impl Sending {
    /// The next piece of the answer.
    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Between => Ok(Some(self.part().await)),
            State::Content(mut reader, left) => {
                let piece = reader.next().await.map_err(|error| std::io::Error::other(guest_error(error)))?;
                let Some(mut piece) = piece else {
                    return Err(std::io::Error::other("the file became shorter while it was sent"));
                };
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - piece.len() as u64;
                if left > 0 {
                    self.state = State::Content(reader, left);
                    return Ok(Some(piece));
                }
                self.state = State::Between;
                Ok(Some([&piece[..], b"\r\n"].concat().into()))
            }
            State::Done => Ok(None),
        }
    }

    /// The head of the next part, with its content if that was read already; after the last part, the end of the form.
    async fn part(&mut self) -> Bytes {
        let Some(asked) = self.paths.next() else {
            return format!("--{}--\r\n", self.boundary).into();
        };
        let (kind, content) = match self.content(&asked).await {
            Ok(content) => ("file", content),
            Err(error) => {
                let body = fail(error).json(&Method::POST, &asked).to_string();
                ("error", Content::Whole(body.into()))
            }
        };
        let length = match &content {
            Content::Whole(bytes) => bytes.len() as u64,
            Content::Stream(_, length) => *length,
        };
        let media = if kind == "error" { "application/json" } else { "application/octet-stream" };
        let head = format!(
            "--{}\r\nContent-Disposition: form-data; name=\"{kind}\"; {}\r\nContent-Type: {media}\r\nContent-Length: {length}\r\n\r\n",
            self.boundary,
            file_name(&asked)
        );
        self.state = State::Between;
        match content {
            Content::Whole(bytes) => [head.as_bytes(), &bytes, b"\r\n"].concat().into(),
            Content::Stream(reader, length) => {
                self.state = State::Content(reader, length);
                head.into()
            }
        }
    }

    async fn content(&self, asked: &str) -> Result<Content, Error> {
        let path = paths::absolute(&self.inside, asked).await?;
        let info =
            self.guest.stat(Stat { path: path.clone(), no_follow: false }).await.map_err(guest_error)?;
        if info.kind() == FileKind::Directory {
            return Err(Error::new(Code::IsADirectory, format!("'{path}' is a directory")));
        }
        if info.size > READ_AHEAD_BYTES {
            let request = Read { path, offset: 0, length: info.size };
            let reader = self.guest.read(request).await.map_err(guest_error)?;
            return Ok(Content::Stream(Box::new(reader), info.size));
        }
        let mut reader =
            self.guest.read(Read { path, offset: 0, length: READ_AHEAD_BYTES }).await.map_err(guest_error)?;
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next().await.map_err(guest_error)? {
            bytes.extend_from_slice(&piece);
        }
        Ok(Content::Whole(bytes.into()))
    }
}

/// `filename="…"` with the name in plain characters, and beside it the name with all characters.
fn file_name(path: &str) -> String {
    let plain = |c: char| if c == ' ' || (c.is_ascii_graphic() && c != '"' && c != '\\') { c } else { '_' };
    let name: String = path.chars().map(plain).collect();
    if name == path {
        return format!("filename=\"{name}\"");
    }
    let encoded = percent_encoding::utf8_percent_encode(path, percent_encoding::NON_ALPHANUMERIC);
    format!("filename=\"{name}\"; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        assert_eq!(file_name("/a b.txt"), "filename=\"/a b.txt\"");
        assert_eq!(file_name("ä\"\r\n"), "filename=\"____\"; filename*=UTF-8''%C3%A4%22%0D%0A");
    }
}
