//! Measuring sandboxes, recording what they used, and answering for it.

use std::collections::BTreeMap;

use atoll_core::id::{KeyId, ProjectId, SandboxId};
use atoll_core::limits::USAGE_KEPT_MS;
use atoll_core::sandbox::SandboxState;
use atoll_core::usage::Usage;
use atoll_core::{Error, Result};
use atoll_store::{SandboxRecord, UsageFilter, UsageMark, UsageRow};
use futures::StreamExt as _;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::errors::{chain, store_error};
use crate::sandbox::SandboxShared;

use super::meter::Look;

/// Sandboxes that are measured at the same time.
const AT_ONCE_MAX_COUNT: usize = 4;

/// What one line of an answer stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UsageGroup {
    /// Everything.
    Total,
    /// One sandbox.
    #[default]
    Sandbox,
    /// One key.
    Key,
    /// One project.
    Project,
    /// One hour.
    Hour,
}

/// Which usage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Of this sandbox, by id or name. One that is gone is known by its id.
    pub sandbox: Option<String>,
    /// On account of this key.
    pub key: Option<KeyId>,
    /// In this project, by id or name.
    pub project: Option<String>,
    /// In hours that end after this, milliseconds since the epoch.
    pub from_ms: Option<u64>,
    /// In hours that begin before this.
    pub to_ms: Option<u64>,
    /// Added up by.
    pub group: UsageGroup,
}

/// One line of an answer. A field by which the answer is not grouped is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageItem {
    /// The sandbox.
    pub sandbox: Option<SandboxId>,
    /// The key; absent, too, for what no key asked for.
    pub key: Option<KeyId>,
    /// The project; absent, too, for what is in none.
    pub project: Option<ProjectId>,
    /// When the hour began.
    pub hour_ms: Option<u64>,
    /// How much.
    pub used: Usage,
}

impl Engine {
    /// What was used, up to now, as far as a caller may see it: what is on its own account, and of sandboxes that are
    /// there and visible to it.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`], [`atoll_core::Code::StoreUnavailable`].
    #[boxed]
    pub async fn usage(&self, query: &UsageQuery, caller: &Caller) -> Result<Vec<UsageItem>> {
        if let (Some(from), Some(to)) = (query.from_ms, query.to_ms)
            && from >= to
        {
            return Err(Error::invalid("from_ms", "must be before 'to_ms'"));
        }
        let sandbox = match &query.sandbox {
            // By its id it may be gone; what it used is not.
            Some(text) => Some(match text.parse() {
                Ok(id) => id,
                Err(_) => self.seen_sandbox(caller, text).await?.id.clone(),
            }),
            None => None,
        };
        match sandbox.as_ref().map(|id| self.inner.find(id)) {
            Some(Some(sandbox)) => settle(&self.inner, &sandbox).await,
            Some(None) => {}
            None => settle_all(&self.inner).await,
        }
        let filter = UsageFilter {
            sandbox,
            key: query.key.clone(),
            project: self.project_filter(query.project.as_deref(), caller)?,
            from_ms: query.from_ms,
            to_ms: query.to_ms,
        };
        let only = caller.key().filter(|_| !caller.is_admin());
        let (mut groups, mut seen, mut after) = (BTreeMap::new(), BTreeMap::new(), None);
        loop {
            // A listing is of all that there is, however much: only the groups are kept.
            let (rows, next) = self.inner.store.usage(&filter, after.as_ref()).await.map_err(store_error)?;
            after = next;
            let visible = |row: &UsageRow| {
                only.is_none_or(|key| {
                    row.key.as_ref() == Some(key)
                        || *seen.entry(row.sandbox.clone()).or_insert_with_key(|id| self.sees(caller, id))
                })
            };
            group(&mut groups, rows.into_iter().filter(visible), query.group);
            if after.is_none() {
                return Ok(items(groups));
            }
        }
    }
}

/// What a line stands for, as far as lines are told apart: only one of them is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    hour_ms: Option<u64>,
    sandbox: Option<SandboxId>,
    key: Option<KeyId>,
    project: Option<ProjectId>,
}

