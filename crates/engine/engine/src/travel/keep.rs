//! The task that copies a sandbox after it was put to disk: only a move of the sandbox waits for it.

use std::sync::Arc;
use std::time::Duration;

use atoll_store::SandboxRecord;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::send::{Of, Upload};
use super::{Travel, bound_here};
use crate::engine::Inner;

/// Shortest and longest pause before what failed is tried again.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// A copy that is being made. Its sandbox is woken only after [`Keeping::stop`].
#[derive(Debug)]
pub(crate) struct Keeping {
    stop: CancellationToken,
    task: JoinHandle<()>,
    outcome: watch::Receiver<Outcome>,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// On its way. The last attempt failed for this reason, if there was one.
    UnderWay(Option<String>),
    /// Whole, since this moment.
    Kept(u64),
}

impl Keeping {
    /// Begins to copy a sandbox, where there is a place for it and it may go elsewhere. Something of it may have been sent
    /// `ahead`.
    pub(crate) fn begin(
        inner: &Arc<Inner>,
        record: &SandboxRecord,
        ahead: Option<Box<Upload>>,
    ) -> Option<Self> {
        let travel = Arc::clone(inner.travel.as_ref()?);
        if bound_here(record).is_some() {
            return None;
        }
        let stop = inner.shutdown.child_token();
        let (said, outcome) = watch::channel(Outcome::UnderWay(None));
        let work = keep(travel, Arc::clone(inner), record.clone(), ahead, stop.clone(), said);
        Some(Self { stop, task: inner.tracker.spawn(work), outcome })
    }

    /// Stops it. When this returns nothing of the disk is looked at any more that would be recorded, and nothing is recorded.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that copies a sandbox panicked");
        }
    }

    /// Waits until the copy is whole; gives since when it is.
    pub(crate) async fn kept(&mut self) -> u64 {
        let whole = self.outcome.wait_for(|outcome| matches!(outcome, Outcome::Kept(_))).await;
        match whole.ok().and_then(|outcome| outcome.kept()) {
            Some(since) => since,
            // It was stopped.
            None => std::future::pending().await,
        }
    }

    /// Waits until the copy is whole, or an attempt has failed.
    pub(crate) async fn tried(&mut self) -> Result<u64, String> {
        let tried = self.outcome.wait_for(|outcome| *outcome != Outcome::UnderWay(None)).await;
        let outcome = tried.map(|outcome| outcome.clone());
        match outcome {
            Ok(Outcome::Kept(since)) => Ok(since),
            Ok(Outcome::UnderWay(Some(why))) => Err(why),
            Ok(Outcome::UnderWay(None)) | Err(_) => Err("the copy was given up".to_owned()),
        }
    }
}

impl Outcome {
    const fn kept(&self) -> Option<u64> {
        match self {
            Self::Kept(since) => Some(*since),
            Self::UnderWay(_) => None,
        }
    }
}

async fn keep(
    travel: Arc<Travel>,
    inner: Arc<Inner>,
    record: SandboxRecord,
    mut ahead: Option<Box<Upload>>,
    stop: CancellationToken,
    said: watch::Sender<Outcome>,
) {
    let mut pause = RETRY_MIN;
    loop {
        match travel.send(&inner, &record, Of::Asleep(ahead.take()), &stop).await {
            Ok(Some(since)) => {
                said.send_replace(Outcome::Kept(since));
                return;
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(sandbox = %record.id, %error, "a sandbox is not copied yet, trying again");
                said.send_replace(Outcome::UnderWay(Some(error.message)));
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}
