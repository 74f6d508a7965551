//! Writing a file: `upload`.

use atoll_core::Error;
use atoll_dialect_kit::files::Form;
use atoll_engine::guest_error;
use atoll_guest_protocol::messages::Write;
use axum::body::Body;
use axum::extract::State;
use http::HeaderMap;
use serde_json::{Value, json};

use super::OfFile;
use crate::App;
use crate::boxes;
use crate::error::{Failure, Result};
use crate::request::{Caller, Exec, Json, Query};

const KIND: &str = "WriteError";

fn fail(error: &Error) -> Failure {
    Failure::data(KIND, error)
}

/// Writes a file, with the directories above it; it appears as a whole or not at all. A file that is there keeps its
/// permissions and its owner.
pub(crate) async fn upload(
    caller: Caller<Exec>,
    State(app): State<App>,
    Query(file): Query<OfFile>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>> {
    let path = file.absolute(KIND)?;
    // The clients send one part.
    let mut form = Form::new(&headers, body).map_err(|error| fail(&error))?;
    if form.next().await.map_err(|error| fail(&error))?.is_none() {
        return Err(fail(&Error::invalid("body", "has no file in it")));
    }
    let engine = app.host.engine();
    let sandbox = caller.sandbox().map_err(|error| fail(&error))?;
    let user = engine.sandbox(sandbox).map_err(|error| fail(&error))?.spec.user;
    let lease = boxes::awake(engine, sandbox).await.map_err(|error| fail(&error))?;
    let request = Write { path: path.clone(), mode: 0, user, parents: true, in_place: false };
    let told = |error| fail(&guest_error(error));
    let mut writer = lease.write(request).await.map_err(told)?;
    // Dropping the writer before it finished leaves no file.
    while let Some(content) = form.chunk().await.map_err(|error| fail(&error))? {
        writer.send(content).await.map_err(told)?;
    }
    let bytes = writer.finish().await.map_err(told)?;
    Ok(Json(json!({"path": path, "size_bytes": bytes})))
}
