//! Writing files: one as it is, or any number in a form.
//!
//! A form has pairs of fields, `files[0].path` and `files[0].file`. Some clients send all paths first, some send each
//! before its file, and no client says how large a file is: the server writes contents as they come.

use std::collections::BTreeMap;

use atoll_core::{Code, Error};
use atoll_dialect_kit::files::Form;
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::Write;
use atoll_server::dialect::Pieces;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::{fail, guest, owner, paths, signed};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::Json;
use crate::who::Inside;

/// Longest path in a form, bytes.
const PATH_MAX_BYTES: usize = 4095;
/// Most files of one form.
const FILES_MAX_COUNT: usize = 10_000;

/// The sandbox that the files go to, and the user that owns them.
struct Uploads {
    inside: Inside,
    guest: GuestLease,
    owner: String,
}

/// `files[3].path` is `(3, "path")`.
fn field(name: &str) -> Option<(usize, &str)> {
    let (index, kind) = name.strip_prefix("files[")?.split_once("].")?;
    let index: usize = index.parse().ok().filter(|index| *index < FILES_MAX_COUNT)?;
    Some((index, kind))
}

/// The source of a file's content.
enum Content<'a> {
    /// The current part of a form.
    Part(&'a mut Form),
    /// A whole body.
    Body(Box<Pieces>),
}

impl Content<'_> {
    async fn next(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        match self {
            Self::Part(form) => form.chunk().await,
            Self::Body(pieces) => pieces.next().await,
        }
    }
}

impl Uploads {
    async fn of(inside: Inside) -> Result<Self> {
        let (guest, owner) = (guest(&inside).await?, owner(&inside)?);
        Ok(Self { inside, guest, owner })
    }

    /// Writes the content to its end.
    async fn write(&self, asked: &str, mut content: Content<'_>) -> Result<(String, u64), Error> {
        let path = paths::absolute(&self.inside, asked).await?;
        let user = self.owner.clone();
        let request = Write { path: path.clone(), mode: 0, user, parents: true, in_place: true };
        let mut writer = self.guest.write(request).await.map_err(guest_error)?;
        let mut size = 0;
        while let Some(piece) = content.next().await? {
            size += piece.len() as u64;
            writer.send(piece).await.map_err(guest_error)?;
        }
        writer.finish().await.map_err(guest_error)?;
        Ok((path, size))
    }
}

/// Writes every file of a form. Files that could not be written are told beside those that were.
pub(super) async fn bulk(inside: Inside, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let broken = |error: &Error| Failure::bad_daemon(format!("the form cannot be read: {}", error.message));
    let mut form = Form::new(&parts.headers, body).map_err(|error| broken(&error))?;
    let to = Uploads::of(inside).await?;
    let (mut asked, mut written, mut errors) = (BTreeMap::new(), Vec::<Value>::new(), Vec::<String>::new());
    while let Some(part) = form.next().await.map_err(|error| broken(&error))? {
        match part.name.as_deref().and_then(field) {
            Some((index, "path")) => {
                asked.insert(index, form.text(PATH_MAX_BYTES).await.map_err(|error| broken(&error))?);
            }
            Some((index, "file")) => {
                let Some(path) = asked.get(&index) else {
                    errors.push(format!("files[{index}].path: is missing, or comes after its file"));
                    continue;
                };
                // A form that breaks off is reported here as well: then the loop finds nothing more to read.
                match to.write(path, Content::Part(&mut form)).await {
                    Ok((path, size)) => written.push(json!({"path": path, "bytes": size})),
                    Err(error) => errors.push(format!("{path}: {}", error.message)),
                }
            }
            _ => {}
        }
    }
    if errors.is_empty() && written.is_empty() {
        return Err(Failure::bad_daemon("the form has no file in it: files[0].path and files[0].file"));
    }
    if errors.is_empty() {
        return Ok(Json(json!({"files": written})).into_response());
    }
    let message = errors.join("; ");
    let answer = json!({
        "statusCode": 400, "source": "DAYTONA_DAEMON", "code": "BAD_REQUEST", "message": message, "path": parts.uri.path(),
        "timestamp": atoll_dialect_kit::time::iso(atoll_dialect_kit::time::now_ms()), "errors": errors, "files": written,
    });
    Ok((StatusCode::BAD_REQUEST, Json(answer)).into_response())
}

/// One file, as it is or in a form; also by a signed address.
pub(super) async fn one(State(app): State<App>, request: Request) -> Result<Json<Value>> {
    let (mut parts, body) = request.into_parts();
    let (inside, path) = signed::admitted(&mut parts, &app).await?;
    let to = Uploads::of(inside).await?;
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_form = kind.trim_start().to_ascii_lowercase().starts_with("multipart/form-data");
    let written =
        if is_form { in_form(&to, &path, &parts.headers, body).await } else { plain(&to, &path, body).await };
    let (path, _) = written.map_err(fail)?;
    Ok(Json(json!({"name": paths::name(&path), "path": path, "type": "file"})))
}

async fn plain(to: &Uploads, path: &str, body: Body) -> Result<(String, u64), Error> {
    to.write(path, Content::Body(Box::new(Pieces::new(body)))).await
}

/// The first file of a form.
async fn in_form(
    to: &Uploads,
    path: &str,
    headers: &http::HeaderMap,
    body: Body,
) -> Result<(String, u64), Error> {
    let mut form = Form::new(headers, body)?;
    while let Some(part) = form.next().await? {
        if part.file_name.is_some() || part.name.as_deref() == Some("file") {
            return to.write(path, Content::Part(&mut form)).await;
        }
    }
    Err(Error::new(Code::InvalidArgument, "the form has no file in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_forms() {
        assert_eq!(field("files[0].path"), Some((0, "path")));
        assert_eq!(field("files[12].file"), Some((12, "file")));
        for other in ["file", "files[].path", "files[x].path", "files[99999999].file", "files[0]"] {
            assert_eq!(field(other), None, "{other}");
        }
    }
}
