//! The task of one build, from its creation to its end, and what becomes of builds that a crash interrupted.

use std::sync::Arc;
use std::time::Duration;

use atoll_build::recipe::Recipe;
use atoll_core::build::{BuildEvent, BuildFailure, BuildState};
use atoll_core::id::{BuildId, TemplateId};
use atoll_core::limits::{BUILD_CONTEXT_WAIT_MS, BUILD_CONTEXT_WHOLE_MS, BUILD_TIMEOUT_DEFAULT_MS};
use atoll_core::sharing::Needs;
use atoll_core::spec::TemplateSpec;
use atoll_core::{Code, Error, Result};
use atoll_store::{BuildRecord, TemplateRecord};

use super::context::Context;
use super::journal::Journal;
use super::live::{Live, Upload};
use super::run::Run;
use crate::authorize::{Caller, Grant};
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::rooms::{Place, Who};

/// Builds read at once at the start.
const PAGE: u32 = 1000;
/// Pause before an end that could not be recorded is recorded again.
const RECORD_AGAIN: Duration = Duration::from_secs(1);

/// How a build's work ended.
enum Outcome {
    Made(Box<TemplateSpec>),
    Failed(BuildFailure),
    Cancelled,
    /// The server stops.
    Stopped,
}

/// Drives a build to its end, at the latest until its key may build no more. It has the place among builds that have not ended,
/// until nothing of it is left: neither a thread that unpacks its context, nor what that made.
pub(super) async fn drive(engine: Engine, live: Arc<Live>, recipe: Recipe, caller: Caller, place: Place) {
    let shutdown = engine.inner.shutdown.clone();
    let may_build = Grant::to_work(&caller, Needs::MANAGE);
    let outcome = tokio::select! {
        biased;
        () = shutdown.cancelled() => Outcome::Stopped,
        () = live.cancel.cancelled() => Outcome::Cancelled,
        () = engine.until_revoked(&may_build) => Outcome::Failed(refused().into()),
        made = work(&engine, &live, &recipe, &caller) => match made {
            Ok(template) => Outcome::Made(Box::new(template)),
            Err(failure) => Outcome::Failed(failure),
        },
    };
    let stopped = matches!(outcome, Outcome::Stopped);
    if !stopped {
        engine.delete_build_sandboxes(&live.id).await;
    }
    finish(&engine, &live, outcome, &caller).await;
    engine.inner.builds.live().remove(&live.id);
    live.cancel.cancel();
    live.until_no_upload().await;
    drop(tokio::fs::remove_dir_all(engine.inner.build_dir(&live.id).join("context")).await);
    drop(place);
    if !stopped {
        engine.tidy_build_cache();
    }
}

/// Waits for the context and for room, then runs the steps.
async fn work(
    engine: &Engine,
    live: &Arc<Live>,
    recipe: &Recipe,
    caller: &Caller,
) -> Result<TemplateSpec, BuildFailure> {
    let context = context(live).await?;
    set_state(engine, live, BuildState::Queued, None).await?;
    let _room = engine.inner.builds.running.wait(Who::of(caller)).await;
    set_state(engine, live, BuildState::Running, Some(engine.now_ms())).await?;
    atoll_failpoint::fail_point!("engine.build.running");
    let limit_ms = live.record().spec.timeout_ms.unwrap_or(BUILD_TIMEOUT_DEFAULT_MS);
    let run = Run::new(engine, live, recipe, &context, caller);
    match engine.inner.clock.timeout(Duration::from_millis(limit_ms), Box::pin(run.run())).await {
        Some(made) => {
            // It may have become another's meanwhile.
            engine.check_template_is_own(&live.record().spec.name, caller).await?;
            made
        }
        None => {
            let message = format!("the build did not end within {} seconds", limit_ms.div_ceil(1000));
            Err(Error::new(Code::Timeout, message).hint("give it more time (timeout_ms)").into())
        }
    }
}

async fn context(live: &Live) -> Result<Arc<Context>> {
    let whole = Duration::from_millis(BUILD_CONTEXT_WHOLE_MS);
    let here = tokio::time::timeout(whole, until_here(live)).await;
    here.ok().flatten().ok_or_else(|| {
        Error::new(Code::Timeout, "the context did not come")
            .hint("send it with PUT /v1/builds/{id}/context, as a tar stream")
    })
}

/// The context; nothing when nobody begins to send it. One that breaks off, or is refused, may be sent again.
async fn until_here(live: &Live) -> Option<Arc<Context>> {
    let mut upload = live.upload.subscribe();
    let wait = Duration::from_millis(BUILD_CONTEXT_WAIT_MS);
    loop {
        // The sender is in `live`, which we hold: it does not go away.
        let begun = async { drop(upload.wait_for(|upload| !matches!(upload, Upload::Absent)).await) };
        tokio::time::timeout(wait, begun).await.ok()?;
        drop(upload.wait_for(|upload| !matches!(upload, Upload::Coming)).await);
        if let Upload::Here(context) = &*upload.borrow() {
            return Some(Arc::clone(context));
        }
    }
}

async fn set_state(engine: &Engine, live: &Live, state: BuildState, started_ms: Option<u64>) -> Result<()> {
    let before = live.record();
    let record = BuildRecord { state, started_ms, ..before.clone() };
    if !engine.inner.store.update_build(&record, &[before.state]).await.map_err(store_error)? {
        return Err(Error::new(Code::Internal, "the build was changed by somebody else"));
    }
    live.publish(record);
    Ok(())
}

