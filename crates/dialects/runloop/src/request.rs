//! Who asks, and which devbox or execution a request is about. Everything that looks at keys and their rights is
//! here.

use atoll_core::id::{KeyId, SandboxId};
use atoll_engine::{Engine, ExecView, SandboxQuery};
use atoll_store::SandboxRecord;
use http::HeaderMap;

use crate::App;
use crate::error::{Failure, Result};
use crate::ids;

pub(crate) use atoll_dialect_kit::request::{Caller, Exec, Json, Manage, Path, Query, Read};

/// Beginning of the routes that name a devbox.
pub(crate) const DEVBOX_ROUTES: &str = "/v1/devboxes/";
/// The part of their path that does.
pub(crate) const DEVBOX: &str = "devbox";

/// The key of a request, verified: what an idempotency key belongs to.
pub(crate) fn key(app: &App, headers: &HeaderMap) -> Result<KeyId> {
    app.host.verify(headers).map(|key| key.id).map_err(|error| Failure::of(&error))
}

/// Which sandboxes a caller's listing has.
pub(crate) fn visible<S>(caller: &Caller<S>) -> SandboxQuery {
    SandboxQuery { visible_to: caller.sees(), ..SandboxQuery::default() }
}

/// The sandbox that `text` in the path means; its rights were checked with the caller.
///
/// # Errors
/// 404.
pub(crate) fn record(engine: &Engine, text: &str) -> Result<SandboxRecord> {
    engine.sandbox(&ids::sandbox(text)).map_err(|_missing| Failure::no_devbox(text))
}

/// The execution that `text` means in a sandbox: its own id, or the command id that a client made.
///
/// # Errors
/// 404.
pub(crate) async fn execution(engine: &Engine, sandbox: &SandboxId, text: &str) -> Result<ExecView> {
    let found = match ids::exec(text) {
        Some(id) => engine.exec(sandbox.as_str(), id.as_str()).await,
        None => atoll_dialect_kit::exec::by_id(engine, sandbox.as_str(), text).await,
    };
    found.map_err(|error| match error.code {
        atoll_core::Code::ExecNotFound => Failure::no_execution(text),
        _ => Failure::of(&error),
    })
}
