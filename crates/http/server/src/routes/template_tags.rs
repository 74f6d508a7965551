//! Tags of templates.

use atoll_api::{SetTemplateTag, TemplateTag, TemplateTagList};
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Caller, Manage, Read};
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

/// The tags of a template.
#[utoipa::path(get, path = "/v1/templates/{name}/tags", tag = "templates", security(("key" = ["read"])),
    params(("name" = String, Path)), responses((status = 200, body = TemplateTagList)))]
pub(crate) async fn list_template_tags(
    _: Caller<Read>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> ApiResult<Json<TemplateTagList>> {
    let tags = app.engine.template_tags(&name).await?;
    let items = tags.into_iter().map(view).collect();
    Ok(Json(TemplateTagList { items }))
}

/// What a tag of a template has meant, the newest first: which is what it means. The last 100 are remembered, as long as
/// their versions are there.
#[utoipa::path(get, path = "/v1/templates/{name}/tags/{tag}/assignments", tag = "templates",
    security(("key" = ["read"])), params(("name" = String, Path), ("tag" = String, Path)),
    responses((status = 200, body = TemplateTagList)))]
pub(crate) async fn list_tag_assignments(
    _: Caller<Read>,
    State(app): State<App>,
    Path((name, tag)): Path<(String, String)>,
) -> ApiResult<Json<TemplateTagList>> {
    let items = app.engine.tag_assignments(&name, &tag).await?.into_iter().map(view).collect();
    Ok(Json(TemplateTagList { items }))
}

/// Points a tag to a version of a template, wherever it pointed before.
#[utoipa::path(put, path = "/v1/templates/{name}/tags/{tag}", tag = "templates", security(("key" = ["manage"])),
    params(("name" = String, Path), ("tag" = String, Path)), request_body = SetTemplateTag,
    responses((status = 200, body = TemplateTag)))]
pub(crate) async fn set_template_tag(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path((name, tag)): Path<(String, String)>,
    Json(request): Json<SetTemplateTag>,
) -> ApiResult<Json<TemplateTag>> {
    let tags = [tag];
    let tagged = app.engine.tag_template(&name, request.version, &tags, caller.engine()).await?;
    let [tag] = tags;
    Ok(Json(TemplateTag { tag, version: tagged.record.version, set_at_ms: tagged.set_ms }))
}

/// Removes a tag of a template. The version that it meant stays.
#[utoipa::path(delete, path = "/v1/templates/{name}/tags/{tag}", tag = "templates", security(("key" = ["manage"])),
    params(("name" = String, Path), ("tag" = String, Path)), responses((status = 204)))]
pub(crate) async fn delete_template_tag(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path((name, tag)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.untag_template(&name, &[tag], caller.engine()).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn view(tag: atoll_store::TemplateTag) -> TemplateTag {
    TemplateTag { tag: tag.tag, version: tag.version, set_at_ms: tag.set_ms }
}
