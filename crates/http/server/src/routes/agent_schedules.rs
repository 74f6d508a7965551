//! Schedules: messages to agents by time.

use atoll_api::{AgentSchedule, AgentScheduleList, CreateAgentSchedule};
use atoll_core::agent::When;
use atoll_store::ScheduleRecord;
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Exec, OnAgent, Read};
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

fn convert(record: ScheduleRecord) -> AgentSchedule {
    let (every_ms, cron, time_zone) = match record.spec.when {
        When::EveryMs(every_ms) => (Some(every_ms), None, None),
        When::Cron { expression, time_zone } => (None, Some(expression), Some(time_zone)),
    };
    AgentSchedule {
        id: record.id.into(),
        every_ms,
        cron,
        time_zone,
        thread: record.spec.thread,
        text: record.spec.text,
        next_at_ms: record.status.next_ms,
        last: record.status.last,
        created_at_ms: record.created_ms,
    }
}

/// Has messages sent to an agent by time. Each is a message as any other: it wakes the sandbox, and waits for those before it. Each
/// due time is one message, whatever becomes of the server; for those that are missed while it is away one is sent.
#[utoipa::path(post, path = "/v1/agents/{agent}/schedules", tag = "agents", security(("key" = ["exec"])),
    params(("agent" = String, Path, description = "Id or name")), request_body = CreateAgentSchedule,
    responses((status = 201, body = AgentSchedule)))]
pub(crate) async fn create_agent_schedule(
    caller: OnAgent<Exec>,
    State(app): State<App>,
    Json(request): Json<CreateAgentSchedule>,
) -> ApiResult<(StatusCode, Json<AgentSchedule>)> {
    let record = app.engine.create_schedule(&caller.agent().id, request.spec()?).await?;
    Ok((StatusCode::CREATED, Json(convert(record))))
}

/// Lists the schedules of an agent, the oldest first.
#[utoipa::path(get, path = "/v1/agents/{agent}/schedules", tag = "agents", security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name")),
    responses((status = 200, body = AgentScheduleList)))]
pub(crate) async fn list_agent_schedules(
    caller: OnAgent<Read>,
    State(app): State<App>,
) -> ApiResult<Json<AgentScheduleList>> {
    let records = app.engine.schedules(&caller.agent().id)?;
    Ok(Json(AgentScheduleList { items: records.into_iter().map(convert).collect() }))
}

/// One schedule.
#[utoipa::path(get, path = "/v1/agents/{agent}/schedules/{schedule}", tag = "agents", security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name"), ("schedule" = String, Path)),
    responses((status = 200, body = AgentSchedule)))]
pub(crate) async fn get_agent_schedule(
    caller: OnAgent<Read>,
    State(app): State<App>,
    Path((_agent, schedule)): Path<(String, String)>,
) -> ApiResult<Json<AgentSchedule>> {
    Ok(Json(convert(app.engine.schedule(&caller.agent().id, &schedule)?)))
}

/// Forgets a schedule. Nothing is sent by it any more; what was sent stays.
#[utoipa::path(delete, path = "/v1/agents/{agent}/schedules/{schedule}", tag = "agents", security(("key" = ["exec"])),
    params(("agent" = String, Path, description = "Id or name"), ("schedule" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn delete_agent_schedule(
    caller: OnAgent<Exec>,
    State(app): State<App>,
    Path((_agent, schedule)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.remove_schedule(&caller.agent().id, &schedule).await?;
    Ok(StatusCode::NO_CONTENT)
}
