//! Listing sandboxes.

use std::collections::BTreeMap;

use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_dialect_kit::sandboxes::Place;
use atoll_engine::{Caller as EngineCaller, Engine, SandboxQuery};
use atoll_store::SandboxRecord;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::HeaderName;
use serde::Deserialize;

use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Caller, Query, Read};
use crate::templates;
use crate::time;
use crate::view::{self, Listed};

/// Header that says where the next page begins; absent on the last page.
pub(crate) const NEXT: HeaderName = HeaderName::from_static("x-next-token");
/// Header that says how many run.
const RUNNING: HeaderName = HeaderName::from_static("x-total-running");
/// Most items of a page.
pub(crate) const PAGE_MAX: usize = 100;

/// The sandboxes that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct List {
    metadata: Option<String>,
    state: Vec<String>,
    order: Option<String>,
    #[serde(rename = "startedAfter")]
    started_after: Option<String>,
    template: Option<String>,
    #[serde(rename = "nextToken")]
    next_token: Option<String>,
    limit: Option<i64>,
}

/// The conditions of a listing.
#[derive(Debug, Default)]
struct Filter {
    states: Vec<&'static str>,
    metadata: BTreeMap<String, String>,
    template: Option<String>,
    started_after_ms: Option<u64>,
}

impl List {
    fn filter(&self) -> Result<Filter> {
        let mut states = Vec::new();
        for word in self.state.iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty()) {
            states.push(match word {
                "running" => "running",
                "paused" => "paused",
                other => {
                    return Err(Failure::bad(format!(
                        "state: there is no state '{}'",
                        atoll_core::error::shorten(other)
                    )));
                }
            });
        }
        let started_after_ms =
            match self.started_after.as_deref().filter(|text| !text.is_empty()) {
                // A plus that was not encoded is read as a space.
                Some(text) => Some(time::parse(&text.replacen(' ', "+", 1)).ok_or_else(|| {
                    Failure::bad("startedAfter: must be a time such as 2026-01-31T12:00:00Z")
                })?),
                None => None,
            };
        Ok(Filter {
            states,
            metadata: metadata(self.metadata.as_deref().unwrap_or_default())?,
            template: self.template.clone().filter(|template| !template.is_empty()),
            started_after_ms,
        })
    }
}

/// The query value is a query string of its own, whose keys and values are encoded once more.
fn metadata(text: &str) -> Result<BTreeMap<String, String>> {
    let wrong = || Failure::bad("metadata: must be an encoded query string such as key=value");
    let pairs: Vec<(String, String)> = serde_html_form::from_str(text).map_err(|_malformed| wrong())?;
    let again = |text: &str| decoded(text).ok_or_else(wrong);
    pairs.iter().map(|(key, value)| Ok((again(key)?, again(value)?))).collect()
}

/// Decodes percent signs; `None` when the result is no UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| *first == b'%');
        let byte = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

impl Filter {
    fn matches(&self, record: &SandboxRecord) -> bool {
        let Some(state) = view::state(record) else { return false };
        // The sandboxes that build templates are not shown to clients.
        if record.spec.build.is_some() || !(self.states.is_empty() || self.states.contains(&state)) {
            return false;
        }
        let started = self.started_after_ms.is_none_or(|after| record.created_ms >= after);
        let own = extras::metadata(record);
        started
            && self.metadata.iter().all(|(key, value)| own.get(key) == Some(value))
            && self.template.as_ref().is_none_or(|template| is_of(record, template))
    }
}

fn is_of(record: &SandboxRecord, template: &str) -> bool {
    let extras = Extras::of(record);
    let name = templates::name_of(template);
    let known = [extras.template_id.as_deref(), extras.alias.as_deref()];
    known.contains(&Some(template))
        || known.contains(&Some(name))
        || extras.template_id.as_deref() == Some(&templates::id_of(name))
}

