//! Volumes: named storage that outlives sandboxes, mounted in several of them at once.
//!
//! A volume's row is written before anything of it is made and goes after the last of it is gone; what a crash leaves
//! in between is removed at the next start. The sandboxes themselves say which volumes they use. A sandbox enters the
//! table first and then looks whether its volumes are ready; a deletion marks the volume first and then looks whether a
//! sandbox has it: whichever of the two comes second sees the other.

mod files;
mod mounts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::error::shorten;
use atoll_core::id::{ProjectId, SandboxId, VolumeId};
use atoll_core::limits::VOLUMES_MAX_COUNT;
use atoll_core::sandbox::SandboxState;
use atoll_core::volume::{VolumeDraft, VolumeState};
use atoll_core::{Code, Error, Result};
use atoll_isolation::volumes::{VolumeError, VolumeUsage, Volumes};
use atoll_store::{StoreError, VolumeRecord, Whereabouts};

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::cluster;
use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, store_error};
use crate::projects::stored_in;

/// Users of a volume that a refusal names.
const USERS_SHOWN_COUNT: usize = 5;

/// Every volume, as it is stored.
#[derive(Debug, Default)]
pub(crate) struct VolumeTable(Mutex<BTreeMap<VolumeId, VolumeRecord>>);

impl VolumeTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeId, VolumeRecord>> {
        // One map: a panic leaves it usable as it is.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &VolumeId) -> Result<VolumeRecord> {
        let found = self.lock().get(id).cloned();
        found.filter(is_there).ok_or_else(|| missing(id.as_str(), id.as_str()))
    }

    /// Enters a volume that is about to be made, if there is room for it and its project has no other of its name.
    fn enter(&self, record: &VolumeRecord) -> Result<()> {
        let mut table = self.lock();
        if table.len() >= VOLUMES_MAX_COUNT {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("there are {VOLUMES_MAX_COUNT} volumes already"),
            )
            .hint("remove some with 'atoll volume rm'"));
        }
        if table.values().any(|other| other.name == record.name && other.project == record.project) {
            return Err(name_taken(&record.name));
        }
        table.insert(record.id.clone(), record.clone());
        Ok(())
    }

    /// Marks a volume that is ready as being removed: of several removals at once one goes on.
    fn begin_removal(&self, id: &VolumeId) -> Result<VolumeRecord> {
        let mut table = self.lock();
        let found = table.get_mut(id).filter(|found| is_there(found));
        let found = found.ok_or_else(|| missing(id.as_str(), id.as_str()))?;
        let record = ready(found.clone())?;
        found.state = VolumeState::Deleting;
        Ok(record)
    }

    fn set_state(&self, id: &VolumeId, state: VolumeState) {
        if let Some(record) = self.lock().get_mut(id) {
            record.state = state;
        }
    }
}

fn is_there(record: &VolumeRecord) -> bool {
    record.state != VolumeState::Deleting
}

/// The answer for what is not here; `kept` is how it would be found elsewhere.
fn missing(text: &str, kept: &str) -> Error {
    cluster::missing(Whereabouts::Volume(kept.to_owned()));
    VolumeId::not_found(text).hint("'atoll volume ls' shows what there is")
}

/// Whether a caller may know of a volume: all are shared, within their project.
fn sees(caller: &Caller, record: &VolumeRecord) -> bool {
    caller.is_admin() || caller.project() == record.project.as_ref()
}

/// A volume as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeView {
    /// The record.
    pub record: VolumeRecord,
    /// Its space, if it was measured.
    pub usage: Option<VolumeUsage>,
    /// Ids of the sandboxes that have it, as far as the caller may know of them.
    pub used_by: Vec<String>,
}

fn ready(record: VolumeRecord) -> Result<VolumeRecord> {
    if record.state == VolumeState::Ready {
        return Ok(record);
    }
    let name = &record.name;
    Err(Error::new(Code::InvalidState, format!("the volume '{name}' is {}", record.state.as_str())))
}

fn volume_error(error: &VolumeError) -> Error {
    match error {
        VolumeError::Gone => {
            tracing::error!("the data of a volume is not there");
            Error::new(Code::VolumeNotFound, "the volume's data is not there any more")
        }
        VolumeError::Host(error) => isolation_error(error),
        VolumeError::File(error) => files::file_error(error),
    }
}

