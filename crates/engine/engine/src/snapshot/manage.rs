//! Looking at snapshots, naming and removing them.

use atoll_core::error::shorten;
use atoll_core::id::{KeyId, SnapshotId};
use atoll_core::key::Scope;
use atoll_core::snapshot::{Purpose, Reference, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_store::{Page, SnapshotFilter, SnapshotRecord, StoreError};

use crate::engine::Engine;
use crate::errors::store_error;
use crate::query;

/// Which snapshots to list.
#[derive(Debug, Clone, Default)]
pub struct SnapshotQuery {
    /// Taken of this sandbox, by id or, while it lives, by name.
    pub sandbox: Option<String>,
    /// With a reference of this name.
    pub name: Option<String>,
    /// Only checkpoints, or (absent) none.
    pub checkpoints: bool,
    /// Visible to this key; all when absent.
    pub visible_to: Option<KeyId>,
    /// Where the last page ended.
    pub cursor: Option<String>,
    /// Most items.
    pub limit: Option<u32>,
}

/// What a removal did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedSnapshot {
    /// References that are gone.
    pub tags: Vec<Reference>,
    /// The snapshot, if it is gone too and not only one of its references.
    pub snapshot: Option<SnapshotId>,
}

impl Engine {
    /// A page of snapshots, newest first. What is held by other things is not among them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for the cursor or the limit, [`Code::SandboxNotFound`].
    pub async fn snapshots(&self, query: &SnapshotQuery) -> Result<Page<SnapshotRecord>> {
        let sandbox = match query.sandbox.as_deref() {
            // A sandbox may be gone while its snapshots are there.
            Some(text) => Some(match self.inner.sandbox(text) {
                Ok(sandbox) => sandbox.id.clone(),
                Err(error) => text.parse().or(Err(error))?,
            }),
            None => None,
        };
        let filter = SnapshotFilter {
            sandbox,
            name: query.name.clone(),
            checkpoints: Some(query.checkpoints),
            held: false,
            visible_to: query.visible_to.clone(),
        };
        let after = query::cursor(query.cursor.as_deref())?;
        let limit = query::limit(query.limit)?;
        self.inner.store.list_snapshots(&filter, after.as_ref(), limit).await.map_err(store_error)
    }

    /// The snapshot with this id or reference, in whatever state it is.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`], [`Code::InvalidArgument`] for what can be neither.
    pub async fn snapshot(&self, text: &str) -> Result<SnapshotRecord> {
        if let Ok(id) = text.parse::<SnapshotId>() {
            return self.snapshot_by_id(&id).await;
        }
        let reference: Reference = text.parse()?;
        let found = self.inner.store.tagged_snapshot(&reference).await.map_err(store_error)?;
        found.ok_or_else(|| no_snapshot(text))
    }