fn group(groups: &mut BTreeMap<Group, Usage>, rows: impl Iterator<Item = UsageRow>, by: UsageGroup) {
    for row in rows {
        let group = match by {
            UsageGroup::Total => Group::default(),
            UsageGroup::Sandbox => Group { sandbox: Some(row.sandbox), ..Group::default() },
            UsageGroup::Key => Group { key: row.key, ..Group::default() },
            UsageGroup::Project => Group { project: row.project, ..Group::default() },
            UsageGroup::Hour => Group { hour_ms: Some(row.hour_ms), ..Group::default() },
        };
        groups.entry(group).or_default().add(&row.used);
    }
}

fn items(groups: BTreeMap<Group, Usage>) -> Vec<UsageItem> {
    let item =
        |(Group { hour_ms, sandbox, key, project }, used)| UsageItem { sandbox, key, project, hour_ms, used };
    // The newest first, as in every listing: ids begin with their time.
    groups.into_iter().rev().map(item).collect()
}

/// Begins to measure a new sandbox.
pub(crate) fn begin(inner: &Inner, sandbox: &SandboxShared) {
    sandbox.meter.begin(UsageMark { cpu_us: 0, at_ms: inner.now_ms() }, &Usage::default());
}

/// Begins measuring a sandbox that worked before it had an owner: what it used until now is on no key's account.
pub(crate) async fn begin_claimed(inner: &Inner, sandbox: &SandboxShared) {
    let used = sandbox.driver().usage(&sandbox.id).await.map_or(0, |usage| usage.cpu_us);
    let carried = inner.gateway.transferred(&sandbox.id).unwrap_or_default();
    sandbox.meter.begin(UsageMark { cpu_us: used, at_ms: inner.now_ms() }, &Usage::default());
    sandbox.meter.skip_egress(carried.sent_bytes);
}

/// Takes up measuring where an earlier process ended.
pub(crate) async fn load(inner: &Inner, sandbox: &SandboxShared, record: &SandboxRecord) -> Result<()> {
    let mark = inner.store.usage_mark(&record.id).await.map_err(store_error)?;
    let lifetime = inner.store.usage_of(&record.id).await.map_err(store_error)?;
    sandbox.meter.begin(mark.unwrap_or(UsageMark { cpu_us: 0, at_ms: record.created_ms }), &lifetime);
    Ok(())
}

/// Measures a sandbox now; gives what it used in its whole life.
pub(crate) async fn measure(inner: &Inner, sandbox: &SandboxShared) -> Usage {
    if let Some(carried) = inner.gateway.transferred(&sandbox.id) {
        sandbox.meter.see_egress(carried.sent_bytes);
    }
    let state = sandbox.state();
    let looks = matches!(
        state,
        SandboxState::Running | SandboxState::Pausing | SandboxState::Paused | SandboxState::Deleting
    );
    if looks && let Ok(usage) = sandbox.driver().usage(&sandbox.id).await {
        let stood_still = sandbox.freezer.stood_still().as_millis();
        sandbox.meter.measure(Look {
            at_ms: inner.now_ms(),
            running: state != SandboxState::Paused,
            stood_still_ms: u64::try_from(stood_still).unwrap_or(u64::MAX),
            cpu_us: usage.cpu_us,
            memory_bytes: usage.memory_bytes,
            disk_bytes: usage.disk_bytes,
        });
    }
    sandbox.meter.lifetime()
}

/// Measures a sandbox and records what it used. What cannot be recorded now is recorded the next time.
pub(crate) async fn settle(inner: &Inner, sandbox: &SandboxShared) {
    measure(inner, sandbox).await;
    let (used, mark) = sandbox.meter.take();
    if used.is_empty() {
        return;
    }
    let project = sandbox.record().project;
    let added = inner.store.add_usage(&sandbox.id, project.as_ref(), &used, mark, inner.now_ms());
    if let Err(error) = added.await {
        tracing::warn!(sandbox = %sandbox.id, error = chain(&error), "usage cannot be recorded now");
        sandbox.meter.give_back(used);
        return;
    }
    for used in used.values() {
        inner.count_usage(used);
    }
}

pub(super) async fn settle_all(inner: &Inner) {
    let sandboxes = inner.all_sandboxes();
    futures::stream::iter(sandboxes)
        .for_each_concurrent(AT_ONCE_MAX_COUNT, |sandbox| async move { settle(inner, &sandbox).await })
        .await;
}

pub(super) async fn prune(inner: &Inner) {
    if let Err(error) = inner.store.prune_usage(inner.now_ms().saturating_sub(USAGE_KEPT_MS)).await {
        tracing::warn!(error = chain(&error), "old usage cannot be removed");
    }
}