/// Records how it ended. What is not recorded is not told.
async fn finish(engine: &Engine, live: &Live, outcome: Outcome, caller: &Caller) {
    let mut outcome = outcome;
    loop {
        match record_end(engine, live, &outcome, caller).await {
            Ok(record) => {
                *engine.inner.builds.counts().ended.entry(record.state).or_default() += 1;
                return live.publish(record);
            }
            Err(error) if error.code == Code::Internal => outcome = Outcome::Failed(error.into()),
            Err(error) => {
                tracing::error!(build = %live.id, %error, "the end of a build could not be recorded, trying again");
                tokio::select! {
                    () = tokio::time::sleep(RECORD_AGAIN) => {}
                    // The next start records it.
                    () = engine.inner.shutdown.cancelled() => return,
                }
            }
        }
    }
}

async fn record_end(engine: &Engine, live: &Live, outcome: &Outcome, caller: &Caller) -> Result<BuildRecord> {
    let before = live.record();
    let ended_ms = engine.now_ms();
    let mut record = BuildRecord { ended_ms: Some(ended_ms), ..before.clone() };
    match outcome {
        Outcome::Made(template) => {
            let made = TemplateRecord {
                id: TemplateId::from_parts(ended_ms, random()?),
                name: record.spec.name.clone(),
                version: 0,
                spec: TemplateSpec::clone(template),
                created_ms: ended_ms,
                created_by: caller.key.clone(),
            };
            let done = engine.inner.store.complete_build(&live.id, &made, &record.spec.tags, ended_ms).await;
            let version = done.map_err(store_error)?;
            let version = version
                .ok_or_else(|| Error::new(Code::Internal, "the build was changed by somebody else"))?;
            atoll_failpoint::fail_point!("engine.build.committed");
            engine.inner.templates_changed();
            record.state = BuildState::Succeeded;
            record.template_version = Some(version);
        }
        Outcome::Failed(failure) => {
            record.state = BuildState::Failed;
            record.failure = Some(failure.clone());
        }
        Outcome::Cancelled => {
            record.state = BuildState::Cancelled;
            record.failure = Some(Error::new(Code::BuildCancelled, "the build was cancelled").into());
        }
        Outcome::Stopped => {
            record.state = BuildState::Failed;
            record.failure = Some(interrupted().into());
        }
    }
    if record.state != BuildState::Succeeded {
        engine.inner.store.update_build(&record, &[before.state]).await.map_err(store_error)?;
    }
    if let Err(error) = live.journal.write(&end(&record)).await {
        tracing::warn!(build = %live.id, %error, "the log of a build lacks its end");
    }
    Ok(record)
}

fn end(record: &BuildRecord) -> BuildEvent {
    BuildEvent::End {
        at_ms: record.ended_ms.unwrap_or_default(),
        state: record.state,
        template: record.template_version.map(|version| format!("{}:{version}", record.spec.name)),
        failure: record.failure.clone(),
    }
}

fn refused() -> Error {
    let message = "the API key that began the build does not work any more, or may not build any more";
    Error::new(Code::Unauthorized, message).hint("build again with another key")
}

fn interrupted() -> Error {
    Error::new(Code::BuildInterrupted, "the server ended while the build ran")
        .hint("build again: it goes on after the last step that was kept")
}

impl Engine {
    /// Deletes the sandboxes that a build's steps ran in.
    async fn delete_build_sandboxes(&self, id: &BuildId) {
        for sandbox in self.inner.all_sandboxes() {
            if sandbox.record().spec.build.as_ref() == Some(id)
                && let Err(error) = self.delete_sandbox(&sandbox.id).await
                && error.code != Code::SandboxNotFound
            {
                tracing::error!(build = %id, sandbox = %sandbox.id, %error, "a build's sandbox could not be deleted");
            }
        }
    }

    /// Builds of an earlier process: marked, their sandboxes deleted, what they left collected.
    pub(crate) async fn recover_builds(&self) -> Result<()> {
        let open = [BuildState::Waiting, BuildState::Queued, BuildState::Running];
        loop {
            let builds = self.inner.store.own_builds(&open, PAGE).await.map_err(store_error)?;
            if builds.is_empty() {
                break;
            }
            for record in builds {
                self.interrupt(record).await?;
            }
        }
        let ours: Vec<_> =
            self.inner.all_sandboxes().into_iter().filter(|one| one.record().spec.build.is_some()).collect();
        let engine = self.clone();
        self.inner.tracker.spawn(async move {
            for sandbox in ours {
                if let Err(error) = engine.delete_sandbox(&sandbox.id).await {
                    tracing::error!(sandbox = %sandbox.id, %error, "a build's sandbox could not be deleted");
                }
            }
        });
        self.collect_build_snapshots().await
    }

    /// Ends the builds of a node that was taken over.
    pub(crate) async fn interrupt_left_builds(&self) -> Result<()> {
        let open = [BuildState::Waiting, BuildState::Queued, BuildState::Running];
        for record in self.inner.store.own_builds(&open, PAGE).await.map_err(store_error)? {
            if !self.inner.builds.live().contains_key(&record.id) {
                self.interrupt(record).await?;
            }
        }
        Ok(())
    }

    async fn interrupt(&self, before: BuildRecord) -> Result<()> {
        tracing::warn!(build = %before.id, "a build was interrupted");
        let record = BuildRecord {
            state: BuildState::Failed,
            failure: Some(interrupted().into()),
            ended_ms: Some(self.inner.now_ms()),
            ..before.clone()
        };
        let journal = Journal::open(&self.inner.build_log_dir(&record.id), &self.inner.clock);
        let written = match journal {
            Ok(journal) => journal.write(&end(&record)).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = written {
            tracing::warn!(build = %record.id, error, "the log of a build lacks its end");
        }
        drop(tokio::fs::remove_dir_all(self.inner.build_dir(&record.id).join("context")).await);
        self.inner.store.update_build(&record, &[before.state]).await.map_err(store_error)?;
        Ok(())
    }
}