    /// Refuses a key that may not know of a snapshot; one that is not there passes. `None` sees all.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`], as for one that is not there; [`Code::StoreUnavailable`].
    pub async fn check_sees_snapshot(&self, key: Option<&KeyId>, text: &str) -> Result<()> {
        let Some(key) = key else { return Ok(()) };
        let admin = self.verified_by_id(key).is_some_and(|key| key.scope == Scope::Admin);
        let found = match self.snapshot(text).await {
            Ok(found) => found,
            // What is not there, or cannot be a name, is for the caller to say.
            Err(error) if matches!(error.code, Code::SnapshotNotFound | Code::InvalidArgument) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if admin || self.inner.store.snapshot_is_visible(&found.id, key).await.map_err(store_error)? {
            return Ok(());
        }
        Err(match text.parse::<SnapshotId>() {
            Ok(id) => SnapshotId::not_found(id.as_str()),
            Err(_) => no_snapshot(text),
        })
    }

    pub(crate) async fn snapshot_by_id(&self, id: &SnapshotId) -> Result<SnapshotRecord> {
        let found = self.inner.store.snapshot(id).await.map_err(store_error)?;
        found.ok_or_else(|| SnapshotId::not_found(id.as_str()))
    }

    /// The same, if it can be used.
    ///
    /// # Errors
    /// As [`Self::snapshot`]; one that is not made yet, or is being removed, is not found.
    pub async fn ready_snapshot(&self, text: &str) -> Result<SnapshotRecord> {
        let found = self.snapshot(text).await?;
        match found.state {
            SnapshotState::Ready => Ok(found),
            SnapshotState::Creating => Err(Error::new(
                Code::SnapshotNotFound,
                format!("the snapshot '{}' is still being made", shorten(text)),
            )),
            SnapshotState::Deleting => Err(Error::new(
                Code::SnapshotNotFound,
                format!("the snapshot '{}' is being removed", shorten(text)),
            )),
        }
    }

    /// Makes a reference point to a snapshot, whatever it pointed to before.
    ///
    /// # Errors
    /// As [`Self::ready_snapshot`]; [`Code::InvalidArgument`] for a snapshot that is not for people.
    pub async fn tag_snapshot(&self, text: &str, reference: &Reference) -> Result<SnapshotRecord> {
        let found = self.ready_snapshot(text).await?;
        if let Purpose::Held(by) = &found.purpose {
            return Err(Error::invalid("snapshot", format_args!("it belongs to {by}")));
        }
        self.inner.store.tag_snapshot(reference, &found.id).await.map_err(|error| match error {
            StoreError::NotFound => SnapshotId::not_found(text),
            other => store_error(other),
        })?;
        self.snapshot_by_id(&found.id).await
    }

    /// Removes a snapshot with all of its references, by its id; or one reference, and the snapshot with its
    /// last one. Sandboxes made from it go on.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`]; [`Code::SnapshotInUse`] with who uses it.
    pub async fn delete_snapshot(&self, text: &str) -> Result<RemovedSnapshot> {
        self.inner.make_room();
        let found = self.snapshot(text).await?;
        let one: Option<Reference> = text.parse::<SnapshotId>().is_err().then(|| text.parse()).transpose()?;
        if let Some(one) = one
            && (found.tags.len() > 1 || found.purpose.checkpoint().is_some())
        {
            self.inner.store.untag_snapshot(&one).await.map_err(store_error)?;
            return Ok(RemovedSnapshot { tags: vec![one], snapshot: None });
        }
        self.refuse_if_used(&found).await?;
        self.delete_unused_snapshot(&found).await?;
        Ok(RemovedSnapshot { tags: found.tags, snapshot: Some(found.id) })
    }

    /// Removes a snapshot whatever uses it: for who holds it.
    ///
    /// # Errors
    /// What resists. Nothing to remove is no error.
    pub async fn delete_unused_snapshot(&self, found: &SnapshotRecord) -> Result<()> {
        if self.inner.store.mark_snapshot_deleting(&found.id).await.map_err(store_error)? {
            atoll_failpoint::fail_point!("engine.snapshot.marked");
            self.remove_snapshot(found).await?;
        }
        Ok(())
    }

    async fn refuse_if_used(&self, found: &SnapshotRecord) -> Result<()> {
        let users = self.snapshot_users(found).await?;
        if users.is_empty() {
            return Ok(());
        }
        let text = users.join(", ");
        Err(Error::new(Code::SnapshotInUse, format!("the snapshot is used by {text}"))
            .hint("remove what uses it first"))
    }

    /// What stands on a snapshot, for people.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    pub async fn snapshot_users(&self, found: &SnapshotRecord) -> Result<Vec<String>> {
        let mut users = Vec::new();
        if let Purpose::Held(by) = &found.purpose {
            users.push(by.clone());
        }
        for template in self.inner.store.list_templates(None).await.map_err(store_error)? {
            if template.spec.snapshot.as_ref() == Some(&found.id) {
                users.push(format!("the template {}:{}", template.name, template.version));
            }
        }
        let rollbacks = self.inner.store.rollbacks().await.map_err(store_error)?;
        users.extend(
            rollbacks
                .into_iter()
                .filter(|(_, snapshot)| *snapshot == found.id)
                .map(|(sandbox, _)| format!("the sandbox {sandbox}, which is being put back to it")),
        );
        Ok(users)
    }
}

fn no_snapshot(text: &str) -> Error {
    Error::new(Code::SnapshotNotFound, format!("no snapshot '{}'", shorten(text)))
        .hint("'atoll snapshot ls' shows what there is")
}
