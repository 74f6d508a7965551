//! Cells: code that is run in a context, and what it says.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use atoll_api::{Cell, CellEvent, CellEventPage, CellList, CellWithEvents, RunCell};
use atoll_core::Result;
use atoll_core::code::CellState;
use atoll_core::id::SandboxId;
use atoll_core::limits::{PAGE_MAX_COUNT, WAIT_MAX_MS};
use atoll_engine::{CellPage, CellView};
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use super::events::last_event_id;
use super::wait;
use crate::auth::{self, OnSandbox, Read};
use crate::bounds::{self, PAGE};
use crate::error::{ApiResult, body_of, json};
use crate::extract::{Json, Path, Query};
use crate::shared::{App, Shared, shutting_down};

/// A page of events ends with the first event that makes it larger than this, bytes.
const PAGE_MAX_BYTES: u64 = 1 << 20;

/// Parts of the path of a cell: sandbox, context, cell.
type OfCell = Path<(String, String, String)>;

fn convert(view: CellView) -> Cell {
    let CellView { exec, info, state, reason, execution_count, said: _ } = view;
    let record = exec.record;
    Cell {
        id: record.id.into(),
        context: info.context.into(),
        state,
        reason: reason.map(str::to_owned),
        execution_count,
        code_digest: info.digest,
        code_bytes: info.bytes,
        created_at_ms: record.created_ms,
        ended_at_ms: record.ended_ms,
        started_by: record.started_by.map(Into::into),
    }
}

fn event(event: atoll_engine::CellEvent) -> CellEvent {
    let atoll_engine::CellEvent { number, kind, data } = event;
    CellEvent { number, kind, data }
}

/// Runs code in a context, after the cells before it. Answers when that is certain to happen, or with `wait_ms` when the
/// cell has ended. It runs on without its caller.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts/{context}/cells", tag = "code",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name")),
    request_body = RunCell, responses((status = 201, body = CellWithEvents)))]
pub(crate) async fn run_cell(
    caller: OnSandbox<auth::Exec>,
    State(app): State<App>,
    Path((_sandbox, context)): Path<(String, String)>,
    Json(request): Json<RunCell>,
) -> ApiResult<(StatusCode, Json<CellWithEvents>)> {
    let wait = wait(request.wait_ms)?;
    let sandbox = caller.sandbox();
    let view = app.engine.run_cell(sandbox, &context, request.into_draft()?, caller.engine()).await?;
    let context = view.info.context.to_string();
    let id = view.exec.record.id.to_string();
    let view = if wait.is_zero() { view } else { wait_for_end(&app, sandbox, &context, &id, wait).await? };
    let mut events = None;
    if !wait.is_zero() && view.state != CellState::Running && view.exec.extent.end <= PAGE_MAX_BYTES {
        let limits = (u32::MAX, PAGE_MAX_BYTES);
        let page = app.engine.cell_events(sandbox, (&context, &id), 0, limits, Duration::ZERO).await?;
        events = page.ended.then(|| page.events.into_iter().map(event).collect());
    }
    Ok((StatusCode::CREATED, Json(CellWithEvents { cell: convert(view), events })))
}

async fn wait_for_end(
    app: &Shared,
    sandbox: &SandboxId,
    context: &str,
    cell: &str,
    wait: Duration,
) -> Result<CellView> {
    match app.unless_draining(app.engine.cell(sandbox, context, cell, wait)).await {
        Some(view) => view,
        None => app.engine.cell(sandbox, context, cell, Duration::ZERO).await,
    }
}

/// Which cells to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListCells {
    /// Most items: 1 to 1000, 100 when absent.
    #[param(schema_with = bounds::page)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
}

/// Lists the cells of a context, newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts/{context}/cells", tag = "code",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name"),
        ListCells),
    responses((status = 200, body = CellList)))]
pub(crate) async fn list_cells(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, context)): Path<(String, String)>,
    Query(query): Query<ListCells>,
) -> ApiResult<Json<CellList>> {
    let limit = PAGE.of(query.limit)?;
    let (views, next_cursor) = app.engine.cells(caller.sandbox(), &context, limit, query.cursor).await?;
    Ok(Json(CellList { items: views.into_iter().map(convert).collect(), next_cursor }))
}

/// Whether to wait for the end.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetCell {
    /// Wait up to this long for the cell to end (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
}

/// One cell.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts/{context}/cells/{cell}", tag = "code",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name"),
        ("cell" = String, Path), GetCell),
    responses((status = 200, body = Cell)))]
pub(crate) async fn get_cell(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, context, cell)): OfCell,
    Query(query): Query<GetCell>,
) -> ApiResult<Json<Cell>> {
    let view = wait_for_end(&app, caller.sandbox(), &context, &cell, wait(query.wait_ms)?).await?;
    Ok(Json(convert(view)))
}

