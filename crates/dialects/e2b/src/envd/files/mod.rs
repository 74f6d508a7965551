//! Files over plain HTTP: `/files`, `/files/compose`.

pub(crate) mod compose;
pub(crate) mod download;
pub(crate) mod signature;
pub(crate) mod upload;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error};
use atoll_engine::Asked;
use axum::extract::FromRequestParts;
use http::request::Parts;
use serde::Deserialize;

use super::auth::{Caller, Envd};
use super::sandbox_of;
use crate::App;
use crate::connect::{Fault, Kind};
use crate::error::Failure;
use http::StatusCode;

/// Names the file, and carries the signature if there is no access token.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Query {
    pub(crate) path: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) signature: Option<String>,
    pub(crate) signature_expiration: Option<String>,
}

/// The operation that a signature allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

impl Query {
    /// Reads the query of a request's address.
    pub(crate) fn of(parts: &Parts) -> Result<Self, Failure> {
        serde_html_form::from_str(parts.uri.query().unwrap_or_default())
            .map_err(|error| Failure::bad(format!("the query cannot be read: {error}")))
    }
}

/// A caller of `/files`: with a token, or with a signature.
async fn admitted(parts: &mut Parts, app: &App, operation: Operation) -> Result<(Envd, Query), Failure> {
    let query = Query::of(parts)?;
    let sandbox: SandboxId = sandbox_of(parts).ok_or_else(|| Failure::not_found("no sandbox is named"))?;
    let user = query.username.clone().filter(|user| !user.is_empty());
    if parts.headers.contains_key("x-access-token") {
        let envd = Envd::from_request_parts(parts, app).await?;
        return Ok((Envd { user: user.or(envd.user), ..envd }, query));
    }
    Asked::of_anybody();
    let key = signature::verify(app, &sandbox, &query, operation)?;
    let key = app.host.engine().key_behind(&key).map_err(|error| Failure::of(&error))?;
    let caller = Caller::with_key(app.host.engine(), &key, &sandbox).await?;
    app.host.fill_signed(&parts.extensions, caller.grant.clone())?;
    Ok((Envd { app: app.clone(), sandbox, caller, user, is_signed: true }, query))
}

/// The answer when a file cannot be written.
fn not_written(envd: &Envd, error: Error, path: &str) -> Failure {
    match error.code {
        Code::UserNotFound => failure(envd.fault(&error)),
        Code::IsADirectory => Failure::bad(format!("path is a directory: {path}")),
        Code::NotADirectory => Failure::bad(format!("a part of the path is not a directory: {path}")),
        _ => Failure::of_file(&error),
    }
}

/// The error of an RPC, as plain HTTP.
fn failure(fault: Fault) -> Failure {
    let status = match fault.kind {
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
        Kind::PermissionDenied => StatusCode::FORBIDDEN,
        Kind::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
        Kind::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal | Kind::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        Kind::InvalidArgument | Kind::AlreadyExists | Kind::FailedPrecondition | Kind::Unimplemented => {
            StatusCode::BAD_REQUEST
        }
    };
    Failure::new(status, fault.message)
}
