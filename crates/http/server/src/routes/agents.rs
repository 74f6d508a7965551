//! Agents that live in sandboxes.

use std::collections::BTreeMap;

use atoll_api::{
    Agent, AgentList, CreateAgent, CreateSandbox, ForkAgent, ForkedAgent, ForkedAgents, UpdateAgent,
};
use atoll_core::layer::version_in;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_engine::{AgentDraft, AgentForkOrder, FORK_LABEL, Resource, Target};
use atoll_store::AgentRecord;
use axum::extract::State;
use http::StatusCode;
use http::request::Parts;

use crate::auth::{Caller, Exec, Manage, OnAgent, Read};
use crate::cluster::from_others;
use crate::error::{ApiError, ApiResult, body_of};
use crate::extract::Json;
use crate::shared::App;

fn convert(app: &App, record: AgentRecord) -> Agent {
    // An agent that went meanwhile has the usage that was recorded last.
    let usage = app.engine.agent_usage(&record.id).unwrap_or(record.spec.spent);
    let version = record.spec.layer.as_ref().and_then(|name| {
        let layers = app.engine.sandbox(&record.sandbox).ok()?.spec.layers;
        let image = layers.get(name)?.image.clone();
        Some(version_in(name, &image).map(str::to_owned).unwrap_or(image))
    });
    let fork_of =
        app.engine.sandbox(&record.sandbox).ok().and_then(|mut home| home.labels.remove(FORK_LABEL));
    Agent {
        id: record.id.into(),
        name: record.name,
        sandbox: record.sandbox.into(),
        own_sandbox: record.spec.own_sandbox,
        fork_of,
        command: record.spec.command,
        port: record.spec.serves.as_ref().map(|serves| serves.port),
        service: record.spec.serves.map(|serves| serves.service),
        adapter: record.spec.adapter,
        profile: record.spec.profile,
        layer: record.spec.layer,
        version,
        usage,
        budget: record.spec.budget,
        session_budget: record.spec.session_budget,
        created_at_ms: record.created_ms,
    }
}

/// Declares an agent in a sandbox. Its command runs when it is sent a message.
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
    let record = match (&request.sandbox, request.template) {
        (Some(sandbox), None) => {
            if request.egress.is_some() || request.ttl_ms.is_some() {
                let why = "'egress' and 'ttl_ms' are about the sandbox that is made of a 'template'";
                return Err(Error::invalid("sandbox", why).into());
            }
            let needs = if request.layer.is_some() { Needs::MANAGE } else { Needs::EXEC };
            let grant = app.engine.authorize(by, needs, Target::Sandbox(sandbox)).await?;
            let Resource::Sandbox(id) = grant.resource() else {
                return Err(ApiError(Error::invalid("sandbox", "cannot be read")));
            };
            if let Some(layer) = &request.layer {
                let version = request.version.as_deref();
                app.engine.put_agent_layer(id, layer, version, by.key().cloned()).await?;
            }
            app.engine.create_agent(AgentDraft { name: request.name, sandbox: id.clone(), spec }).await?
        }
        (None, Some(template)) => {
            app.engine.authorize(by, Needs::MANAGE, Target::Installation).await?;
            let layers = match &request.layer {
                Some(layer) => {
                    let image = app.engine.agent_version(layer, request.version.as_deref()).await?;
                    BTreeMap::from([(layer.clone(), image)])
                }
                None => BTreeMap::new(),
            };
            let create = CreateSandbox {
                template: Some(template),
                name: Some(request.name.clone()),
                layers,
                egress: request.egress,
                ttl_ms: request.ttl_ms,
                ..CreateSandbox::default()
            };
            app.engine.create_agent_with_sandbox(request.name, spec, create.try_into()?, by).await?
        }
        _ => return Err(Error::invalid("sandbox", "give exactly one of 'sandbox' and 'template'").into()),
    };
    Ok((StatusCode::CREATED, Json(convert(&app, record))))
}

