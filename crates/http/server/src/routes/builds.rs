//! Builds: created with a request, fed with a context, followed by offset.

use std::convert::Infallible;
use std::time::Duration;

use atoll_api::{
    Build, BuildCacheList, BuildCachePruned, BuildList, BuildLogPage, CreateBuild, PruneBuildCache,
};
use atoll_core::build::BuildState;
use atoll_core::{Error, Result};
use atoll_engine::{BuildLog, LogPage};
use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::IntoParams;

use super::events::last_event_id;
use super::wait;
use crate::auth::{Caller, Manage, ManageCommon, OnBuild, Read};
use crate::body::reader;
use crate::bounds;
use crate::convert;
use crate::error::{ApiResult, body_of, json};
use crate::extract::{Json, Query};
use crate::shared::{App, Shared, shutting_down};

/// Log that one answer or turn of a stream holds, about, bytes.
const PAGE_BYTES: usize = 512 << 10;

/// Begins a build of the next version of a template.
///
/// A build whose answer says `needs_context` waits until its context was sent with `PUT …/context`. Others begin
/// at once.
#[utoipa::path(post, path = "/v1/builds", tag = "builds", security(("key" = ["manage"])),
    request_body = CreateBuild, responses((status = 201, body = Build)))]
pub(crate) async fn create_build(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(mut request): Json<CreateBuild>,
) -> ApiResult<(StatusCode, Json<Build>)> {
    let secrets = std::mem::take(&mut request.secrets);
    let build = app.engine.create_build_with(request.try_into()?, None, secrets, caller.engine()).await?;
    Ok((StatusCode::CREATED, Json(convert::build(build))))
}

/// Sends the context of a build, as a tar stream; it begins when all of it is here.
///
/// What is malformed is refused, and the build goes on waiting.
#[utoipa::path(put, path = "/v1/builds/{build}/context", tag = "builds", security(("key" = ["manage"])),
    params(("build" = String, Path)), request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = Build)))]
pub(crate) async fn put_build_context(
    caller: OnBuild<Manage>,
    State(app): State<App>,
    body: Body,
) -> ApiResult<Json<Build>> {
    Ok(Json(convert::build(app.engine.put_build_context(caller.build(), reader(body)).await?)))
}

/// Which builds.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListBuilds {
    /// In this state (repeatable).
    #[serde(default)]
    state: Vec<BuildState>,
    /// Where the last page ended.
    cursor: Option<String>,
    /// Most items: 1 to 1000; 100 when absent.
    #[param(schema_with = bounds::page)]
    limit: Option<u32>,
}

/// Lists builds, newest first.
#[utoipa::path(get, path = "/v1/builds", tag = "builds", security(("key" = ["read"])),
    params(ListBuilds), responses((status = 200, body = BuildList)))]
pub(crate) async fn list_builds(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<ListBuilds>,
) -> ApiResult<Json<BuildList>> {
    let page = app.engine.builds(&query.state, query.cursor.as_deref(), query.limit, caller.engine()).await?;
    let items = page.items.into_iter().map(convert::build_record).collect();
    Ok(Json(BuildList { items, next_cursor: page.next.map(|next| next.to_string()) }))
}

/// One build.
#[utoipa::path(get, path = "/v1/builds/{build}", tag = "builds", security(("key" = ["read"])),
    params(("build" = String, Path)), responses((status = 200, body = Build)))]
pub(crate) async fn get_build(caller: OnBuild<Read>, State(app): State<App>) -> ApiResult<Json<Build>> {
    Ok(Json(convert::build(app.engine.build(caller.build()).await?)))
}

/// Ends a build; answers when nothing of it is left. One that has ended stays as it is.
#[utoipa::path(post, path = "/v1/builds/{build}/cancel", tag = "builds", security(("key" = ["manage"])),
    params(("build" = String, Path)), responses((status = 200, body = Build)))]
pub(crate) async fn cancel_build(caller: OnBuild<Manage>, State(app): State<App>) -> ApiResult<Json<Build>> {
    Ok(Json(convert::build(app.engine.cancel_build(caller.build()).await?)))
}

/// From where, and how long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetBuildLog {
    /// 0, or `next_offset` of the last page.
    #[serde(default)]
    offset: u64,
    /// Wait up to this long when there is nothing yet (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
}

/// The log of a build from an offset on. Waits, if asked, while there is nothing.
#[utoipa::path(get, path = "/v1/builds/{build}/log", tag = "builds", security(("key" = ["read"])),
    params(("build" = String, Path), GetBuildLog), responses((status = 200, body = BuildLogPage)))]
