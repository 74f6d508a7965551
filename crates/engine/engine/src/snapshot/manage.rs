//! Looking at snapshots, naming and removing them.

use atoll_core::error::shorten;
use atoll_core::id::{ProjectId, SnapshotId};
use atoll_core::sharing::Needs;
use atoll_core::snapshot::{Purpose, Reference, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_store::{Page, SnapshotFilter, SnapshotRecord, StoreError, Whereabouts};

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::query;

use super::fork;

/// Which snapshots to list.
#[derive(Debug, Clone, Default)]
pub struct SnapshotQuery {
    /// Taken of this sandbox, by id or, while it lives, by name.
    pub sandbox: Option<String>,
    /// With a reference of this name.
    pub name: Option<String>,
    /// Only checkpoints, or (absent) none.
    pub checkpoints: bool,
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
    /// A page of the snapshots that a caller may know of, newest first. What is held by other things is not among
    /// them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for the cursor or the limit, [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn snapshots(&self, query: &SnapshotQuery, caller: &Caller) -> Result<Page<SnapshotRecord>> {
        let sandbox = match query.sandbox.as_deref() {
            // A sandbox may be gone while its snapshots are there: then it is known by its id.
            Some(text) => Some(match text.parse() {
                Ok(id) => id,
                Err(_) => self.seen_sandbox(caller, text).await?.id.clone(),
            }),
            None => None,
        };
        let filter = SnapshotFilter {
            sandbox,
            name: query.name.clone(),
            checkpoints: Some(query.checkpoints),
            held: false,
            visible_to: self.visible_to(caller),
            here: false,
        };
        let after = query::cursor(query.cursor.as_deref())?;
        let limit = query::limit(query.limit)?;
        self.inner.store.list_snapshots(&filter, after.as_ref(), limit).await.map_err(store_error)
    }

    /// The snapshot with this id, in any state.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`].
    #[boxed]
    pub async fn snapshot(&self, id: &SnapshotId) -> Result<SnapshotRecord> {
        let missing = || SnapshotId::not_found(id.as_str());
        let found = self.inner.store.snapshot(id).await.map_err(store_error)?.ok_or_else(missing)?;
        self.inner.must_be_here(Whereabouts::Snapshot(id.clone()), missing()).await?;
        Ok(found)
    }

    /// The snapshot with this id or reference, and that reference: of the caller's project. An administrator may also mean one
    /// of another project, when it is the only one. That of a fork under way is nobody's.
    pub(crate) async fn find_snapshot(
        &self,
        caller: &Caller,
        text: &str,
    ) -> Result<(SnapshotRecord, Option<Reference>)> {
        if let Ok(id) = text.parse::<SnapshotId>() {
            let found = self.inner.store.snapshot(&id).await.map_err(store_error)?;
            // The record of a fork's child names it. The child may get its disk itself: whoever had that open would see
            // what is done in the child, and who made something of it could find it gone.
            let found = found.filter(|found| !fork::holds(found));
            let found = found.ok_or_else(|| not_found(text))?;
            self.inner.must_be_here(Whereabouts::Snapshot(id), not_found(text)).await?;
            return Ok((found, None));
        }
        let reference: Reference = text.parse()?;
        let store = &self.inner.store;
        let mut found = store.tagged_snapshot(caller.project(), &reference).await.map_err(store_error)?;
        if found.is_none() && caller.is_admin() {
            found = match store.snapshots_tagged(&reference).await.map_err(store_error)?.as_slice() {
                [] => None,
                [one] => store.snapshot(one).await.map_err(store_error)?,
                several => {
                    let ids: Vec<&str> = several.iter().map(SnapshotId::as_str).collect();
                    let why = format!("several projects have a snapshot of this name: {}", ids.join(", "));
                    return Err(Error::invalid("snapshot", why).hint("say its id"));
                }
            };
        }
        let found = found.ok_or_else(|| not_found(text))?;
        self.inner.must_be_here(Whereabouts::Snapshot(found.id.clone()), not_found(text)).await?;
        Ok((found, Some(reference)))
    }

    /// The same, if it can be used.
    ///
    /// # Errors
    /// As [`Self::snapshot`]; one that is not made yet, or is being removed, is not found.
    #[boxed]
    pub async fn ready_snapshot(&self, id: &SnapshotId) -> Result<SnapshotRecord> {
        ready(self.snapshot(id).await?, id.as_str())
    }

    /// A snapshot that a caller names and may use for what it needs, if it can be used.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`], also for one that the caller may not know of; [`Code::Forbidden`],
    /// [`Code::SandboxLeased`].
    #[boxed]
    pub async fn usable_snapshot(&self, text: &str, needs: Needs, caller: &Caller) -> Result<SnapshotRecord> {
        let (record, _found, permission) = self.seen_snapshot(caller, text).await?;
        permission.allow(needs)?;
        ready(record, text)
    }

    /// Whether a snapshot is private: as its sandbox is, or as that was when it went.
    pub(crate) fn is_private_snapshot(&self, record: &SnapshotRecord) -> bool {
        let sandbox = record.sandbox.as_ref().and_then(|id| self.inner.find(id));
        sandbox.map_or(record.private, |sandbox| self.inner.acl.is_private(&sandbox.id))
    }

    /// Makes a reference point to a snapshot; it leaves what it pointed to before.
    ///
    /// # Errors
    /// As [`Self::ready_snapshot`]; [`Code::InvalidArgument`] for a snapshot that is not for people;
    /// [`Code::NameTaken`] when what it points to is not the caller's to change.
    #[boxed]
    pub async fn tag_snapshot(
        &self,
        id: &SnapshotId,
        reference: &Reference,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let found = self.ready_snapshot(id).await?;
        if let Purpose::Held(by) = &found.purpose {
            return Err(Error::invalid("snapshot", format_args!("it belongs to {by}")));
        }
        {
            let _turn = self.inner.snapshots.naming.lock().await;
            self.check_references(found.project.as_ref(), std::slice::from_ref(reference), caller).await?;
            self.inner.store.tag_snapshot(reference, &found.id).await.map_err(|error| match error {
                StoreError::NotFound => SnapshotId::not_found(id.as_str()),
                other => store_error(other),
            })?;
        }
        self.snapshot(&found.id).await
    }

    /// Refuses references of a project, or of none, that point to a snapshot which the caller may not change: a caller
    /// that makes sandboxes of a name must not get what another caller put there. A task that moves the references
    /// afterwards holds [`super::Snapshots::naming`] from before this.
    pub(super) async fn check_references(
        &self,
        project: Option<&ProjectId>,
        references: &[Reference],
        caller: &Caller,
    ) -> Result<()> {
        for reference in references {
            let found = self.inner.store.tagged_snapshot(project, reference).await.map_err(store_error)?;
            let Some(found) = found else { continue };
            let permission = self.permission_on(caller, &found);
            if permission.is_none_or(|permission| permission.allow(Needs::MANAGE).is_err()) {
                return Err(Error::new(
                    Code::NameTaken,
                    format!("'{reference}' names a snapshot that is not yours to change"),
                )
                .hint("choose another name or tag"));
            }
        }
        Ok(())
    }

    /// Removes a snapshot with all of its references; or, of several, the one by which it is named. Sandboxes made
    /// from it go on.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`]; [`Code::Forbidden`]; [`Code::SnapshotInUse`] with what uses it.
    #[boxed]
    pub async fn delete_snapshot(
        &self,
        id: &SnapshotId,
        named: Option<&Reference>,
        caller: &Caller,
    ) -> Result<RemovedSnapshot> {
        self.inner.make_room();
        let found = self.snapshot(id).await?;
        let permission = self.permission_on(caller, &found);
        permission.ok_or_else(|| SnapshotId::not_found(id.as_str()))?.allow(Needs::MANAGE)?;
        if let Some(one) = named
            && (found.tags.len() > 1 || found.purpose.checkpoint().is_some())
        {
            self.inner.store.untag_snapshot(one, id).await.map_err(store_error)?;
            return Ok(RemovedSnapshot { tags: vec![one.clone()], snapshot: None });
        }
        self.refuse_if_used(&found).await?;
        self.delete_unused_snapshot(&found).await?;
        Ok(RemovedSnapshot { tags: found.tags, snapshot: Some(found.id) })
    }

    /// Removes a snapshot without a look at what uses it: for the code that holds it.
    ///
    /// # Errors
    /// What resists. Nothing to remove is no error.
    #[boxed]
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
    #[boxed]
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
        // What a row says that cannot be read is not known: it may be that it stands on this snapshot.
        let rollbacks = self.inner.store.rollbacks().await.map_err(store_error)?;
        for table in ["templates", "rollbacks"] {
            let unreadable = self.inner.store.unreadable_of(table);
            let rows = unreadable.remembered().iter();
            users.extend(
                rows.map(|row| format!("perhaps the row {} of {table}, which cannot be read", row.id)),
            );
            if unreadable.overflowed() {
                users.push(format!("perhaps another row of {table} that cannot be read"));
            }
        }
        users.extend(
            rollbacks
                .into_iter()
                .filter(|(_, snapshot)| *snapshot == found.id)
                .map(|(sandbox, _)| format!("the sandbox {sandbox}, which is being put back to it")),
        );
        Ok(users)
    }
}

fn ready(found: SnapshotRecord, named: &str) -> Result<SnapshotRecord> {
    let why = match found.state {
        SnapshotState::Ready => return Ok(found),
        SnapshotState::Creating => "is still being made",
        SnapshotState::Deleting => "is being removed",
    };
    Err(Error::new(Code::SnapshotNotFound, format!("the snapshot '{}' {why}", shorten(named))))
}

/// The answer for what is not there, or not to be known, whichever way it was named.
pub(crate) fn not_found(text: &str) -> Error {
    Error::new(Code::SnapshotNotFound, format!("no snapshot '{}'", shorten(text)))
        .hint("'atoll snapshot ls' shows what there is")
}
