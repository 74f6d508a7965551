//! Sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_api::{
    BatchCreate, BatchResult, BatchResults, CreateSandbox, Metrics, Sandbox, SandboxList, UpdateSandbox,
};
use atoll_core::id::SandboxId;
use atoll_core::limits::{BATCH_MAX_COUNT, LABELS_MAX_COUNT};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{RequestKey, SandboxDraft, SandboxUpdate};
use atoll_core::{Error, Result};
use atoll_engine::{Asked, Made, SandboxQuery};
use axum::Extension;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Caller, Manage, OnSandbox, Read};
use crate::bounds;
use crate::convert;
use crate::error::{ApiResult, body_of};
use crate::extract::{Json, Query};
use crate::hangup::Undo;
use crate::shared::App;
use crate::trace::Concerns;

/// Makes a sandbox and answers when it runs.
///
/// A client that leaves before the answer finds the sandbox by the request's `Idempotency-Key` or by its name. Without
/// either no client could, and the sandbox is deleted.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", security(("key" = ["manage"])),
    request_body = CreateSandbox, responses((status = 201, body = Sandbox)))]
pub(crate) async fn create_sandbox(
    caller: Caller<Manage>,
    State(app): State<App>,
    key: Option<Extension<RequestKey>>,
    Json(request): Json<CreateSandbox>,
) -> ApiResult<(StatusCode, Option<Extension<Undo>>, Extension<Concerns>, Json<Sandbox>)> {
    let (draft, key) = (SandboxDraft::try_from(request)?, key.map(|Extension(key)| key));
    let may_be_found = key.is_some() || draft.name.is_some();
    let record = app.engine.create_sandbox_once(draft, key, caller.engine()).await?.into_record();
    let undo = unless_answered(&app, if may_be_found { Vec::new() } else { vec![record.id.clone()] });
    let concerns = Extension(Concerns(record.id.clone()));
    Ok((StatusCode::CREATED, undo, concerns, Json(convert::sandbox(record))))
}

/// Deletes sandboxes that no other client can find, unless the client takes the answer that carries this.
pub(super) fn unless_answered(app: &App, made: Vec<SandboxId>) -> Option<Extension<Undo>> {
    (!made.is_empty()).then(|| Extension(Undo::creations(&app.tasks, &app.engine, made)))
}

/// Makes several sandboxes at once. Each succeeds or fails by itself.
///
/// When the client leaves before the answer of a request without an `Idempotency-Key`, those without a name are deleted.
#[utoipa::path(post, path = "/v1/sandboxes/batch", tag = "sandboxes", security(("key" = ["manage"])),
    request_body = BatchCreate, responses((status = 200, body = BatchResults)))]
pub(crate) async fn create_sandboxes(
    caller: Caller<Manage>,
    State(app): State<App>,
    key: Option<Extension<RequestKey>>,
    Json(request): Json<BatchCreate>,
) -> ApiResult<(Option<Extension<Undo>>, Json<BatchResults>)> {
    let count = request.sandboxes.len();
    if !(1..=BATCH_MAX_COUNT).contains(&count) {
        let why = format_args!("{count} is not between 1 and {BATCH_MAX_COUNT}");
        return Err(Error::invalid("sandboxes", why).hint("split the batch").into());
    }
    let (engine, by) = (&app.engine, caller.engine());
    let named: Vec<bool> = request.sandboxes.iter().map(|one| one.name.is_some()).collect();
    let creates = request.sandboxes.into_iter().enumerate().map(|(number, one)| {
        // Each sandbox has a part of the key: one that was made of a batch before is not made again.
        let part = |Extension(all): &Extension<RequestKey>| RequestKey {
            key: format!("{} {number}", all.key),
            digest: all.digest.clone(),
        };
        let request = key.as_ref().map(part);
        async move {
            let draft = SandboxDraft::try_from(one)?;
            // One sandbox of many is no reason to pass the whole batch on to another node.
            let making = engine.create_sandbox_once(draft, request, by);
            Arc::new(Asked::part()).scope(making).await.map(Made::into_record)
        }
    });
    let outcomes = futures::future::join_all(creates).await;
    let mut lost = Vec::new();
    if key.is_none() {
        let unnamed = outcomes.iter().zip(named).filter(|(_, is_named)| !is_named);
        lost.extend(unnamed.filter_map(|(outcome, _)| Some(outcome.as_ref().ok()?.id.clone())));
    }
    let undo = unless_answered(&app, lost);
    let results = outcomes.into_iter().map(|outcome| match outcome {
        Ok(record) => BatchResult { sandbox: Some(convert::sandbox(record)), error: None },
        Err(error) => BatchResult { sandbox: None, error: Some(body_of(error, caller.request_id())) },
    });
    Ok((undo, Json(BatchResults { results: results.collect() })))
}