pub(crate) async fn get_build_log(
    caller: OnBuild<Read>,
    State(app): State<App>,
    Query(query): Query<GetBuildLog>,
) -> ApiResult<Json<BuildLogPage>> {
    let wait = wait(query.wait_ms)?;
    let mut log = app.engine.build_log(caller.build(), query.offset).await?;
    let page = app.unless_draining(next_page(&mut log, wait)).await;
    let LogPage { entries, next_offset, over, record } = match page {
        Some(page) => page?,
        None => log.now(PAGE_BYTES).await?,
    };
    let entries = entries.into_iter().map(|entry| entry.event).collect();
    Ok(Json(BuildLogPage { entries, next_offset, state: record.state, over }))
}

async fn next_page(log: &mut BuildLog, wait: Duration) -> Result<LogPage> {
    let deadline = Instant::now() + wait;
    loop {
        let page = log.now(PAGE_BYTES).await?;
        if page.over || !page.entries.is_empty() {
            return Ok(page);
        }
        if tokio::time::timeout_at(deadline, log.changed()).await.is_err() {
            return Ok(page);
        }
    }
}

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamBuildLog {
    /// Where to begin. The header `Last-Event-ID`, which browsers send when they come back, wins.
    #[serde(default)]
    offset: u64,
}

/// Follows the log of a build as server-sent events.
///
/// Events: `entry` (`BuildEvent`), whose id is the offset after it; `over`, the last; `error` (`ErrorBody`), the last.
#[utoipa::path(get, path = "/v1/builds/{build}/events", tag = "builds", security(("key" = ["read"])),
    params(("build" = String, Path), StreamBuildLog),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn stream_build_log(
    caller: OnBuild<Read>,
    State(app): State<App>,
    Query(query): Query<StreamBuildLog>,
    headers: HeaderMap,
) -> ApiResult<impl IntoResponse> {
    let offset = last_event_id(&headers)?.unwrap_or(query.offset);
    let log = app.engine.build_log(caller.build(), offset).await?;
    Ok(Sse::new(events(app, log, caller.request_id().to_owned())).keep_alive(KeepAlive::default()))
}

fn events(
    app: App,
    log: BuildLog,
    request_id: String,
) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    let turns = stream::unfold(Some(log), move |log| {
        let (app, request_id) = (app.clone(), request_id.clone());
        async move {
            let mut log = log?;
            match turn(&app, &mut log).await {
                Ok((events, over)) => Some((events, (!over).then_some(log))),
                Err(error) => {
                    let error = Event::default().event("error").data(json(&body_of(error, &request_id)));
                    Some((vec![error], None))
                }
            }
        }
    });
    turns.flat_map(|events| stream::iter(events.into_iter().map(Ok)))
}

/// What there is next, and whether it is the end.
async fn turn(app: &Shared, log: &mut BuildLog) -> Result<(Vec<Event>, bool), Error> {
    let forever = Duration::from_secs(24 * 3600);
    let page = app.unless_draining(next_page(log, forever)).await.unwrap_or_else(|| Err(shutting_down()))?;
    let mut events: Vec<Event> = page
        .entries
        .iter()
        .map(|entry| {
            Event::default().event("entry").id(entry.next_offset.to_string()).data(json(&entry.event))
        })
        .collect();
    if page.over {
        events.push(Event::default().event("over").data("{}"));
    }
    Ok((events, page.over))
}

/// What the cache of steps holds, the longest unused first.
#[utoipa::path(get, path = "/v1/build-cache", tag = "builds", security(("key" = ["read"])),
    responses((status = 200, body = BuildCacheList)))]
pub(crate) async fn list_build_cache(
    _: Caller<Read>,
    State(app): State<App>,
) -> ApiResult<Json<BuildCacheList>> {
    let items = app.engine.build_cache().await?.into_iter().map(convert::build_cache).collect();
    Ok(Json(BuildCacheList { items }))
}

/// Takes the longest unused steps out of the cache. Templates stay as they are.
#[utoipa::path(post, path = "/v1/build-cache/prune", tag = "builds", security(("key" = ["manage"])),
    request_body = PruneBuildCache, responses((status = 200, body = BuildCachePruned)))]
pub(crate) async fn prune_build_cache(
    _: Caller<ManageCommon>,
    State(app): State<App>,
    Json(request): Json<PruneBuildCache>,
) -> ApiResult<Json<BuildCachePruned>> {
    let pruned = app.engine.prune_build_cache(request.keep_bytes).await?;
    Ok(Json(BuildCachePruned { removed: pruned.removed, freed_bytes: pruned.freed_bytes }))
}
