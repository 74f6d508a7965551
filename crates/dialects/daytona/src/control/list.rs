//! Listing sandboxes, by pages whose cursor is the place of the last sandbox of the page before.

use std::collections::BTreeMap;

use atoll_dialect_kit::request::Caller;
use atoll_dialect_kit::sandboxes::{self, Place};
use atoll_dialect_kit::uuid;
use atoll_engine::SandboxQuery;
use atoll_store::SandboxRecord;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::GIB;
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Json, Query, Root};
use crate::view;
use crate::who::Read;

/// Items of a page when the client gives no number.
const PAGE: usize = 100;
/// Most items of a page.
const PAGE_MAX: usize = 200;

/// The sandboxes that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct List {
    cursor: Option<String>,
    limit: Option<i64>,
    id: Option<String>,
    name: Option<String>,
    labels: Option<String>,
    states: Vec<String>,
    snapshots: Vec<String>,
    #[serde(rename = "isPublic")]
    is_public: Option<bool>,
    sort: Option<String>,
    order: Option<String>,
    #[serde(rename = "minCpu")]
    min_cpu: Option<u32>,
    #[serde(rename = "maxCpu")]
    max_cpu: Option<u32>,
    #[serde(rename = "minMemoryGiB")]
    min_memory: Option<u64>,
    #[serde(rename = "maxMemoryGiB")]
    max_memory: Option<u64>,
    #[serde(rename = "minDiskGiB")]
    min_disk: Option<u64>,
    #[serde(rename = "maxDiskGiB")]
    max_disk: Option<u64>,
    // Filters that this server does not apply are refused: a list that ignores them would show too much.
    #[serde(rename = "createdAtAfter")]
    created_after: Option<String>,
    #[serde(rename = "createdAtBefore")]
    created_before: Option<String>,
    #[serde(rename = "lastEventAfter")]
    event_after: Option<String>,
    #[serde(rename = "lastEventBefore")]
    event_before: Option<String>,
    #[serde(rename = "autoDestroyAtAfter")]
    destroy_after: Option<String>,
    #[serde(rename = "autoDestroyAtBefore")]
    destroy_before: Option<String>,
}

/// The conditions of a listing.
struct Filter {
    labels: BTreeMap<String, String>,
    states: Vec<String>,
    snapshots: Vec<String>,
    name: Option<String>,
    id: Option<String>,
    public: Option<bool>,
    /// Least and most cores, GiB of memory, GiB of disk.
    sizes: [(Option<u64>, Option<u64>); 3],
}

/// Lists come as `a,b` or as `a` and `b`.
fn words(lists: &[String]) -> Vec<String> {
    let words = lists.iter().flat_map(|list| list.split(',')).map(str::trim);
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

impl List {
    fn filter(&self) -> Result<Filter> {
        let times = [&self.created_after, &self.created_before, &self.event_after, &self.event_before];
        if times.iter().chain(&[&self.destroy_after, &self.destroy_before]).any(|time| time.is_some()) {
            return Err(crate::unsupported(
                "listing by time",
                "list all, and look at createdAt and lastActivityAt",
            ));
        }
        let labels = match self.labels.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => serde_json::from_str(text)
                .map_err(|_malformed| Failure::bad("labels: must be a JSON object of texts"))?,
            None => BTreeMap::new(),
        };
        Ok(Filter {
            labels,
            states: words(&self.states),
            snapshots: words(&self.snapshots),
            name: self.name.clone().filter(|name| !name.is_empty()),
            id: self.id.clone().filter(|id| !id.is_empty()),
            public: self.is_public,
            sizes: [
                (self.min_cpu.map(Into::into), self.max_cpu.map(Into::into)),
                (self.min_memory, self.max_memory),
                (self.min_disk, self.max_disk),
            ],
        })
    }

    fn limit(&self) -> Result<usize> {
        let Some(asked) = self.limit else { return Ok(PAGE) };
        let limit = usize::try_from(asked).ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
        limit.ok_or_else(|| Failure::bad(format!("limit: must lie between 1 and {PAGE_MAX}")))
    }

    /// The newest come first, even when the client asks for another order, unless it wants the oldest first.
    fn ascending(&self) -> bool {
        let by_time = self.sort.as_deref().is_none_or(|sort| sort == "createdAt");
        by_time && self.order.as_deref() == Some("asc")
    }
}