/// Which sandboxes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListSandboxes {
    /// In this state; may be repeated.
    #[serde(default)]
    state: Vec<SandboxState>,
    /// With this label, as `key=value`; may be repeated: all must be there.
    #[serde(default)]
    label: Vec<String>,
    /// With a name that begins so.
    name_prefix: Option<String>,
    /// Of this project: id or name.
    project: Option<String>,
    /// Most items: 1 to 1000, 100 when absent.
    #[param(schema_with = bounds::page)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
}

impl TryFrom<ListSandboxes> for SandboxQuery {
    type Error = Error;

    fn try_from(query: ListSandboxes) -> Result<Self> {
        Ok(Self {
            states: query.state,
            labels: labels(&query.label)?,
            name_prefix: query.name_prefix,
            project: query.project,
            cursor: query.cursor,
            limit: query.limit,
        })
    }
}

pub(super) fn labels(pairs: &[String]) -> Result<BTreeMap<String, String>> {
    if pairs.len() > LABELS_MAX_COUNT {
        return Err(Error::invalid("label", format_args!("more than {LABELS_MAX_COUNT}")));
    }
    let mut labels = BTreeMap::new();
    for pair in pairs {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| Error::invalid("label", "write it as key=value"))?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Error::invalid("label", "the same key is there twice"));
        }
    }
    Ok(labels)
}

/// Lists sandboxes, newest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", security(("key" = ["read"])),
    params(ListSandboxes), responses((status = 200, body = SandboxList)))]
pub(crate) async fn list_sandboxes(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<ListSandboxes>,
) -> ApiResult<Json<SandboxList>> {
    let page = app.engine.sandboxes(&query.try_into()?, caller.engine()).await?;
    let items = page.items.into_iter().map(convert::sandbox).collect();
    Ok(Json(SandboxList { items, next_cursor: page.next.map(|next| next.to_string()) }))
}

/// One sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn get_sandbox(caller: OnSandbox<Read>, State(app): State<App>) -> ApiResult<Json<Sandbox>> {
    Ok(Json(convert::sandbox(app.engine.sandbox(caller.sandbox())?)))
}

/// Changes labels, lifetime or limits.
#[utoipa::path(patch, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes", security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = UpdateSandbox, responses((status = 200, body = Sandbox)))]
pub(crate) async fn update_sandbox(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Json(request): Json<UpdateSandbox>,
) -> ApiResult<Json<Sandbox>> {
    let update =
        SandboxUpdate { asked_by: caller.engine().key().cloned(), ..SandboxUpdate::try_from(request)? };
    let record = app.engine.update_sandbox(caller.sandbox(), update).await?;
    Ok(Json(convert::sandbox(record)))
}

/// Deletes a sandbox with everything in it; answers when nothing is left.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes", security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")), responses((status = 204)))]
pub(crate) async fn delete_sandbox(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
) -> ApiResult<StatusCode> {
    app.engine.delete_sandbox(caller.sandbox()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a sandbox uses.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/metrics", tag = "sandboxes", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = Metrics)))]
pub(crate) async fn get_metrics(caller: OnSandbox<Read>, State(app): State<App>) -> ApiResult<Json<Metrics>> {
    Ok(Json(convert::metrics(&app.engine.metrics(caller.sandbox()).await?)))
}
