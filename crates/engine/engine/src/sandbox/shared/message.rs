//! Changes that tasks ask a sandbox's actor for.

use atoll_core::id::{NodeId, SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error, Result};
use atoll_store::SandboxRecord;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::SandboxShared;
use crate::travel::Upload;

/// A change that a task asks the actor for.
#[expect(clippy::large_enum_variant, reason = "few of them exist at a time, and none is kept")]
#[derive(Debug)]
pub(crate) enum Message {
    /// Change labels, lifetime or limits.
    Update(SandboxUpdate, oneshot::Sender<Result<SandboxRecord>>),
    /// Take it apart; answered when nothing is left.
    Delete(oneshot::Sender<Result<()>>),
    /// Put it back to a snapshot.
    Rollback(SnapshotId, oneshot::Sender<Result<SandboxRecord>>),
    /// Make it stand still.
    Pause(PauseMode, oneshot::Sender<Result<SandboxRecord>>),
    /// Let it go on.
    Resume(oneshot::Sender<Result<SandboxRecord>>),
    /// Give it to another node, with what was sent of it ahead; answered when nothing of it is here any more.
    Leave(NodeId, Option<Box<Upload>>, oneshot::Sender<Result<()>>),
    /// The link to the guest of this boot could not be made again.
    GuestLost(String, CancellationToken),
}

impl Message {
    /// Answers it with what is in the way.
    pub(in crate::sandbox) fn refuse(self, why: Result<()>) {
        let error = why.err().unwrap_or_else(|| Error::new(Code::InvalidState, "try again in a moment"));
        let told = match self {
            Self::Update(_, reply)
            | Self::Pause(_, reply)
            | Self::Resume(reply)
            | Self::Rollback(_, reply) => reply.send(Err(error)).is_ok(),
            Self::Delete(reply) | Self::Leave(_, _, reply) => reply.send(Err(error)).is_ok(),
            Self::GuestLost(..) => true,
        };
        if !told {
            tracing::debug!("nobody waits for the answer any more");
        }
    }
}

impl SandboxShared {
    pub(crate) async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T>>) -> Message,
    ) -> Result<T> {
        let gone = || {
            if self.shutdown.is_cancelled() {
                return Error::new(Code::ShuttingDown, "the server is shutting down");
            }
            if self.has_left() {
                return Self::has_gone();
            }
            SandboxId::not_found(self.id.as_str())
        };
        let (reply, answer) = oneshot::channel();
        self.queue.send(message(reply)).await.or(Err(gone()))?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Tells the actor something without waiting for it.
    pub(in crate::sandbox) async fn tell(&self, message: Message) {
        if self.queue.send(message).await.is_err() {
            tracing::debug!("a sandbox's actor has ended already");
        }
    }

    /// Ends everything in it, because that cannot be done by its agent.
    pub(crate) async fn give_up(&self, why: &str) {
        self.tell(Message::GuestLost(why.to_owned(), self.boot())).await;
    }

    /// The answer for what has gone to another node.
    pub(crate) fn has_gone() -> Error {
        Error::new(Code::NodeUnavailable, "the sandbox has just gone to another node").hint("try again")
    }
}
