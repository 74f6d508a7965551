//! Sessions with agents: messages in, events out.

use std::convert::Infallible;
use std::time::Duration;

use atoll_api::{
    AgentEvent, AgentEventPage, AgentSession, AgentSessionList, AnswerApproval, CreateAgentSession,
    SendAgentMessage,
};
use atoll_core::id::AgentId;
use atoll_core::limits::{PAGE_DEFAULT_COUNT, WAIT_MAX_MS};
use atoll_engine::{EventPage, SessionView};
use atoll_store::EventRecord;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use super::events::last_event_id;
use super::wait;
use crate::auth::{Exec, OnAgent, Read};
use crate::bounds::{self, PAGE};
use crate::error::{ApiResult, body_of, json};
use crate::extract::{Json, Path, Query};
use crate::shared::{App, shutting_down};

pub(super) fn session(view: SessionView) -> AgentSession {
    let SessionView { record, state } = view;
    AgentSession {
        id: record.id.into(),
        thread: record.thread,
        state,
        message: record.status.turn,
        last_event: record.events,
        usage: record.status.usage,
        created_at_ms: record.created_ms,
    }
}

pub(super) fn event(record: EventRecord) -> AgentEvent {
    AgentEvent { number: record.number, kind: record.kind, data: record.data, at_ms: record.at_ms }
}

/// Begins a session, or finds the one of a thread. Nothing runs before there is a message.
#[utoipa::path(post, path = "/v1/agents/{agent}/sessions", tag = "agents", security(("key" = ["exec"])),
    params(("agent" = String, Path, description = "Id or name")), request_body = CreateAgentSession,
    responses((status = 200, description = "The thread's", body = AgentSession), (status = 201, body = AgentSession)))]
pub(crate) async fn create_agent_session(
    caller: OnAgent<Exec>,
    State(app): State<App>,
    Json(request): Json<CreateAgentSession>,
) -> ApiResult<(StatusCode, Json<AgentSession>)> {
    let (view, new) = app.engine.create_session(&caller.agent().id, request.thread.as_deref()).await?;
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Json(session(view))))
}

/// Lists the sessions of an agent, the oldest first.
#[utoipa::path(get, path = "/v1/agents/{agent}/sessions", tag = "agents", security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name")),
    responses((status = 200, body = AgentSessionList)))]
pub(crate) async fn list_agent_sessions(
    caller: OnAgent<Read>,
    State(app): State<App>,
) -> ApiResult<Json<AgentSessionList>> {
    let views = app.engine.sessions(&caller.agent().id)?;
    Ok(Json(AgentSessionList { items: views.into_iter().map(session).collect() }))
}

/// One session.
#[utoipa::path(get, path = "/v1/agents/{agent}/sessions/{session}", tag = "agents", security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread")),
    responses((status = 200, body = AgentSession)))]
pub(crate) async fn get_agent_session(
    caller: OnAgent<Read>,
    State(app): State<App>,
    Path((_agent, text)): Path<(String, String)>,
) -> ApiResult<Json<AgentSession>> {
    Ok(Json(session(app.engine.session(&caller.agent().id, &text)?)))
}

/// Ends a session's process, if there is one, and forgets the session with its events.
#[utoipa::path(delete, path = "/v1/agents/{agent}/sessions/{session}", tag = "agents", security(("key" = ["exec"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread")),
    responses((status = 204)))]