/// All sandboxes that match and that a key may see, newest first.
async fn all(engine: &Engine, caller: &EngineCaller, filter: &Filter) -> Result<Vec<SandboxRecord>> {
    let mut query = SandboxQuery { limit: Some(PAGE_MAX_COUNT), ..SandboxQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = engine.sandboxes(&query, caller).await.map_err(|error| Failure::of(&error))?;
        found.extend(page.items.into_iter().filter(|record| filter.matches(record)));
        query.cursor = page.next.map(|next| next.to_string());
        if query.cursor.is_none() {
            break;
        }
    }
    Ok(found)
}

/// Cuts one page out. The token is the place of the last sandbox of the page before.
fn page(
    mut records: Vec<SandboxRecord>,
    ascending: bool,
    after: Option<&Place>,
    limit: usize,
) -> (Vec<SandboxRecord>, Option<Place>) {
    if ascending {
        records.reverse();
    }
    if let Some(after) = after {
        records
            .retain(|record| if ascending { Place::of(record) > *after } else { Place::of(record) < *after });
    }
    let more = records.len() > limit;
    records.truncate(limit);
    let next = records.last().filter(|_| more).map(Place::of);
    (records, next)
}

/// The number of items that a page has.
pub(crate) fn limit(asked: Option<i64>) -> Result<usize> {
    let Some(asked) = asked else { return Ok(PAGE_MAX) };
    let limit = usize::try_from(asked).ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
    limit.ok_or_else(|| Failure::bad(format!("limit: must lie between 1 and {PAGE_MAX}")))
}

/// `GET /v2/sandboxes`.
pub(super) async fn v2(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Response> {
    let ascending = match query.order.as_deref() {
        Some("asc") => true,
        None | Some("desc" | "") => false,
        Some(_) => return Err(Failure::bad("order: must be asc or desc")),
    };
    let after =
        match query.next_token.as_deref().filter(|token| !token.is_empty()) {
            Some(token) => Some(token.parse::<Place>().map_err(|_other| {
                Failure::bad("nextToken: pass the x-next-token of the last page as it is")
            })?),
            None => None,
        };
    let limit = limit(query.limit)?;
    let found = all(app.host.engine(), caller.engine(), &query.filter()?).await?;
    let running = found.iter().filter(|record| view::state(record) == Some("running")).count();
    let (page, next) = page(found, ascending, after.as_ref(), limit);
    let items: Vec<Listed> = page.iter().filter_map(Listed::new).collect();
    let mut response = axum::Json(items).into_response();
    let headers = response.headers_mut();
    headers.insert(RUNNING, running.into());
    if let Some(next) = next.and_then(|next| next.to_string().parse().ok()) {
        headers.insert(NEXT, next);
    }
    Ok(response)
}

/// `GET /sandboxes`: all running sandboxes at once.
pub(super) async fn v1(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<axum::Json<Vec<Listed>>> {
    let filter = Filter { states: vec!["running"], ..query.filter()? };
    let found = all(app.host.engine(), caller.engine(), &filter).await?;
    Ok(axum::Json(found.iter().filter_map(Listed::new).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_twice() {
        let query: List = serde_html_form::from_str("metadata=a%3Db%252520c%26x%3D%25C3%25A4").unwrap();
        let found = query.filter().unwrap().metadata;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(found, BTreeMap::from([pair("a", "b c"), pair("x", "ä")]));
        assert_eq!(decoded("100%"), Some("100%".to_owned()));
        assert_eq!(decoded("%ff"), None);
    }

    #[test]
    fn states_come_in_every_form() {
        for text in ["state=running%2Cpaused", "state=running,paused", "state=running&state=paused"] {
            let query: List = serde_html_form::from_str(text).unwrap();
            assert_eq!(query.filter().unwrap().states, ["running", "paused"], "{text}");
        }
        let query: List = serde_html_form::from_str("state=dead").unwrap();
        assert!(query.filter().is_err());
    }

    #[test]
    fn pages_have_limits() {
        assert_eq!((limit(None).unwrap(), limit(Some(1)).unwrap()), (100, 1));
        assert!(limit(Some(0)).is_err() && limit(Some(101)).is_err());
    }
}