impl Inner {
    /// The error of work on a volume. When the volume was removed meanwhile, the error says that.
    fn unless_removed(&self, id: &VolumeId, error: &VolumeError) -> Error {
        self.volumes.get(id).err().unwrap_or_else(|| volume_error(error))
    }

    fn volume_host(&self) -> Result<&Arc<dyn Volumes>> {
        self.config
            .volumes
            .as_ref()
            .ok_or_else(|| Error::new(Code::IsolationUnavailable, "this server has no place for volumes"))
    }

    /// Ids of the sandboxes that have a volume. Of one that failed nothing runs any more.
    fn users_of(&self, id: &VolumeId) -> Vec<SandboxId> {
        let mut users = Vec::new();
        for sandbox in self.all_sandboxes() {
            let record = sandbox.record();
            let has = record.spec.volumes.iter().any(|mount| mount.id == *id);
            if has && record.state != SandboxState::Failed {
                users.push(record.id);
            }
        }
        users
    }

    /// The error for a volume that is not in memory. A caller of a project learns of unreadable volumes of that project only.
    fn missing_volume(&self, caller: &Caller, text: &str) -> Error {
        let (kept, project) = (caller.kept(text), caller.project().map(ProjectId::as_str));
        let row = self.store.unreadable_named("volumes", &kept);
        match row.filter(|row| caller.is_admin() || row.of.as_deref() == project) {
            Some(row) => store_error(row.into()),
            None => missing(text, &kept),
        }
    }

    /// The volume with this id or name, if a caller may know of it. A name means that of its project; an administrator may also
    /// mean one of another project, when it is the only one.
    ///
    /// # Errors
    /// [`Code::VolumeNotFound`]; [`Code::InvalidArgument`] when several projects have one.
    pub(crate) fn volume_of(&self, caller: &Caller, id_or_name: &str) -> Result<VolumeRecord> {
        let named: Vec<VolumeRecord> = {
            let table = self.volumes.lock();
            match id_or_name.parse::<VolumeId>() {
                Ok(id) => table.get(&id).into_iter().cloned().collect(),
                Err(_) => table.values().filter(|record| record.name == id_or_name).cloned().collect(),
            }
        };
        let seen: Vec<VolumeRecord> =
            named.into_iter().filter(|record| is_there(record) && sees(caller, record)).collect();
        let own = seen.iter().find(|record| record.project.as_ref() == caller.project());
        match (own, seen.as_slice()) {
            (Some(found), _) | (None, [found]) => Ok(found.clone()),
            (None, []) => Err(self.missing_volume(caller, id_or_name)),
            (None, several) => {
                let ids: Vec<&str> = several.iter().map(|record| record.id.as_str()).collect();
                let why = format!("several projects have a volume of this name: {}", ids.join(", "));
                Err(Error::invalid("volume", why).hint("say its id"))
            }
        }
    }
}

impl Engine {
    /// Lets volumes go on that an earlier process left standing still: first of all, as a sandbox that waits for one
    /// can neither be asked nor ended.
    pub(crate) async fn thaw_volumes(&self) {
        if let Some(host) = &self.inner.config.volumes
            && let Err(error) = host.recover().await
        {
            tracing::error!(%error, "volumes may stand still");
        }
    }

    /// Takes up the volumes that an earlier process left: finishes what it had begun.
    pub(crate) async fn recover_volumes(&self) -> Result<()> {
        let inner = &self.inner;
        let Some(host) = &inner.config.volumes else { return Ok(()) };
        let mut known = BTreeMap::new();
        for record in inner.store.own_volumes().await.map_err(store_error)? {
            if record.state == VolumeState::Ready {
                known.insert(record.id.clone(), record);
                continue;
            }
            tracing::info!(volume = %record.name, state = record.state.as_str(), "removing what was left of a volume");
            if let Err(error) = self.remove_volume(&record.id).await {
                tracing::error!(volume = %record.name, %error, "a volume could not be removed");
                let record = VolumeRecord { state: VolumeState::Deleting, ..record };
                known.insert(record.id.clone(), record);
            }
        }
        self.remove_unknown_volumes(host).await?;
        *inner.volumes.lock() = known;
        Ok(())
    }