pub(crate) async fn delete_agent_session(
    caller: OnAgent<Exec>,
    State(app): State<App>,
    Path((_agent, text)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.remove_session(&caller.agent().id, &text).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a message. It is kept when this answers, and worked on after those before it; a sleeping sandbox is woken for it.
#[utoipa::path(post, path = "/v1/agents/{agent}/sessions/{session}/messages", tag = "agents",
    security(("key" = ["exec"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread")),
    request_body = SendAgentMessage,
    responses((status = 200, description = "It was taken before", body = AgentEvent), (status = 201, body = AgentEvent)))]
pub(crate) async fn send_agent_message(
    caller: OnAgent<Exec>,
    State(app): State<App>,
    Path((_agent, text)): Path<(String, String)>,
    Json(request): Json<SendAgentMessage>,
) -> ApiResult<(StatusCode, Json<AgentEvent>)> {
    let key = request.key.as_deref();
    let sent = app.engine.send_message(&caller.agent().id, &text, &request.text, key).await?;
    let (record, new) = sent;
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Json(event(record))))
}

/// Asks the agent to end the work on its message; after ten seconds its process is killed. Messages that wait stay.
#[utoipa::path(post, path = "/v1/agents/{agent}/sessions/{session}/cancel", tag = "agents",
    security(("key" = ["exec"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread")),
    responses((status = 204)))]
pub(crate) async fn cancel_agent_session(
    caller: OnAgent<Exec>,
    State(app): State<App>,
    Path((_agent, text)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.cancel_session(&caller.agent().id, &text).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Answers what the agent wants to know, with one of the options of its event. Each approval takes one answer.
#[utoipa::path(post, path = "/v1/agents/{agent}/sessions/{session}/approvals/{approval}", tag = "agents",
    security(("key" = ["exec"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread"),
        ("approval" = String, Path)),
    request_body = AnswerApproval, responses((status = 204)))]
pub(crate) async fn answer_approval(
    caller: OnAgent<Exec>,
    State(app): State<App>,
    Path((_agent, text, approval)): Path<(String, String, String)>,
    Json(request): Json<AnswerApproval>,
) -> ApiResult<StatusCode> {
    app.engine.answer_approval(&caller.agent().id, &text, &approval, &request.option).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetAgentEvents {
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

/// What was said and happened in a session after an event. Waits, if asked, while there is nothing.
#[utoipa::path(get, path = "/v1/agents/{agent}/sessions/{session}/events", tag = "agents",
    security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread"),
        GetAgentEvents),
    responses((status = 200, body = AgentEventPage)))]
pub(crate) async fn get_agent_events(
    caller: OnAgent<Read>,
    State(app): State<App>,
    Path((_agent, text)): Path<(String, String)>,
    Query(query): Query<GetAgentEvents>,
) -> ApiResult<Json<AgentEventPage>> {
    let wait = wait(query.wait_ms)?;
    let limit = PAGE.of(query.limit)?;
    let read = |wait| app.engine.session_events(&caller.agent().id, &text, query.after, limit, wait);
    let page = match app.unless_draining(read(wait)).await {
        Some(page) => page?,
        None => read(Duration::ZERO).await?,
    };
    let next_after = page.events.last().map_or(query.after, |event| event.number);
    let EventPage { events, gap, view } = page;
    let items = events.into_iter().map(event).collect();
    Ok(Json(AgentEventPage { items, gap, next_after, state: view.state }))
}

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamAgentEvents {
    /// After this event. The header `Last-Event-ID`, which browsers send when they come back, wins.
    #[serde(default)]
    after: u64,
}

/// Follows a session as server-sent events, from any event on; as many readers as you like.
///
/// The name of an event is its kind, its id its number, its data an `AgentEvent`. `gap` says that events before the next are not
/// kept any more; `problem` (`ErrorBody`) is the last.
#[utoipa::path(get, path = "/v1/agents/{agent}/sessions/{session}/stream", tag = "agents",
    security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread"),
        StreamAgentEvents),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn stream_agent_events(
    caller: OnAgent<Read>,
    State(app): State<App>,
    Path((_agent, text)): Path<(String, String)>,
    Query(query): Query<StreamAgentEvents>,
    headers: HeaderMap,
) -> ApiResult<impl IntoResponse> {
    let after = last_event_id(&headers)?.unwrap_or(query.after);
    let agent = caller.agent().id.clone();
    // An error in the request is answered before the stream begins.
    app.engine.session_events(&agent, &text, after, 1, Duration::ZERO).await?;
    let events = follow(app, agent, text, after, caller.request_id().to_owned());
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

fn follow(
    app: App,
    agent: AgentId,
    session: String,
    after: u64,
    request_id: String,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let pages = stream::unfold(Some(after), move |after| {
        let (app, agent, session) = (app.clone(), agent.clone(), session.clone());
        let request_id = request_id.clone();
        async move {
            let after = after?;
            let wait = Duration::from_millis(WAIT_MAX_MS);
            let read = app.engine.session_events(&agent, &session, after, PAGE_DEFAULT_COUNT, wait);
            let page = app.unless_draining(read).await.unwrap_or_else(|| Err(shutting_down()));
            let (events, next) = match page {
                Ok(page) => {
                    let next = page.events.last().map_or(after, |event| event.number);
                    (told(page), Some(next))
                }
                Err(error) => {
                    let problem = Event::default().event("problem").data(json(&body_of(error, &request_id)));
                    (vec![Ok(problem)], None)
                }
            };
            Some((stream::iter(events), next))
        }
    });
    futures::StreamExt::flatten(pages)
}

fn told(page: EventPage) -> Vec<Result<Event, Infallible>> {
    let gap = page.gap.then(|| Ok(Event::default().event("gap").data("{}")));
    let events = page.events.into_iter().map(|record| {
        let told = Event::default().event(record.kind.as_str()).id(record.number.to_string());
        Ok(told.data(json(&event(record))))
    });
    gap.into_iter().chain(events).collect()
}
