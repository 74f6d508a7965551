//! The caller, and the devbox or execution that a request is about. All code that looks at keys and their rights is
//! here.

use atoll_core::id::SandboxId;
use atoll_core::sharing::Needs;
use atoll_engine::{Caller as EngineCaller, Engine, ExecView, Grant, Target};
use atoll_store::SandboxRecord;

use crate::error::{Failure, Result};
use crate::ids;

pub(crate) use atoll_dialect_kit::request::{Admin, Caller, Exec, Json, Manage, Path, Query, Read, Requires};

/// Prefix of the routes that name a devbox.
pub(crate) const DEVBOX_ROUTES: &str = "/v1/devboxes/";
/// The part of their path that names it.
pub(crate) const DEVBOX: &str = "devbox";

/// The sandbox that a request is about, which was found and whose rights were checked with the caller. `text` named it.
///
/// # Errors
/// 404.
pub(crate) fn record<S>(engine: &Engine, caller: &Caller<S>, text: &str) -> Result<SandboxRecord> {
    let id = caller.sandbox().map_err(|_missing| Failure::no_devbox(text))?;
    engine.sandbox(id).map_err(|_missing| Failure::no_devbox(text))
}

/// The execution that `text` means in a sandbox: its own id, or the command id that a client made.
///
/// # Errors
/// 404.
pub(crate) async fn execution(engine: &Engine, sandbox: &SandboxId, text: &str) -> Result<ExecView> {
    let found = match ids::exec(text) {
        Some(id) => engine.exec(sandbox, id.as_str()).await,
        None => atoll_dialect_kit::exec::by_id(engine, sandbox, text).await,
    };
    found.map_err(|error| match error.code {
        atoll_core::Code::ExecNotFound => Failure::no_execution(text),
        _ => Failure::of(&error),
    })
}

/// The grant of a client with a token that stands for a key on a sandbox, if that key may use the sandbox now.
pub(crate) async fn token_grant(
    engine: &Engine,
    purpose: &str,
    shown: &str,
    sandbox: &SandboxId,
) -> Option<Grant> {
    let key = engine.verify_sandbox_token(purpose, shown, sandbox).ok()?;
    let caller = EngineCaller::of(&key);
    engine.authorize(&caller, Needs::EXEC, Target::Sandbox(sandbox.as_str())).await.ok()
}