impl Filter {
    fn matches(&self, record: &SandboxRecord) -> bool {
        // The sandboxes that build templates are not shown to clients.
        if record.spec.build.is_some() {
            return false;
        }
        let extras = Extras::of(record);
        let own = extras::labels(record);
        let snapshot = extras.snapshot.as_deref().unwrap_or(&record.spec.image);
        let among = |words: &[String], word: &str| words.is_empty() || words.iter().any(|one| one == word);
        let resources = &record.spec.resources;
        let has: [u64; 3] = [
            resources.cpu_millis.div_ceil(1000).into(),
            resources.memory_bytes.div_ceil(GIB),
            resources.disk_bytes.div_ceil(GIB),
        ];
        let fits = |((least, most), has): (&(Option<u64>, Option<u64>), u64)| {
            least.is_none_or(|least| has >= least) && most.is_none_or(|most| has <= most)
        };
        self.sizes.iter().zip(has).all(fits)
            && self.labels.iter().all(|(key, value)| own.get(key) == Some(value))
            && among(&self.states, view::state(record))
            && among(&self.snapshots, snapshot)
            && self
                .name
                .as_ref()
                .is_none_or(|name| view::name(record).starts_with(&name.to_ascii_lowercase()))
            && self
                .id
                .as_ref()
                .is_none_or(|id| uuid::of_sandbox(&record.id).starts_with(&id.to_ascii_lowercase()))
            && self.public.is_none_or(|public| extras.public == public)
    }
}

/// One page.
pub(super) async fn list(
    caller: Caller<Read>,
    root: Root,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let (filter, limit) = (query.filter()?, query.limit()?);
    let after = match query.cursor.as_deref().filter(|cursor| !cursor.is_empty()) {
        Some(cursor) => Some(
            cursor
                .parse::<Place>()
                .map_err(|_other| Failure::bad("cursor: pass the nextCursor of the last page as it is"))?,
        ),
        None => None,
    };
    let wanted = SandboxQuery::default();
    let matches = |record: &SandboxRecord| filter.matches(record);
    let (found, more) = if query.ascending() {
        let everything = sandboxes::Page::default();
        let (all, _) =
            sandboxes::list(app.host.engine(), wanted, &everything, caller.engine(), matches).await?;
        oldest_first(all, after.as_ref(), limit)
    } else {
        let page = sandboxes::Page { after, limit: Some(limit), ..sandboxes::Page::default() };
        sandboxes::list(app.host.engine(), wanted, &page, caller.engine(), matches).await?
    };
    let next = found.last().filter(|_| more).map(|last| Place::of(last).to_string());
    let items: Vec<Value> = found.iter().map(|record| view::sandbox(record, &root)).collect();
    Ok(Json(json!({"items": items, "nextCursor": next})))
}

fn oldest_first(
    mut records: Vec<SandboxRecord>,
    after: Option<&Place>,
    limit: usize,
) -> (Vec<SandboxRecord>, bool) {
    records.reverse();
    records.retain(|record| after.is_none_or(|after| Place::of(record) > *after));
    let more = records.len() > limit;
    records.truncate(limit);
    (records, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let of = |text: &str| serde_html_form::from_str::<List>(text).unwrap();
        let filter =
            of("states=started,stopped&states=error&labels=%7B%22a%22%3A%22b%22%7D").filter().unwrap();
        assert_eq!(filter.states, ["started", "stopped", "error"]);
        assert_eq!(filter.labels["a"], "b");
        assert!(of("labels=a").filter().is_err() && of("createdAtAfter=2026-01-01").filter().is_err());
        assert_eq!(of("minCpu=2&maxDiskGiB=5").filter().unwrap().sizes[2], (None, Some(5)));
        assert_eq!((of("").limit().unwrap(), of("limit=3").limit().unwrap()), (PAGE, 3));
        assert!(of("limit=0").limit().is_err() && of("limit=201").limit().is_err());
    }
}