/// Interrupts a cell: its code is told, and its context goes on. One that waits does not begin. Does nothing to one that
/// has ended.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts/{context}/cells/{cell}/interrupt", tag = "code",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name"),
        ("cell" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn interrupt_cell(
    caller: OnSandbox<auth::Exec>,
    State(app): State<App>,
    Path((_sandbox, context, cell)): OfCell,
) -> ApiResult<StatusCode> {
    app.engine.interrupt_cell(caller.sandbox(), &context, &cell).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetCellEvents {
    /// Those after this number: 0, or `next_after` of the last page.
    #[serde(default)]
    after: u64,
    /// Wait up to this long when there are none yet (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
    /// Most items: 1 to 1000, 100 when absent.
    #[param(schema_with = bounds::page)]
    limit: Option<u32>,
}

/// What a cell said after an event. Waits, if asked, while there is nothing.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts/{context}/cells/{cell}/events", tag = "code",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name"),
        ("cell" = String, Path), GetCellEvents),
    responses((status = 200, body = CellEventPage)))]
pub(crate) async fn get_cell_events(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, context, cell)): OfCell,
    Query(query): Query<GetCellEvents>,
) -> ApiResult<Json<CellEventPage>> {
    let (wait, limits) = (wait(query.wait_ms)?, (PAGE.of(query.limit)?, PAGE_MAX_BYTES));
    let read = |wait| app.engine.cell_events(caller.sandbox(), (&context, &cell), query.after, limits, wait);
    let page = match app.unless_draining(read(wait)).await {
        Some(page) => page?,
        None => read(Duration::ZERO).await?,
    };
    let next_after = page.events.last().map_or(query.after, |event| event.number);
    let items = page.events.into_iter().map(event).collect();
    Ok(Json(CellEventPage { items, next_after, ended: page.ended }))
}

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamCellEvents {
    /// After this event. The header `Last-Event-ID`, which browsers send when they come back, wins.
    #[serde(default)]
    after: u64,
}

/// Follows a cell as server-sent events, from any event on; as many readers as you like.
///
/// The name of an event is its kind, its id its number, its data a `CellEvent`. After `end` the stream ends; `failure`
/// (`ErrorBody`) is the last, too.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts/{context}/cells/{cell}/stream", tag = "code",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name"),
        ("cell" = String, Path), StreamCellEvents),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn stream_cell_events(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, context, cell)): OfCell,
    Query(query): Query<StreamCellEvents>,
    headers: HeaderMap,
) -> ApiResult<impl IntoResponse> {
    let after = last_event_id(&headers)?.unwrap_or(query.after);
    let follow = Follow {
        app,
        sandbox: caller.sandbox().clone(),
        context,
        cell,
        request_id: caller.request_id().to_owned(),
    };
    // An error in the request is answered before the stream begins.
    follow.read(after, Duration::ZERO).await?;
    Ok(Sse::new(events(follow, after)).keep_alive(KeepAlive::default()))
}

/// Somebody follows a cell.
struct Follow {
    app: App,
    sandbox: SandboxId,
    context: String,
    cell: String,
    request_id: String,
}

impl Follow {
    async fn read(&self, after: u64, wait: Duration) -> Result<CellPage> {
        let limits = (PAGE_MAX_COUNT, PAGE_MAX_BYTES);
        let cell = (self.context.as_str(), self.cell.as_str());
        let read = self.app.engine.cell_events(&self.sandbox, cell, after, limits, wait);
        self.app.unless_draining(read).await.unwrap_or_else(|| Err(shutting_down()))
    }

    /// What comes next, and after which number to go on.
    async fn next(&self, after: u64) -> (Vec<Result<Event, Infallible>>, Option<u64>) {
        match self.read(after, Duration::from_millis(WAIT_MAX_MS)).await {
            Ok(CellPage { events, ended }) => {
                let next = events.last().map_or(after, |event| event.number);
                (events.into_iter().map(told).collect(), (!ended).then_some(next))
            }
            Err(error) => {
                let failure = Event::default().event("failure").data(json(&body_of(error, &self.request_id)));
                (vec![Ok(failure)], None)
            }
        }
    }
}

fn events(follow: Follow, after: u64) -> impl Stream<Item = Result<Event, Infallible>> {
    let follow = Arc::new(follow);
    let pages = stream::unfold(Some(after), move |after| {
        let follow = Arc::clone(&follow);
        async move {
            let (events, next) = follow.next(after?).await;
            Some((stream::iter(events), next))
        }
    });
    futures::StreamExt::flatten(pages)
}

fn told(of: atoll_engine::CellEvent) -> Result<Event, Infallible> {
    let named = Event::default().event(of.kind.as_str()).id(of.number.to_string());
    Ok(named.data(json(&event(of))))
}
