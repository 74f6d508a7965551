//! Devboxes: `/v1/devboxes`.

mod create;
pub(crate) mod ended;
pub(crate) mod launch;
mod lifecycle;
mod list;
mod reach;
pub(crate) mod setup;
mod ssh;
mod update;
mod view;
mod wait;

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde_json::Value;

use crate::App;
use crate::error::{Failure, Result};
use crate::extras::Extras;
use crate::request::{self, Caller, Json, Manage, Path, Read};
use crate::{ids, once};

pub(crate) use lifecycle::wake;
pub(crate) use list::{PAGE_MAX_BYTES, limit};
pub(crate) use setup::{Checkout, Plan};
pub(crate) use view::{status, view};
pub(crate) use wait::duration;

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/devboxes", post(create::create))
        .route("/v1/devboxes/create_and_await_running", post(create::create))
        .layer(from_fn_with_state(app.clone(), once::layer::<Manage>));
    Router::new()
        .merge(made_once)
        .route("/v1/devboxes", get(list::list))
        .route("/v1/devboxes/{devbox}", get(read).post(update::update))
        .route("/v1/devboxes/{devbox}/wait_for_status", post(wait::wait))
        .route("/v1/devboxes/{devbox}/shutdown", post(lifecycle::shutdown))
        .route("/v1/devboxes/{devbox}/suspend", post(lifecycle::suspend))
        .route("/v1/devboxes/{devbox}/resume", post(lifecycle::resume))
        .route("/v1/devboxes/{devbox}/keep_alive", post(lifecycle::keep_alive))
        .route("/v1/devboxes/{devbox}/create_ssh_key", post(ssh::create))
}

/// One devbox, also one that ended.
async fn read(caller: Caller<Read>, State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>> {
    let mut view = look(&app, &caller, &id)?;
    // The token stands for the caller's key: it opens no more than that key does.
    if let Ok(record) = request::record(app.host.engine(), &caller, &id)
        && let Some(tunnel) = Extras::of(&record).tunnel
    {
        view["tunnel"] = tunnel.view(app.host.engine(), &record.id, Some(&caller.key()));
    }
    Ok(Json(view))
}

/// A devbox as it is now, or as it was when it ended.
fn look<S>(app: &App, caller: &Caller<S>, id: &str) -> Result<Value> {
    let ended = || app.ended.find(&ids::sandbox(id), caller.sees(), app.host.engine().now_ms());
    match request::record(app.host.engine(), caller, id) {
        Ok(record) => {
            let now = view(app, &record);
            // While the devbox is being deleted, it has ended for its clients.
            if now["status"] == "shutdown" { Ok(ended().unwrap_or(now)) } else { Ok(now) }
        }
        Err(failure) => ended().ok_or(failure),
    }
}

/// A devbox that takes commands and files now. Only a resume wakes a suspended devbox.
pub(crate) fn usable<S>(app: &App, caller: &Caller<S>, id: &str) -> Result<atoll_store::SandboxRecord> {
    let record = request::record(app.host.engine(), caller, id)?;
    match status(app, &record) {
        "suspended" | "suspending" => Err(Failure::bad(format!("Devbox {id} is suspended: resume it first"))),
        "failure" => Err(Failure::bad(format!("Devbox {id} failed: {}", why(&record)))),
        "shutdown" => Err(Failure::bad(format!("Devbox {id} is shut down"))),
        _ => Ok(record),
    }
}

fn why(record: &atoll_store::SandboxRecord) -> String {
    let setup = Extras::of(record).failure;
    setup.or_else(|| record.reason.clone()).unwrap_or_else(|| "it could not be set up".to_owned())
}
