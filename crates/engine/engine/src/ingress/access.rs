//! Making, checking and taking back accesses.

use std::sync::Arc;

use atoll_core::access::{AccessDraft, Target};
use atoll_core::id::{AccessId, SandboxId};
use atoll_core::limits::ACCESSES_MAX_COUNT;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_store::AccessRecord;
use atoll_vault::AccessToken;
use tokio_util::sync::CancellationToken;

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;

use super::cache::Entry;

/// An access, for readers.
pub type Access = AccessRecord;

/// A new access, with its token.
#[derive(Debug)]
pub struct NewAccess {
    /// The record.
    pub record: Access,
    /// What to present; `None` when it is public. Not kept anywhere.
    pub token: Option<Secret>,
}

/// An access that was presented, or is public, and is good.
#[derive(Debug, Clone)]
pub struct VerifiedAccess {
    pub(super) entry: Arc<Entry>,
}

impl VerifiedAccess {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &AccessId {
        &self.entry.record.id
    }

    /// The sandbox.
    #[must_use]
    pub fn sandbox(&self) -> &SandboxId {
        &self.entry.record.sandbox
    }

    /// What to.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.entry.record.target
    }

    /// When it ends, milliseconds since the epoch.
    #[must_use]
    pub fn expires_ms(&self) -> Option<u64> {
        self.entry.record.expires_ms
    }

    /// Whether it was taken back, or its time is over.
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        self.entry.revoked.is_cancelled() || self.entry.is_over(now_ms)
    }

    /// Fires when it is taken back.
    #[must_use]
    pub fn revoked(&self) -> CancellationToken {
        self.entry.revoked.clone()
    }
}

impl Engine {
    /// Makes an access to a port or file of a sandbox, in any state of the sandbox.
    ///
    /// # Errors
    /// An error of the draft; [`Code::SandboxNotFound`]; [`Code::LimitExceeded`].
    #[boxed]
    pub async fn create_access(
        &self,
        sandbox: &SandboxId,
        draft: AccessDraft,
        caller: &Caller,
    ) -> Result<NewAccess> {
        draft.validate()?;
        let sandbox = self.inner.sandbox(sandbox)?;
        let created_ms = self.inner.now_ms();
        self.prune_accesses(created_ms).await?;
        if self.inner.share_links.of(&sandbox.id).len() >= ACCESSES_MAX_COUNT {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("the sandbox has {ACCESSES_MAX_COUNT} accesses already"),
            )
            .hint("take some back, or give them an end"));
        }
        let token = if draft.public { None } else { Some(new_token()?) };
        let record = AccessRecord {
            id: AccessId::from_parts(created_ms, random()?),
            sandbox: sandbox.id.clone(),
            target: draft.target,
            name: draft.name,
            hash: token.as_ref().map(|token| token.hash().to_vec()),
            created_ms,
            created_by: caller.key.clone(),
            expires_ms: draft.ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
        };
        let gone = |_| SandboxId::not_found(sandbox.id.as_str());
        match self.inner.store.insert_access(&record).await {
            Err(atoll_store::StoreError::NotFound) => return Err(gone(())),
            other => other.map_err(store_error)?,
        }
        self.inner.share_links.put(record.clone());
        Ok(NewAccess { record, token: token.map(|token| token.text().clone()) })
    }

    /// Forgets accesses that have ended or whose sandbox is gone.
    async fn prune_accesses(&self, now: u64) -> Result<()> {
        self.inner.share_links.prune(now, |id| self.inner.find(id).is_some());
        self.inner.store.prune_accesses(now).await.map_err(store_error)
    }

    /// The accesses of a sandbox, the oldest first; those that have ended are not among them.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub fn accesses(&self, sandbox: &SandboxId) -> Result<Vec<Access>> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let now = self.inner.now_ms();
        let mut records = self.inner.share_links.of(&sandbox.id);
        records.retain(|record| record.expires_ms.is_none_or(|end| end > now));
        Ok(records)
    }

    /// Takes an access back: its token stops working at once, connections through it are cut.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::AccessNotFound`].
    #[boxed]
    pub async fn revoke_access(&self, sandbox: &SandboxId, access: &str) -> Result<()> {
        let id: AccessId = access.parse()?;
        let there = self.accesses(sandbox)?.iter().any(|record| record.id == id);
        if !there {
            return Err(AccessId::not_found(access));
        }
        self.inner.share_links.remove(&id);
        self.inner.store.delete_access(&id).await.map_err(store_error)?;
        Ok(())
    }

    /// Verifies a token that a client presented. Whether it is for what the client wants is for the caller
    /// to see: [`VerifiedAccess::sandbox`] and [`VerifiedAccess::target`].
    ///
    /// # Errors
    /// [`Code::Unauthorized`], which does not say in which way it is wrong.
    pub fn verify_access(&self, presented: &str) -> Result<VerifiedAccess> {
        let token = AccessToken::parse(presented).map_err(|_malformed| refused())?;
        let entry = self.inner.share_links.by_hash(&token.hash()).ok_or_else(refused)?;
        if entry.is_over(self.inner.now_ms()) || self.inner.find(&entry.record.sandbox).is_none() {
            return Err(refused());
        }
        Ok(VerifiedAccess { entry })
    }

    /// The access of a sandbox with this id, if it is good now. That the client may use it is for the caller to see.
    ///
    /// # Errors
    /// [`Code::Unauthorized`], which does not say in which way it is wrong.
    pub fn live_access(&self, sandbox: &SandboxId, id: &AccessId) -> Result<VerifiedAccess> {
        let entry = self.inner.share_links.by_id(sandbox, id).ok_or_else(refused)?;
        if entry.is_over(self.inner.now_ms()) || self.inner.find(sandbox).is_none() {
            return Err(refused());
        }
        Ok(VerifiedAccess { entry })
    }

    /// The public access to a port of a sandbox (id or name), if there is one.
    #[must_use]
    pub fn public_access(&self, sandbox: &SandboxId, port: u16) -> Option<VerifiedAccess> {
        let sandbox = self.inner.sandbox(sandbox).ok()?;
        let entry = self.inner.share_links.public(&sandbox.id, port, self.inner.now_ms())?;
        Some(VerifiedAccess { entry })
    }
}

fn refused() -> Error {
    Error::new(Code::Unauthorized, "the token is not valid, or no longer")
        .hint("ask for a new link; 'atoll port url' makes one")
}

fn new_token() -> Result<AccessToken> {
    AccessToken::generate().map_err(|error| {
        tracing::error!(%error, "no randomness for a token");
        Error::new(Code::Internal, "the host's random generator failed")
    })
}
