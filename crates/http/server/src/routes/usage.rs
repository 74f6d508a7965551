//! What was used.

use atoll_api::{UsageGroup, UsageList};
use atoll_core::{Error, Result};
use atoll_engine::UsageQuery;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Caller, Manage};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Query};
use crate::shared::App;

/// Which usage. Hours are the smallest unit of time.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetUsage {
    /// Of this sandbox: id or name, or the id of one that is gone.
    sandbox: Option<String>,
    /// On account of the key with this id.
    key: Option<String>,
    /// Of sandboxes of this project: id or name.
    project: Option<String>,
    /// From the hour that holds this time on, milliseconds since the epoch.
    from_ms: Option<u64>,
    /// In hours that begin before this time.
    to_ms: Option<u64>,
    /// What one line stands for; `sandbox` when absent.
    #[serde(default)]
    group: UsageGroup,
}

impl TryFrom<GetUsage> for UsageQuery {
    type Error = Error;

    fn try_from(query: GetUsage) -> Result<Self> {
        Ok(Self {
            sandbox: query.sandbox,
            key: query.key.map(|key| key.parse()).transpose()?,
            project: query.project,
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            group: match query.group {
                UsageGroup::Total => atoll_engine::UsageGroup::Total,
                UsageGroup::Sandbox => atoll_engine::UsageGroup::Sandbox,
                UsageGroup::Key => atoll_engine::UsageGroup::Key,
                UsageGroup::Project => atoll_engine::UsageGroup::Project,
                UsageGroup::Hour => atoll_engine::UsageGroup::Hour,
            },
        })
    }
}

/// What sandboxes used, also those that are gone, up to now. A key that is not `admin` gets what is on its own
/// account, and what concerns sandboxes that it may see.
#[utoipa::path(get, path = "/v1/usage", tag = "usage", security(("key" = ["manage"])),
    params(GetUsage), responses((status = 200, body = UsageList)))]
pub(crate) async fn get_usage(
    caller: Caller<Manage>,
    State(app): State<App>,
    Query(query): Query<GetUsage>,
) -> ApiResult<Json<UsageList>> {
    let items = app.engine.usage(&query.try_into()?, caller.engine()).await?;
    Ok(Json(UsageList { items: items.into_iter().map(convert::usage).collect() }))
}
