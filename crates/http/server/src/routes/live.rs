//! What all sandboxes use at this moment.

use atoll_api::{LiveUsage, LiveUsageList};
use atoll_core::{Code, Error};
use axum::extract::State;
use http::request::Parts;
use serde::Deserialize;
use utoipa::IntoParams;

use super::sandboxes::labels;
use crate::auth::{Caller, Read};
use crate::cluster::from_others;
use crate::error::ApiResult;
use crate::extract::{Json, Query};
use crate::shared::App;

/// Whose use to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetLiveUsage {
    /// With this label, as `key=value`; may be repeated: all must be there.
    #[serde(default)]
    label: Vec<String>,
}

/// What all sandboxes use at this moment, measured by their hosts, in one answer. Nothing in a sandbox is asked, and none is
/// woken. Between two measurements lies at least a second.
#[utoipa::path(get, path = "/v1/live", tag = "sandboxes", security(("key" = ["read"])), params(GetLiveUsage),
    responses((status = 200, body = LiveUsageList)))]
pub(crate) async fn get_live_usage(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<GetLiveUsage>,
    parts: Parts,
) -> ApiResult<Json<LiveUsageList>> {
    let labels = labels(&query.label)?;
    let own = app.engine.live_usage(caller.engine(), &labels).await;
    let mut items: Vec<_> = own.into_iter().map(convert).collect();
    for (node, answer) in from_others(&app, &parts).await {
        let theirs = serde_json::from_slice::<LiveUsageList>(&answer?).map_err(|_malformed| {
            Error::new(Code::NodeUnavailable, format!("the node '{}' answers in another way", node.name))
        })?;
        items.extend(theirs.items);
    }
    Ok(Json(LiveUsageList { items }))
}

fn convert(from: atoll_engine::LiveUsage) -> LiveUsage {
    LiveUsage {
        id: from.id.into(),
        name: from.name,
        state: from.state,
        paused: from.paused,
        created_at_ms: from.created_ms,
        at_ms: from.at_ms,
        cpu_us: from.cpu_us,
        cpu_limit_millis: from.cpu_limit_millis,
        memory_bytes: from.memory_bytes,
        memory_limit_bytes: from.memory_limit_bytes,
        disk_bytes: from.disk_bytes,
        pids: from.pids,
        execs: from.execs,
        sent_bytes: from.sent_bytes,
        received_bytes: from.received_bytes,
    }
}
