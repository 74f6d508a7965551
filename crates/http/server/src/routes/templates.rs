//! Templates.

use atoll_api::{CreateTemplate, Template, TemplateList};
use atoll_core::sharing::Needs;
use atoll_store::TemplateRecord;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Caller, Manage, Read};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::shared::App;

/// Makes a template, or the next version of an existing one.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", security(("key" = ["manage"])),
    request_body = CreateTemplate, responses((status = 201, body = Template)))]
pub(crate) async fn create_template(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(request): Json<CreateTemplate>,
) -> ApiResult<(StatusCode, Json<Template>)> {
    let snapshot = match &request.snapshot {
        // Every key that may use the template gets what is in it, so the caller must be one that may change the
        // snapshot.
        Some(text) => Some(app.engine.usable_snapshot(text, Needs::MANAGE, caller.engine()).await?.id),
        None => None,
    };
    let (name, recipe) = request.into_parts(snapshot)?;
    let record = app.engine.create_template(&name, recipe, caller.engine()).await?;
    Ok((StatusCode::CREATED, Json(view(&app, record).await?)))
}

/// Lists templates, the newest version of each.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", security(("key" = ["read"])),
    responses((status = 200, body = TemplateList)))]
pub(crate) async fn list_templates(_: Caller<Read>, State(app): State<App>) -> ApiResult<Json<TemplateList>> {
    let mut items = Vec::new();
    for record in app.engine.templates().await? {
        items.push(view(&app, record).await?);
    }
    Ok(Json(TemplateList { items }))
}

/// Which version.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfVersion {
    /// The version; the newest (or, to delete, all) when absent.
    version: Option<u32>,
}

/// One version of a template: the newest, or the one that `version` says, or that `NAME:VERSION` or `NAME:TAG` means.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates", security(("key" = ["read"])),
    params(("name" = String, Path), OfVersion), responses((status = 200, body = Template)))]
pub(crate) async fn get_template(
    _: Caller<Read>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(query): Query<OfVersion>,
) -> ApiResult<Json<Template>> {
    let record = match query.version {
        Some(version) => app.engine.template(&name, Some(version)).await?,
        None => app.engine.find_template(&name).await?,
    };
    Ok(Json(view(&app, record).await?))
}

/// Deletes one version of a template, or all. Sandboxes made from it go on.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", security(("key" = ["manage"])),
    params(("name" = String, Path), OfVersion), responses((status = 204)))]
pub(crate) async fn delete_template(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(query): Query<OfVersion>,
) -> ApiResult<StatusCode> {
    app.engine.delete_template(&name, query.version, caller.engine()).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn view(app: &App, record: TemplateRecord) -> ApiResult<Template> {
    let memory = app.engine.template_memory(&record).await?;
    Ok(convert::template(record, memory))
}
