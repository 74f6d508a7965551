//! The session of the program that the image or template started: one command, which clients may read and not change.

use atoll_engine::ExecView;
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};

use super::commands::with_exit;
use super::{fail, logs};
use crate::error::{Failure, Result};
use crate::request::Json;
use crate::who::Inside;

/// The names of the session and of its command.
pub(super) const SESSION: &str = "entrypoint";
pub(super) const COMMAND: &str = "entrypoint_command";

/// The exec of the command.
///
/// # Errors
/// 404 where no program was started.
pub(super) async fn exec(inside: &Inside) -> Result<ExecView> {
    let found = inside.engine().start_exec(inside.id()).await.map_err(fail)?;
    found.ok_or_else(|| Failure::no_process("this sandbox has no entrypoint"))
}

fn shown(view: &ExecView) -> Value {
    with_exit(json!({"id": COMMAND, "command": view.record.spec.argv.join(" ")}), view)
}

/// The session.
pub(crate) async fn read(inside: Inside) -> Result<Json<Value>> {
    let view = exec(&inside).await?;
    Ok(Json(json!({"sessionId": SESSION, "commands": [shown(&view)]})))
}

/// The output of the command: so far, or as it comes.
pub(crate) async fn logs(inside: Inside, request: Request) -> Result<Response> {
    let view = exec(&inside).await?;
    logs::tell(&inside, &view, request).await
}

/// The state of the command.
pub(super) async fn command(inside: &Inside) -> Result<Json<Value>> {
    Ok(Json(shown(&exec(inside).await?)))
}
