//! Agents that live in sandboxes.

use atoll_api::{Agent, AgentList, CreateAgent, CreateSandbox};
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_engine::{AgentDraft, Resource, Target};
use atoll_store::AgentRecord;
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Caller, Exec, Manage, OnAgent, Read};
use crate::error::{ApiError, ApiResult};
use crate::extract::Json;
use crate::shared::App;

fn convert(record: AgentRecord) -> Agent {
    Agent {
        id: record.id.into(),
        name: record.name,
        sandbox: record.sandbox.into(),
        own_sandbox: record.spec.own_sandbox,
        command: record.spec.command,
        adapter: record.spec.adapter,
        created_at_ms: record.created_ms,
    }
}

/// Declares an agent in a sandbox. Its command runs when somebody sends it a message.
#[utoipa::path(post, path = "/v1/agents", tag = "agents", security(("key" = ["exec"])),
    request_body = CreateAgent, responses((status = 201, body = Agent)))]
pub(crate) async fn create_agent(
    caller: Caller<Exec>,
    State(app): State<App>,
    Json(request): Json<CreateAgent>,
) -> ApiResult<(StatusCode, Json<Agent>)> {
    let spec = request.spec()?;
    spec.validate()?;
    let by = caller.engine();
    let (sandbox, made) = match (&request.sandbox, request.template) {
        (Some(sandbox), None) => {
            let grant = app.engine.authorize(by, Needs::EXEC, Target::Sandbox(sandbox)).await?;
            match grant.resource() {
                Resource::Sandbox(id) => (id.clone(), false),
                _ => return Err(ApiError(Error::invalid("sandbox", "cannot be read"))),
            }
        }
        (None, Some(template)) => {
            app.engine.authorize(by, Needs::MANAGE, Target::Installation).await?;
            let name = Some(request.name.clone());
            let create = CreateSandbox { template: Some(template), name, ..CreateSandbox::default() };
            (app.engine.create_sandbox(create.into(), by).await?.id, true)
        }
        _ => return Err(Error::invalid("sandbox", "give exactly one of 'sandbox' and 'template'").into()),
    };
    let draft = AgentDraft { name: request.name, sandbox: sandbox.clone(), spec };
    match app.engine.create_agent(draft).await {
        Ok(record) => Ok((StatusCode::CREATED, Json(convert(record)))),
        Err(error) => {
            if made
                && let Err(left) = app.engine.delete_sandbox(&sandbox).await
                && left.code != Code::SandboxNotFound
            {
                tracing::error!(%sandbox, error = %left, "the sandbox of an agent that was not made stays");
            }
            Err(error.into())
        }
    }
}

/// Lists the agents of the sandboxes that the key may know of, by name.
#[utoipa::path(get, path = "/v1/agents", tag = "agents", security(("key" = ["read"])),
    responses((status = 200, body = AgentList)))]
pub(crate) async fn list_agents(caller: Caller<Read>, State(app): State<App>) -> ApiResult<Json<AgentList>> {
    let records = app.engine.agents(caller.engine());
    Ok(Json(AgentList { items: records.into_iter().map(convert).collect() }))
}

/// One agent.
#[utoipa::path(get, path = "/v1/agents/{agent}", tag = "agents", security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name")),
    responses((status = 200, body = Agent)))]
pub(crate) async fn get_agent(caller: OnAgent<Read>, State(app): State<App>) -> ApiResult<Json<Agent>> {
    Ok(Json(convert(app.engine.agent(&caller.agent().id)?)))
}

/// Ends an agent's sessions and forgets them with it. Deletes its sandbox if that was made for it.
#[utoipa::path(delete, path = "/v1/agents/{agent}", tag = "agents", security(("key" = ["manage"])),
    params(("agent" = String, Path, description = "Id or name")),
    responses((status = 204)))]
pub(crate) async fn delete_agent(caller: OnAgent<Manage>, State(app): State<App>) -> ApiResult<StatusCode> {
    app.engine.remove_agent(&caller.agent().id).await?;
    Ok(StatusCode::NO_CONTENT)
}
