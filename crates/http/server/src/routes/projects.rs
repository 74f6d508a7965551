//! Projects.

use atoll_api::{CreateProject, Project, ProjectList, UpdateProject};
use atoll_engine::ProjectUpdate;
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Admin, Caller, Read};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

/// Makes a project: keys and what they make, apart from those of others.
#[utoipa::path(post, path = "/v1/projects", tag = "projects", security(("key" = ["admin"])),
    request_body = CreateProject, responses((status = 201, body = Project)))]
pub(crate) async fn create_project(
    _: Caller<Admin>,
    State(app): State<App>,
    Json(request): Json<CreateProject>,
) -> ApiResult<(StatusCode, Json<Project>)> {
    let record = app.engine.create_project(&request.name, request.quota, request.defaults).await?;
    Ok((StatusCode::CREATED, Json(convert::project(&record))))
}

/// Lists projects.
#[utoipa::path(get, path = "/v1/projects", tag = "projects", security(("key" = ["admin"])),
    responses((status = 200, body = ProjectList)))]
pub(crate) async fn list_projects(_: Caller<Admin>, State(app): State<App>) -> ApiResult<Json<ProjectList>> {
    let items = app.engine.projects().iter().map(|record| convert::project(record)).collect();
    Ok(Json(ProjectList { items }))
}

/// One project, with how much it has. A key of a project sees its own.
#[utoipa::path(get, path = "/v1/projects/{project}", tag = "projects", security(("key" = ["read"])),
    params(("project" = String, Path, description = "Id or name")), responses((status = 200, body = Project)))]
pub(crate) async fn get_project(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(project): Path<String>,
) -> ApiResult<Json<Project>> {
    let record = app.engine.seen_project(&project, caller.engine())?;
    let view = app.engine.project_view(&record).await?;
    Ok(Json(convert::project_view(&view)))
}

/// Changes a project.
#[utoipa::path(patch, path = "/v1/projects/{project}", tag = "projects", security(("key" = ["admin"])),
    params(("project" = String, Path, description = "Id or name")),
    request_body = UpdateProject, responses((status = 200, body = Project)))]
pub(crate) async fn update_project(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(project): Path<String>,
    Json(request): Json<UpdateProject>,
) -> ApiResult<Json<Project>> {
    let UpdateProject { name, quota, defaults } = request;
    let record = app.engine.update_project(&project, ProjectUpdate { name, quota, defaults }).await?;
    Ok(Json(convert::project(&record)))
}

/// Removes a project to which nothing belongs any more.
#[utoipa::path(delete, path = "/v1/projects/{project}", tag = "projects", security(("key" = ["admin"])),
    params(("project" = String, Path, description = "Id or name")), responses((status = 204)))]
pub(crate) async fn delete_project(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(project): Path<String>,
) -> ApiResult<StatusCode> {
    app.engine.delete_project(&project).await?;
    Ok(StatusCode::NO_CONTENT)
}
