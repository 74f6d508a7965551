//! Making a copy: a sandbox without an owner, started and ready, and a snapshot of it with its memory.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use atoll_core::id::SnapshotId;
use atoll_core::snapshot::{Purpose, SnapshotKind, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_store::{ExecRecord, SnapshotOutcome, SnapshotRecord};

use super::{About, HOLDER, Saved, fits};
use crate::authorize::Caller;
use crate::engine::{Engine, Inner};
use crate::errors::isolation_error;
use crate::pool::{self, Member, Recipe};
use crate::snapshot::manifest;

/// The parts of a directory.
pub(super) const ABOUT: &str = "about.json";
pub(super) const LOG: &str = "log";

pub(super) fn host_error(error: &io::Error) -> Error {
    tracing::error!(%error, "the host cannot keep the memory of a template");
    Error::new(Code::Internal, "the host cannot keep the memory of a template")
}

/// Makes the copy of a version of a template. On error nothing is left.
pub(super) async fn make(engine: &Engine, template: &str, recipe: &Arc<Recipe>) -> Result<Saved> {
    let spec = &recipe.spec;
    let (level, starts) = (spec.isolation, spec.start.is_some() && spec.ready.is_some());
    engine.check_can_keep_memory(level, starts, Some(&spec.egress))?;
    let mut member = pool::make_alone(&engine.inner, recipe).await?;
    let saved = save(engine, template, &mut member).await;
    pool::remove(&engine.inner, member).await;
    saved
}

async fn save(engine: &Engine, template: &str, member: &mut Member) -> Result<Saved> {
    // From here on the server takes no output of the start command: what is not in the log is in the guest, and so in
    // the copy.
    let exec = match member.ahead.take() {
        Some(ahead) => ahead.hand_over().await,
        None => return Err(Error::new(Code::StartFailed, "nothing was started")),
    };
    let spec = &member.recipe.spec;
    let created_ms = engine.now_ms();
    let mut manifest = manifest(spec, member.recipe.mold.image.clone());
    manifest.kind = SnapshotKind::Memory;
    let mut record = SnapshotRecord {
        id: Inner::new_snapshot_id(created_ms)?,
        state: SnapshotState::Creating,
        sandbox: None,
        purpose: Purpose::Held(format!("{HOLDER}{template}")),
        comment: None,
        manifest,
        digest: None,
        stored_bytes: 0,
        paused_us: None,
        method: None,
        created_ms,
        created_by: None,
        project: None,
        private: true,
        tags: Vec::new(),
    };
    let about = About { fits: fits(spec, &member.recipe.mold)?, exec: exec.id.clone(), pid: exec.pid };
    engine.begin_snapshot(&mut record).await?;
    atoll_failpoint::fail_point!("engine.memory.journalled");
    let dir = engine.inner.memory_dir(&record.id);
    let outcome = match copy(engine, member, &exec, &about, &record.id).await {
        Ok(outcome) => outcome,
        Err(error) => {
            engine.undo_snapshot(&record).await;
            remove_dir(&dir).await?;
            return Err(error);
        }
    };
    match engine.finish_snapshot(record, &outcome, &Caller::system()).await {
        Ok(record) => {
            atoll_failpoint::fail_point!("engine.memory.saved");
            Ok(Saved { record, about, dir })
        }
        Err(error) => {
            remove_dir(&dir).await?;
            Err(error)
        }
    }
}

async fn copy(
    engine: &Engine,
    member: &Member,
    exec: &ExecRecord,
    about: &About,
    artifact: &SnapshotId,
) -> Result<SnapshotOutcome> {
    let driver = engine.inner.driver(member.recipe.spec.isolation)?;
    let taken = driver.snapshot_with_memory(&member.id, artifact).await;
    let taken = taken.map_err(|error| isolation_error(&error))?;
    atoll_failpoint::fail_point!("engine.memory.taken");
    // On the disk for good before anything says that it is there: half a memory must never run.
    let usage = driver.seal_artifact(artifact).await.map_err(|error| isolation_error(&error))?;
    let (log, dir) = (engine.inner.log_dir(&member.id, &exec.id), engine.inner.memory_dir(artifact));
    let about = about.clone();
    let kept = tokio::task::spawn_blocking(move || keep(&about, &log, &dir)).await;
    kept.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(|error| host_error(&error))?;
    atoll_failpoint::fail_point!("engine.memory.kept");
    Ok(SnapshotOutcome {
        stored_bytes: usage.stored_bytes,
        paused_us: Some(u64::try_from(taken.paused.as_micros()).unwrap_or(u64::MAX)),
        method: taken.method,
        digest: None,
        tags: Vec::new(),
    })
}

/// Writes down what belongs to a copy, on the disk for good.
fn keep(about: &About, log: &Path, dir: &Path) -> io::Result<()> {
    let kept = dir.join(LOG);
    std::fs::create_dir_all(&kept)?;
    copy_log(log, &kept)?;
    std::fs::write(dir.join(ABOUT), serde_json::to_vec(about)?)?;
    // Files before what names them.
    for place in [&kept, dir] {
        for entry in std::fs::read_dir(place)? {
            File::open(entry?.path())?.sync_all()?;
        }
        File::open(place)?.sync_all()?;
    }
    Ok(())
}

/// Copies a log that is not written any more. One that never had output has no directory.
pub(super) fn copy_log(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    std::fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

pub(super) async fn remove_dir(dir: &Path) -> Result<()> {
    match tokio::fs::remove_dir_all(dir).await {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(host_error(&error)),
        _ => Ok(()),
    }
}
