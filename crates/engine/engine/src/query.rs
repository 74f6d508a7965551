//! Looking at sandboxes and execs, changing and deleting them.

use std::collections::BTreeMap;

use atoll_core::exec::ExecState;
use atoll_core::id::{KeyId, ProjectId, SandboxId};
use atoll_core::limits::{PAGE_DEFAULT_COUNT, PAGE_MAX_COUNT};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error, Result};
use atoll_store::{Cursor, Page, SandboxFilter, SandboxRecord};

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::exec::ExecView;
use crate::sandbox::Message;

/// Which sandboxes to list.
#[derive(Debug, Clone, Default)]
pub struct SandboxQuery {
    /// In one of these states; all when empty.
    pub states: Vec<SandboxState>,
    /// With all of these labels.
    pub labels: BTreeMap<String, String>,
    /// With a name that begins so.
    pub name_prefix: Option<String>,
    /// Of this project, by id or name.
    pub project: Option<String>,
    /// Where the last page ended.
    pub cursor: Option<String>,
    /// Most items.
    pub limit: Option<u32>,
}

/// Which execs to list.
#[derive(Debug, Clone, Default)]
pub struct ExecQuery {
    /// In one of these states; all when empty.
    pub states: Vec<ExecState>,
    /// Where the last page ended.
    pub cursor: Option<String>,
    /// Most items.
    pub limit: Option<u32>,
}

pub(crate) fn cursor(text: Option<&str>) -> Result<Option<Cursor>> {
    text.map(str::parse).transpose().map_err(|error| {
        Error::invalid("cursor", error).hint("pass the 'next_cursor' of the last page as it is")
    })
}

pub(crate) fn limit(asked: Option<u32>) -> Result<u32> {
    let limit = asked.unwrap_or(PAGE_DEFAULT_COUNT);
    if (1..=PAGE_MAX_COUNT).contains(&limit) {
        return Ok(limit);
    }
    Err(Error::invalid("limit", format_args!("must lie between 1 and {PAGE_MAX_COUNT}")))
}

impl Engine {
    /// A sandbox as it is now.
    ///
    /// # Errors
    /// [`atoll_core::Code::SandboxNotFound`].
    pub fn sandbox(&self, id: &SandboxId) -> Result<SandboxRecord> {
        Ok(self.inner.sandbox(id)?.record())
    }

    /// The project that a listing is of, if one is said.
    pub(crate) fn project_filter(&self, text: Option<&str>, caller: &Caller) -> Result<Option<ProjectId>> {
        text.map(|text| Ok(self.seen_project(text, caller)?.id.clone())).transpose()
    }

