//! Listing sandboxes.

use atoll_core::sandbox::SandboxState;
use atoll_dialect_kit::sandboxes::{self, Place};
use atoll_engine::SandboxQuery;
use atoll_server::dialect::Host;
use atoll_store::SandboxRecord;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Query, Read, Root};
use crate::view::{self, Sandbox};

/// The sandboxes to list, by any of the clients' ways to name them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct List {
    cursor: Option<String>,
    limit: Option<u32>,
    page_size: Option<u32>,
    offset: Option<usize>,
    name_contains: Option<String>,
    label: Vec<String>,
    status: Option<String>,
}

/// A listing, in both shapes: hand-written clients read `sandboxes`, generated ones `items`.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    sandboxes: Vec<Value>,
    items: Vec<Value>,
    next_cursor: Option<String>,
    offset: usize,
}

impl List {
    fn states(&self) -> Result<Vec<SandboxState>> {
        Ok(match self.status.as_deref() {
            None => Vec::new(),
            Some("provisioning") => vec![SandboxState::Creating, SandboxState::Resuming],
            Some("ready") => vec![SandboxState::Running],
            Some("stopped") => vec![SandboxState::Pausing, SandboxState::Paused],
            Some("failed") => vec![SandboxState::Failed],
            Some("deleting") => vec![SandboxState::Deleting],
            Some(other) => return Err(Failure::field("status", format_args!("no status '{other}'"))),
        })
    }

    fn matches(&self, record: &SandboxRecord) -> bool {
        let named = self
            .name_contains
            .as_ref()
            .is_none_or(|part| view::name(record).to_lowercase().contains(&part.to_lowercase()));
        named
            && self.label.iter().all(|wanted| match wanted.split_once('=') {
                Some((key, value)) => record.labels.get(key).is_some_and(|found| found == value),
                None => record.labels.contains_key(wanted),
            })
    }
}

/// Lists sandboxes. Without a page, lists all: the hand-written clients ask for no further page.
pub(crate) async fn list(
    caller: Caller<Read>,
    root: Root,
    State(host): State<Host>,
    Query(query): Query<List>,
) -> Result<Json<Page>> {
    let wanted = SandboxQuery { states: query.states()?, ..SandboxQuery::default() };
    let cursor = query.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let after = cursor.map(str::parse::<Place>).transpose();
    let page = sandboxes::Page {
        after: after.map_err(|_other| Failure::field("cursor", "is not the next_cursor of a page"))?,
        skip: query.offset.unwrap_or_default(),
        limit: query.limit.or(query.page_size).map(|limit| limit.max(1) as usize),
        ..sandboxes::Page::default()
    };
    let (engine, by) = (host.engine(), caller.engine());
    let listed = sandboxes::list(engine, wanted, &page, by, |record| query.matches(record)).await;
    let (found, more) = listed.map_err(|error| Failure::control(&error))?;
    let next_cursor = found.last().filter(|_| more).map(|last| Place::of(last).to_string());
    let objects = found.into_iter().map(|record| serde_json::to_value(Sandbox::new(record, &root)));
    let items: Vec<Value> = objects.filter_map(std::result::Result::ok).collect();
    Ok(Json(Page { sandboxes: items.clone(), items, next_cursor, offset: query.offset.unwrap_or_default() }))
}
