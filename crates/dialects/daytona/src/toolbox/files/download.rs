//! One file, as it is; also by a signed address.

use atoll_dialect_kit::files::{SendError, send};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::CONTENT_RANGE;

use super::{fail, guest, resolve, signed};
use crate::App;
use crate::error::Result;

/// The bytes of a file, or of a range of it.
pub(super) async fn download(State(app): State<App>, request: Request) -> Result<Response> {
    let (mut parts, _) = request.into_parts();
    let (inside, path) = signed::admitted(&mut parts, &app).await?;
    let path = resolve(&inside, &path).await?;
    let sent = send(guest(&inside).await?, path, &parts.method, &parts.headers).await;
    match sent {
        Ok(response) => Ok(response),
        Err(SendError::Engine(error)) => Err(fail(error)),
        Err(SendError::Range(size)) => {
            let range = [(CONTENT_RANGE, format!("bytes */{size}"))];
            Ok((StatusCode::RANGE_NOT_SATISFIABLE, range).into_response())
        }
    }
}
