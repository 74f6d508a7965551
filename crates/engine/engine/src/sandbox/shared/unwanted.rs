//! Asking for a sandbox's end. The actor serves one request after another; what it does for a use of the sandbox, and what may
//! take as long as somebody outside likes, must not keep those waiting who want the sandbox deleted.

use atoll_core::{Code, Error, Result};
use tokio::sync::watch;

use super::{Message, SandboxShared};

/// How many tasks wait for the deletion.
#[derive(Debug, Default)]
pub(super) struct Unwanted(watch::Sender<usize>);

/// One of these, until it is dropped.
struct Waiting<'a>(&'a Unwanted);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Unwanted {
    fn wait(&self) -> Waiting<'_> {
        self.0.send_modify(|count| *count += 1);
        Waiting(self)
    }

    /// Does `work` as long as nobody waits for the deletion.
    async fn unless<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut waiting = self.0.subscribe();
        tokio::select! {
            biased;
            done = work => done,
            // The sender lives as long as this.
            _unwanted = async { waiting.wait_for(|count| *count > 0).await.is_ok() } => {
                Err(Error::new(Code::InvalidState, "the sandbox is being deleted"))
            }
        }
    }
}

impl SandboxShared {
    /// Has the actor take the sandbox apart; returns when nothing is left.
    pub(crate) async fn delete(&self) -> Result<()> {
        let _waiting = self.unwanted.wait();
        self.ask(Message::Delete).await
    }

    /// Does a part of what the actor does, which may take long, and gives it up when somebody wants the sandbox deleted.
    ///
    /// # Errors
    /// What `work` fails with; [`Code::InvalidState`] when it was given up.
    pub(in crate::sandbox) async fn unless_unwanted<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.unwanted.unless(work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_takes_long_is_given_up_while_a_deletion_waits() {
        let unwanted = Unwanted::default();
        let mut long = Box::pin(unwanted.unless(std::future::pending::<Result<()>>()));
        assert!(futures::poll!(&mut long).is_pending());
        let (first, second) = (unwanted.wait(), unwanted.wait());
        drop(first);
        assert_eq!(long.await.unwrap_err().code, Code::InvalidState, "one of two still waits");
        assert_eq!(unwanted.unless(async { Ok(1) }).await.unwrap(), 1, "what is done is done");
        drop(second);
        let mut long = Box::pin(unwanted.unless(std::future::pending::<Result<()>>()));
        assert!(futures::poll!(&mut long).is_pending(), "nobody waits for it any more");
    }
}
