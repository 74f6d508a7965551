//! Reading a file, or a part of it, if it changed: `download`.

use atoll_dialect_kit::files::{SendError, send};
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Method};

use super::OfFile;
use crate::App;
use crate::boxes;
use crate::error::{Failure, Result};
use crate::request::{Caller, Query, Read};

const KIND: &str = "ReadError";

/// The bytes of a file; with `HEAD`, only its headers.
pub(crate) async fn download(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(file): Query<OfFile>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response> {
    let path = file.absolute(KIND)?;
    let sandbox = caller.sandbox().map_err(|error| Failure::data(KIND, &error))?;
    let lease = boxes::awake(app.host.engine(), sandbox).await;
    let lease = lease.map_err(|error| Failure::data(KIND, &error))?;
    send(lease, path, &method, &headers).await.map_err(|error| match error {
        SendError::Engine(error) => Failure::data(KIND, &error),
        SendError::Range(size) => Failure::range(size),
    })
}