/// Lists the agents of the sandboxes that the key may know of, by name; of a cluster those on all living nodes.
#[utoipa::path(get, path = "/v1/agents", tag = "agents", security(("key" = ["read"])),
    responses((status = 200, body = AgentList)))]
pub(crate) async fn list_agents(
    caller: Caller<Read>,
    State(app): State<App>,
    parts: Parts,
) -> ApiResult<Json<AgentList>> {
    let records = app.engine.agents(caller.engine());
    let mut items: Vec<Agent> = records.into_iter().map(|record| convert(&app, record)).collect();
    for (node, answer) in from_others(&app, &parts).await {
        let theirs = serde_json::from_slice::<AgentList>(&answer?).map_err(|_malformed| {
            Error::new(Code::NodeUnavailable, format!("the node '{}' answers in another way", node.name))
        })?;
        items.extend(theirs.items);
    }
    items.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Json(AgentList { items }))
}

/// One agent.
#[utoipa::path(get, path = "/v1/agents/{agent}", tag = "agents", security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name")),
    responses((status = 200, body = Agent)))]
pub(crate) async fn get_agent(caller: OnAgent<Read>, State(app): State<App>) -> ApiResult<Json<Agent>> {
    Ok(Json(convert(&app, app.engine.agent(&caller.agent().id)?)))
}

/// Puts another version of an agent's program in its sandbox, at once: nothing else there is touched. Processes of the agent make
/// way for new ones when they have nothing to do. An older version is a rollback.
#[utoipa::path(post, path = "/v1/agents/{agent}/update", tag = "agents", security(("key" = ["manage"])),
    params(("agent" = String, Path, description = "Id or name")), request_body = UpdateAgent,
    responses((status = 200, body = Agent)))]
pub(crate) async fn update_agent(
    caller: OnAgent<Manage>,
    State(app): State<App>,
    Json(request): Json<UpdateAgent>,
) -> ApiResult<Json<Agent>> {
    let id = &caller.agent().id;
    app.engine.update_agent(id, request.version.as_deref(), caller.engine().key().cloned()).await?;
    Ok(Json(convert(&app, app.engine.agent(id)?)))
}

/// Makes forks of an agent, each in a sandbox that goes on from where the agent's is, and is deleted with the fork.
///
/// Files go along; processes do with `memory`, and do not without; sessions do not. The sandboxes have the label
/// `atoll-agent-fork-of`. Each fork has an outcome of its own.
#[utoipa::path(post, path = "/v1/agents/{agent}/fork", tag = "agents", security(("key" = ["manage"])),
    params(("agent" = String, Path, description = "Id or name")), request_body = ForkAgent,
    responses((status = 200, body = ForkedAgents)))]
pub(crate) async fn fork_agent(
    caller: OnAgent<Manage>,
    State(app): State<App>,
    Json(request): Json<ForkAgent>,
) -> ApiResult<Json<ForkedAgents>> {
    let ForkAgent { count, at, memory, name } = request;
    let order = AgentForkOrder { count, at, name, memory };
    let forks = app.engine.fork_agent(&caller.agent().id, &order, caller.engine()).await?;
    let results = forks.into_iter().map(|fork| match fork {
        Ok(record) => ForkedAgent { agent: Some(convert(&app, record)), error: None },
        Err(error) => ForkedAgent { agent: None, error: Some(body_of(error, caller.request_id())) },
    });
    Ok(Json(ForkedAgents { results: results.collect() }))
}

/// Ends an agent's sessions and forgets them with it. Deletes its sandbox if that was made for it.
#[utoipa::path(delete, path = "/v1/agents/{agent}", tag = "agents", security(("key" = ["manage"])),
    params(("agent" = String, Path, description = "Id or name")),
    responses((status = 204)))]
pub(crate) async fn delete_agent(caller: OnAgent<Manage>, State(app): State<App>) -> ApiResult<StatusCode> {
    app.engine.remove_agent(&caller.agent().id).await?;
    Ok(StatusCode::NO_CONTENT)
}
