//! Waiting until a sandbox can be used: made, taken up, awake, and here.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::sandbox::{Admission, SandboxState, Wish, admit};
use atoll_core::{Code, Error, Result};
use atoll_store::SandboxRecord;
use tokio_util::sync::CancellationToken;

use super::super::freezer::InUse;
use super::{Message, SandboxShared};

/// How long a use waits for a sandbox to wake.
const WAKE_WAIT: Duration = Duration::from_secs(60);
/// How long a request waits for a sandbox that is on its way to another node.
const LEAVE_WAIT: Duration = Duration::from_secs(60);

impl SandboxShared {
    /// Waits, not for ever, while it is on its way to another node. Says whether it was.
    pub(crate) async fn has_settled_here(&self) -> bool {
        if !self.is_leaving() {
            return false;
        }
        let mut leaving = self.leaving.subscribe();
        // The sender lives as long as this.
        drop(tokio::time::timeout(LEAVE_WAIT, leaving.wait_for(|leaving| !leaving)).await);
        true
    }

    /// Waits until the creation has ended.
    pub(crate) async fn made(&self) -> Result<SandboxRecord> {
        self.settled()
            .await
            .unwrap_or_else(|| Err(Error::new(Code::Internal, "the creation ended without an outcome")))?;
        Ok(self.record())
    }

    /// Waits until the sandbox is what its record says: made, or taken up with its execs.
    pub(crate) async fn settled(&self) -> Option<Result<()>> {
        let mut made = self.made.subscribe();
        made.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone())
    }

    /// Admits a use. Waits for a creation under way, and for a paused sandbox to wake: all callers that come meanwhile
    /// wait for the same resume.
    pub(crate) async fn usable(self: &Arc<Self>) -> Result<InUse> {
        self.disk.check()?;
        let using = self.in_use();
        self.settled().await;
        tokio::time::timeout(WAKE_WAIT, self.awake()).await.unwrap_or_else(|_| {
            Err(Error::new(Code::Timeout, "the sandbox does not wake up").hint("try again in a moment"))
        })?;
        self.meter.count_request();
        Ok(using)
    }

    /// Admits a look. Unlike a use it wakes nothing: `None` for a sandbox that is paused, or on its way there or back. Waits
    /// for a creation under way.
    pub(crate) async fn lookable(self: &Arc<Self>) -> Result<Option<InUse>> {
        let using = self.in_use();
        self.settled().await;
        loop {
            match self.admit_use()? {
                Admission::Proceed if self.rouse().await? => {
                    self.meter.count_request();
                    return Ok(Some(using));
                }
                Admission::Proceed => {}
                Admission::Join => drop(self.made().await?),
                Admission::Wake => return Ok(None),
            }
        }
    }

    fn admit_use(&self) -> Result<Admission> {
        let record = self.record.borrow();
        admit(record.state, Wish::Use, record.reason.as_deref())
    }

    async fn awake(&self) -> Result<()> {
        loop {
            match self.admit_use()? {
                Admission::Proceed if self.rouse().await? => return Ok(()),
                Admission::Proceed => {}
                Admission::Join => drop(self.made().await?),
                Admission::Wake => drop(self.ask(Message::Resume).await?),
            }
        }
    }

    /// The error of work that needed the sandbox as it was at its boot `boot`. When the sandbox was deleted, died, was
    /// paused or was put back meanwhile, the host's failure is no failure, and the error says what happened.
    pub(crate) fn unless_ended(&self, boot: &CancellationToken, error: Error) -> Error {
        if !matches!(error.code, Code::Internal | Code::SandboxFailed) {
            return error;
        }
        match self.admit_use() {
            Err(ended) => ended,
            Ok(Admission::Proceed) if !boot.is_cancelled() => error,
            Ok(Admission::Proceed | Admission::Join | Admission::Wake) if self.dead.is_cancelled() => {
                Error::new(Code::SandboxFailed, "the sandbox died")
            }
            Ok(Admission::Proceed | Admission::Join | Admission::Wake) => {
                Error::new(Code::InvalidState, "the sandbox was paused or put back meanwhile")
                    .hint("try again")
            }
        }
    }

    /// Does `work`, during which the sandbox may be paused: then it is woken, so that the work can end.
    pub(crate) async fn keep_awake<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        let mut record = self.record.subscribe();
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                lives = async { record.wait_for(|now| now.state == SandboxState::Paused).await.is_ok() } => {
                    if !lives {
                        return Ok(work.await);
                    }
                }
            }
            tokio::time::timeout(WAKE_WAIT, self.awake())
                .await
                .unwrap_or_else(|_| Err(Error::new(Code::Timeout, "the sandbox does not wake up")))?;
        }
    }
}
