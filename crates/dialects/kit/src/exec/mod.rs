//! Commands by an id of the client, and their output from where the client left off.

mod feed;
mod marks;
mod track;

use atoll_core::id::SandboxId;
use atoll_core::spec::{ExecDraft, IdempotencyKey};
use atoll_core::{Code, Error};
use atoll_engine::{Caller, Engine, ExecView};
use atoll_guest_protocol::messages::Stat;

pub use feed::{Counting, Event, Feed, Offsets};
pub use marks::Bookmarks;

/// Shell of commands when the client does not name one.
pub const SHELL: &str = "/bin/bash";
/// The shell in images without bash.
const PLAIN_SHELL: &str = "/bin/sh";

/// Runs a command, or finds the command that already has this id: the same id is the same command, however often the
/// client sends it. `draft` makes the command for a shell: `shell` if the client names one, else [`SHELL`], or a plain
/// one where the sandbox has no such file.
///
/// # Errors
/// As [`Engine::create_exec`], and what `draft` gives.
pub async fn get_or_create(
    engine: &Engine,
    sandbox: &SandboxId,
    id: Option<&str>,
    shell: Option<&str>,
    draft: impl Fn(&str) -> Result<ExecDraft, Error> + Send + Sync,
    caller: &Caller,
) -> Result<ExecView, Error> {
    let shell = shell.unwrap_or(SHELL);
    let key = id.map(IdempotencyKey::client).transpose()?;
    let first = ExecDraft { idempotency_key: key.clone(), ..draft(shell)? };
    let view = engine.create_exec(sandbox, first, caller).await;
    let missing = matches!(&view, Ok(view) if shell == SHELL && is_missing_shell(view));
    match (view, key) {
        // The sandbox's environment changed between the client's two requests: it is still the same command.
        (Err(error), Some(key)) if error.code == Code::IdempotencyMismatch => {
            engine.exec_by_key(sandbox, &key).await
        }
        (Ok(_), _) if missing && !has_file(engine, sandbox, SHELL).await => {
            // The exec with this id is the one that found no bash.
            let idempotency_key = id.map(plain_key).transpose()?;
            let second = ExecDraft { idempotency_key, ..draft(PLAIN_SHELL)? };
            engine.create_exec(sandbox, second, caller).await
        }
        (view, _) => view,
    }
}

/// The command with this id.
///
/// # Errors
/// As [`Engine::exec_by_key`].
pub async fn by_id(engine: &Engine, sandbox: &SandboxId, id: &str) -> Result<ExecView, Error> {
    let Ok(key) = IdempotencyKey::client(id) else {
        // No exec has such a key.
        engine.sandbox(sandbox)?;
        return Err(Error::new(Code::ExecNotFound, "no exec was made with this key in this sandbox"));
    };
    let view = engine.exec_by_key(sandbox, &key).await?;
    if is_missing_shell(&view)
        && let Ok(key) = plain_key(id)
        && let Ok(plain) = engine.exec_by_key(sandbox, &key).await
    {
        return Ok(plain);
    }
    Ok(view)
}

/// Key of the exec that runs a command in the plain shell because there is no bash.
fn plain_key(id: &str) -> Result<IdempotencyKey, Error> {
    IdempotencyKey::client(format!("{id}/sh"))
}

fn is_missing_shell(view: &ExecView) -> bool {
    let not_found = view.record.exit.as_ref().is_some_and(|exit| exit.error == Some(Code::CommandNotFound));
    not_found && view.record.spec.argv.first().is_some_and(|shell| shell == SHELL)
}

async fn has_file(engine: &Engine, sandbox: &SandboxId, path: &str) -> bool {
    let Ok(guest) = engine.guest(sandbox).await else { return true };
    guest.stat(Stat { path: path.to_owned(), no_follow: false }).await.is_ok()
}
