//! Sandboxes that end with their first command. A task follows that command; when the command has ended, the task gives
//! the sandbox a short time to live, in which clients read its output.
//!
//! The sandbox's annotation says that it ends so, and whether it was given its end. So the work goes on in the next
//! server, and on the node to which the sandbox went: each looks for sandboxes whose command no task follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error};

use super::lifecycle::of_exit;
use crate::App;
use crate::extras::{self, Extras};
use crate::task;

/// How long a sandbox whose first command ended is kept, milliseconds.
const READABLE_MS: u64 = 60_000;
/// How long one wait for the first command lasts; then another begins.
const WAIT: Duration = Duration::from_secs(600);
/// Pause before what failed is tried again, and between two looks at a command that has not ended.
const RETRY: Duration = Duration::from_secs(1);

/// The sandboxes whose first command a task follows. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Followed(Arc<Mutex<BTreeSet<SandboxId>>>);

impl Followed {
    fn table(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        // A set is complete after each change, so it stays usable when a task panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the task that looks for sandboxes of an earlier server, and for those that come from other nodes.
pub(crate) fn take_up(app: &App) {
    let (app, token) = (app.clone(), app.host.draining_token());
    tokio::spawn(token.run_until_cancelled_owned(async move {
        let mut taken_up = app.host.engine().taken_up();
        loop {
            taken_up.mark_unchanged();
            for (id, _) in app.host.engine().owners() {
                if ends_with_command(&app, &id).await {
                    follow(&app, id);
                }
            }
            if taken_up.changed().await.is_err() {
                return;
            }
        }
    }));
}

/// Whether a sandbox ends with a first command that has been started, and has not been given its end.
async fn ends_with_command(app: &App, id: &SandboxId) -> bool {
    let engine = app.host.engine();
    let Ok(record) = engine.sandbox(id) else { return false };
    let extras = Extras::of(&record);
    if !extras.command || extras.over || app.control.followed.table().contains(id) {
        return false;
    }
    // The call that makes a sandbox follows the command itself once it has started it. What cannot be asked now is
    // followed: that task asks again.
    !matches!(task::first(engine, id).await, Err(error) if error.code == Code::ExecNotFound)
}

/// Starts the task that follows the first command of a sandbox, if there is none yet.
pub(super) fn follow(app: &App, id: SandboxId) {
    if !app.control.followed.table().insert(id.clone()) {
        return;
    }
    let (app, token) = (app.clone(), app.host.draining_token());
    tokio::spawn(token.run_until_cancelled_owned(async move {
        while let Err(error) = until_over(&app, &id).await {
            // Deleted, or gone to another node, which follows it from there.
            if matches!(error.code, Code::SandboxNotFound | Code::ExecNotFound) {
                break;
            }
            tracing::debug!(sandbox = %id, %error, "a sandbox is not given its end yet");
            tokio::time::sleep(RETRY).await;
        }
        app.control.followed.table().remove(&id);
    }));
}

/// Waits for the first command's end, and gives the sandbox its own.
async fn until_over(app: &App, id: &SandboxId) -> Result<(), Error> {
    let engine = app.host.engine();
    let mut first = task::first(engine, id).await?;
    let exit = loop {
        if let Some(exit) = first.record.exit {
            break exit;
        }
        first = engine.wait_exec(id, first.record.id.as_str(), WAIT).await?;
        if first.record.exit.is_none() {
            tokio::time::sleep(RETRY).await;
        }
    };
    let record = engine.sandbox(id)?;
    let extras = Extras { over: true, ..Extras::of(&record) };
    // A command that ended with its sandbox says nothing about itself.
    if matches!(record.state, SandboxState::Deleting | SandboxState::Failed) {
        return Ok(());
    }
    app.control.ended.note(&record, &extras.app);
    app.control.ended.over(id, of_exit(&exit));
    let left = record.expires_ms.map(|end| end.saturating_sub(engine.now_ms()).max(1));
    let ttl_ms = left.map_or(READABLE_MS, |left| left.min(READABLE_MS));
    let update = SandboxUpdate {
        ttl_ms: Some(Some(ttl_ms)),
        annotations: BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]),
        ..SandboxUpdate::default()
    };
    engine.update_sandbox(id, update).await.map(drop)
}
