//! Listing devboxes.

use atoll_core::id::SandboxId;
use atoll_dialect_kit::sandboxes::{self, Page, Place};
use atoll_engine::SandboxQuery;
use atoll_store::SandboxRecord;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{status, view};
use crate::App;
use crate::error::{Failure, Result};
use crate::ids;
use crate::request::{Caller, Json, Query, Read};

/// Items of a page when the client gives no number, and at most.
pub(crate) const PAGE_COUNT: usize = 20;
pub(crate) const PAGE_MAX_COUNT: usize = 5000;
/// A page of things that clients describe ends with the one with which it has so many bytes.
pub(crate) const PAGE_MAX_BYTES: usize = 8 << 20;
/// Every status.
const STATUSES: [&str; 10] = [
    "scheduled",
    "queued",
    "provisioning",
    "initializing",
    "running",
    "suspending",
    "suspended",
    "resuming",
    "failure",
    "shutdown",
];

/// The devboxes that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct List {
    limit: Option<i64>,
    starting_after: Option<String>,
    status: Option<String>,
    include_total_count: Option<bool>,
}

/// The number of items that a page has.
///
/// # Errors
/// 400.
pub(crate) fn limit(asked: Option<i64>) -> Result<usize> {
    match asked {
        None | Some(0) => Ok(PAGE_COUNT),
        Some(limit) => usize::try_from(limit)
            .map(|limit| limit.min(PAGE_MAX_COUNT))
            .map_err(|_negative| Failure::bad("limit: must not be negative")),
    }
}

/// Checks that a word is a status.
pub(super) fn known(word: &str) -> Result<()> {
    if STATUSES.contains(&word) {
        return Ok(());
    }
    Err(Failure::bad(format!("there is no devbox status '{}'", atoll_core::error::shorten(word))))
}

/// `GET /v1/devboxes`: the devboxes that have not ended, newest first.
pub(super) async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let limit = limit(query.limit)?;
    let wanted = query.status.filter(|word| !word.is_empty());
    wanted.as_deref().map_or(Ok(()), known)?;
    let after = query.starting_after.filter(|after| !after.is_empty()).map(|after| ids::sandbox(&after));
    if after.as_deref().is_some_and(|after| after == SandboxId::from_parts(0, 0).as_str()) {
        return Err(Failure::bad("starting_after: is no id of a devbox"));
    }
    let engine = app.host.engine();
    let after = match after.as_deref().and_then(|after| after.parse().ok()) {
        Some(id) => Some(Place::of_id(engine, id).await.map_err(|error| Failure::of(&error))?),
        None => None,
    };
    let matches = |record: &SandboxRecord| wanted.as_deref().is_none_or(|word| status(&app, record) == word);
    let page = Page { after, limit: Some(limit), ..Page::default() };
    let found = sandboxes::list(engine, SandboxQuery::default(), &page, caller.engine(), matches).await;
    let (records, more) = found.map_err(|error| Failure::of(&error))?;
    let items: Vec<Value> = records.iter().map(|record| view(&app, record)).collect();
    let mut answer = json!({"devboxes": items, "has_more": more});
    if query.include_total_count.unwrap_or(true) {
        let all =
            sandboxes::list(engine, SandboxQuery::default(), &Page::default(), caller.engine(), matches)
                .await;
        answer["total_count"] = all.map_err(|error| Failure::of(&error))?.0.len().into();
    }
    Ok(Json(answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(limit(None).unwrap(), PAGE_COUNT);
        assert_eq!(limit(Some(7)).unwrap(), 7);
        assert_eq!(limit(Some(i64::MAX)).unwrap(), PAGE_MAX_COUNT);
        assert!(limit(Some(-1)).is_err());
    }
}