    /// When a sandbox was made, milliseconds since 1970, whichever node has it: its id is older where it waited in a pool.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn made_ms(&self, id: &SandboxId) -> Result<Option<u64>> {
        let record = self.inner.store.sandbox(id).await.map_err(store_error)?;
        Ok(record.map(|record| record.created_ms))
    }

    /// Every sandbox with the key that made it.
    #[must_use]
    pub fn owners(&self) -> Vec<(SandboxId, Option<KeyId>)> {
        let all = self.inner.all_sandboxes();
        all.iter().map(|sandbox| (sandbox.id.clone(), sandbox.record().owner)).collect()
    }

    /// A page of the sandboxes that a caller may know of, newest first.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] for the cursor or the limit; [`Code::ProjectNotFound`].
    #[boxed]
    pub async fn sandboxes(&self, query: &SandboxQuery, caller: &Caller) -> Result<Page<SandboxRecord>> {
        let filter = SandboxFilter {
            states: query.states.clone(),
            labels: query.labels.clone(),
            name_prefix: query.name_prefix.clone(),
            visible_to: self.visible_to(caller),
            project: self.project_filter(query.project.as_deref(), caller)?,
            here: false,
        };
        let after = cursor(query.cursor.as_deref())?;
        let limit = limit(query.limit)?;
        let mut page =
            self.inner.store.list_sandboxes(&filter, after.as_ref(), limit).await.map_err(store_error)?;
        for record in &mut page.items {
            // Activity is published more often than it is stored.
            if let Some(shared) = self.inner.find(&record.id) {
                let now = shared.record();
                record.last_active_ms = now.last_active_ms;
                // That a sandbox cannot be worked with is not stored.
                if now.state == SandboxState::Failed {
                    (record.state, record.reason) = (now.state, now.reason);
                }
            }
        }
        Ok(page)
    }

    /// Changes labels, lifetime or limits.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`], [`atoll_core::Code::InvalidState`],
    /// [`atoll_core::Code::SandboxNotFound`].
    #[boxed]
    pub async fn update_sandbox(&self, id: &SandboxId, update: SandboxUpdate) -> Result<SandboxRecord> {
        let sandbox = self.inner.sandbox(id)?;
        for image in update.layers.values().flatten() {
            self.obtain_image(image).await?;
        }
        sandbox.ask(|reply| Message::Update(update, reply)).await
    }

    /// Makes a sandbox stand still; returns when it does. One that stands still already, or is on disk, stays so.
    ///
    /// # Errors
    /// [`Code::PauseUnavailable`] with what is in the way, [`Code::InvalidState`], [`Code::SandboxFailed`],
    /// [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn pause_sandbox(&self, id: &SandboxId, mode: PauseMode) -> Result<SandboxRecord> {
        let sandbox = self.inner.sandbox(id)?;
        sandbox.settled().await;
        sandbox.ask(|reply| Message::Pause(mode, reply)).await
    }

    /// Lets a paused sandbox go on; returns when it runs. One that runs stays so.
    ///
    /// # Errors
    /// [`Code::BudgetExhausted`], [`Code::InvalidState`], [`Code::SandboxFailed`], [`Code::SandboxNotFound`], or
    /// what the host refuses: then it stays paused.
    #[boxed]
    pub async fn resume_sandbox(&self, id: &SandboxId) -> Result<SandboxRecord> {
        let sandbox = self.inner.sandbox(id)?;
        drop(sandbox.usable().await?);
        Ok(sandbox.record())
    }

    /// Deletes a sandbox with everything in it; returns when nothing is left.
    ///
    /// # Errors
    /// [`atoll_core::Code::SandboxNotFound`], or what resists.
    #[boxed]
    pub async fn delete_sandbox(&self, id: &SandboxId) -> Result<()> {
        let sandbox = self.inner.sandbox(id)?;
        sandbox.delete().await
    }

    /// A page of a sandbox's execs, newest first.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] for the cursor or the limit,
    /// [`atoll_core::Code::SandboxNotFound`].
    #[boxed]
    pub async fn execs(
        &self,
        sandbox: &SandboxId,
        query: &ExecQuery,
    ) -> Result<(Vec<ExecView>, Option<String>)> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let after = cursor(query.cursor.as_deref())?;
        let limit = limit(query.limit)?;
        // The store calls an exec `starting` until it has ended; only its session knows more.
        let mut stored = query.states.clone();
        if stored.contains(&ExecState::Running) {
            stored.push(ExecState::Starting);
        }
        let page = self
            .inner
            .store
            .list_execs(&sandbox.id, &stored, after.as_ref(), limit)
            .await
            .map_err(store_error)?;
        let mut views = Vec::with_capacity(page.items.len());
        for record in page.items {
            let view = match sandbox.live_exec(&record.id) {
                Some(live) => live.view(),
                None if record.state.is_final() => self.ended_view(record).await?,
                // It ended, or its start failed, since the page was read.
                None => match self.exec(&sandbox.id, record.id.as_str()).await {
                    Ok(view) => view,
                    Err(error) if error.code == Code::ExecNotFound => continue,
                    Err(error) => return Err(error),
                },
            };
            if query.states.is_empty() || query.states.contains(&view.record.state) {
                views.push(view);
            }
        }
        Ok((views, page.next.map(|next| next.to_string())))
    }
}