    /// Removes data that has no row. A volume's row comes first and goes last: no caller can mean such data. Data whose row
    /// cannot be read stays.
    async fn remove_unknown_volumes(&self, host: &Arc<dyn Volumes>) -> Result<()> {
        let there = host.list().await.map_err(|error| volume_error(&error))?;
        let known: BTreeSet<VolumeId> = match self.inner.store.volume_ids().await {
            Ok(known) => known.into_iter().collect(),
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(%error, "no data of unknown volumes is removed: it may be that row's");
                return Ok(());
            }
            Err(error) => return Err(store_error(error)),
        };
        for id in there.into_iter().filter(|id| !known.contains(id)) {
            tracing::info!(volume = %id, "removing the data of an unknown volume");
            if let Err(error) = host.remove(&id).await {
                tracing::error!(volume = %id, %error, "the data of an unknown volume could not be removed");
            }
        }
        Ok(())
    }

    /// Makes a volume, empty or with what another holds at this moment.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field; [`Code::NameTaken`]; [`Code::VolumeNotFound`] for the source;
    /// [`Code::LimitExceeded`]; what the host refuses. Nothing is left of one that could not be made.
    #[boxed]
    pub async fn create_volume(&self, draft: VolumeDraft, caller: &Caller) -> Result<VolumeView> {
        // To its end also when the caller stops waiting.
        let (engine, caller) = (self.clone(), caller.clone());
        let made = self.inner.tracker.spawn(async move { engine.make_volume(draft, &caller).await });
        made.await
            .unwrap_or_else(|_| Err(Error::new(Code::Internal, "the creation ended without an outcome")))
    }

    async fn make_volume(&self, draft: VolumeDraft, caller: &Caller) -> Result<VolumeView> {
        draft.validate()?;
        let inner = &self.inner;
        inner.disk.check()?;
        let host = inner.volume_host()?;
        let source = match &draft.from {
            Some(text) => Some(ready(inner.volume_of(caller, text)?)?),
            None => None,
        };
        let created_ms = inner.now_ms();
        let record = VolumeRecord {
            id: VolumeId::from_parts(created_ms, random()?),
            name: draft.name.clone(),
            // A copy stays where its original is, also when an administrator makes it.
            project: caller.project().or(source.as_ref().and_then(|source| source.project.as_ref())).cloned(),
            state: VolumeState::Creating,
            size_bytes: source.as_ref().map_or(draft.size(), |source| source.size_bytes),
            source: source.as_ref().map(|source| source.name.clone()),
            read_only: draft.read_only,
            owner: caller.key.clone(),
            created_ms,
        };
        inner.volumes.enter(&record)?;
        if let Err(error) = self.write_volume(&record, source.as_ref(), host).await {
            inner.volumes.set_state(&record.id, VolumeState::Deleting);
            if let Err(error) = self.remove_volume(&record.id).await {
                tracing::error!(volume = %record.name, %error, "a failed creation could not be undone yet");
            }
            return Err(error);
        }
        inner.volumes.set_state(&record.id, VolumeState::Ready);
        self.volume(&record.id, caller).await
    }

    /// Writes the row, then the data, then that the volume is ready.
    async fn write_volume(
        &self,
        record: &VolumeRecord,
        source: Option<&VolumeRecord>,
        host: &Arc<dyn Volumes>,
    ) -> Result<()> {
        let inner = &self.inner;
        inner.store.insert_volume(record).await.map_err(|error| match error {
            StoreError::NameTaken => name_taken(&record.name),
            error => stored_in(record.project.as_ref(), error),
        })?;
        atoll_failpoint::fail_point!("engine.volume.journalled");
        match source {
            Some(source) => {
                let copied = host.copy(&source.id, &record.id).await;
                copied.map_err(|error| inner.unless_removed(&source.id, &error))?;
            }
            None => {
                let created = host.create(&record.id, record.size_bytes).await;
                created.map_err(|error| volume_error(&error))?;
            }
        }
        atoll_failpoint::fail_point!("engine.volume.made");
        inner.store.set_volume_state(&record.id, VolumeState::Ready).await.map_err(store_error)?;
        Ok(())
    }

    /// Removes data and row, in this order: while the row is there a crash is made good.
    async fn remove_volume(&self, id: &VolumeId) -> Result<()> {
        let inner = &self.inner;
        inner.volume_host()?.remove(id).await.map_err(|error| volume_error(&error))?;
        atoll_failpoint::fail_point!("engine.volume.removed");
        inner.store.delete_volume(id).await.map_err(store_error)?;
        inner.volumes.lock().remove(id);
        Ok(())
    }

    /// Ids of the sandboxes that have a volume and that a caller may know of.
    fn seen_users_of(&self, id: &VolumeId, caller: &Caller) -> Vec<String> {
        let users = self.inner.users_of(id).into_iter();
        users.filter(|sandbox| self.sees(caller, sandbox)).map(Into::into).collect()
    }

    /// Every volume that a caller may know of, by name. Space is not measured.
    #[must_use]
    pub fn volumes(&self, caller: &Caller) -> Vec<VolumeView> {
        let mut records: Vec<VolumeRecord> = {
            let table = self.inner.volumes.lock();
            table.values().filter(|record| sees(caller, record)).cloned().collect()
        };
        records.sort_by(|a, b| a.name.cmp(&b.name));
        let view = |record: VolumeRecord| {
            let used_by = self.seen_users_of(&record.id, caller);
            VolumeView { record, usage: None, used_by }
        };
        records.into_iter().map(view).collect()
    }

    /// One volume, measured.
    ///
    /// # Errors
    /// [`Code::VolumeNotFound`].
    #[boxed]
    pub async fn volume(&self, id: &VolumeId, caller: &Caller) -> Result<VolumeView> {
        let record = self.inner.volumes.get(id)?;
        let usage = match record.state {
            VolumeState::Ready => {
                let usage = self.inner.volume_host()?.usage(&record.id).await;
                Some(usage.map_err(|error| self.inner.unless_removed(&record.id, &error))?)
            }
            VolumeState::Creating | VolumeState::Deleting => None,
        };
        let used_by = self.seen_users_of(&record.id, caller);
        Ok(VolumeView { record, usage, used_by })
    }

    /// Deletes a volume with everything in it.
    ///
    /// # Errors
    /// [`Code::VolumeNotFound`]; [`Code::VolumeBusy`], naming the sandboxes that have it, as far as the caller may
    /// know of them.
    #[boxed]
    pub async fn delete_volume(&self, id: &VolumeId, caller: &Caller) -> Result<()> {
        let inner = &self.inner;
        let record = inner.volumes.begin_removal(id)?;
        inner.make_room();
        let users = inner.users_of(&record.id);
        if !users.is_empty() {
            inner.volumes.set_state(&record.id, VolumeState::Ready);
            let seen = self.seen_users_of(&record.id, caller);
            return Err(busy(&record.name, &seen, users.len()));
        }
        if let Err(error) = inner.store.set_volume_state(&record.id, VolumeState::Deleting).await {
            // The volume stays usable and can be deleted again.
            inner.volumes.set_state(&record.id, VolumeState::Ready);
            return Err(store_error(error));
        }
        atoll_failpoint::fail_point!("engine.volume.marked");
        self.remove_volume(&record.id).await
    }
}

fn name_taken(name: &str) -> Error {
    Error::new(Code::NameTaken, format!("another volume is named '{}'", shorten(name)))
        .hint("choose another name, or remove the volume that has it")
}

/// `seen` are those of the `count` users that may be named.
fn busy(name: &str, seen: &[String], count: usize) -> Error {
    let mut users: Vec<String> = seen.iter().take(USERS_SHOWN_COUNT).cloned().collect();
    let more = count.saturating_sub(users.len());
    if more > 0 {
        users.push(format!("{more} {}", if users.is_empty() { "that you may not see" } else { "more" }));
    }
    Error::new(Code::VolumeBusy, format!("the volume '{name}' is mounted in sandboxes: {}", users.join(", ")))
        .hint("delete these sandboxes first")
}
