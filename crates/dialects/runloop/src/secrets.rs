//! Secrets of the installation, `/v1/secrets`. Clients send their values, and no answer holds them: values go out only
//! in requests of devboxes whose variables or gateways stand for them (see [`devboxes::reach`](crate::devboxes)).
//!
//! The clients name no hosts. A secret that they make may go to every host, as far as rules say so; that is why only
//! callers who may do that may make one. `hosts` beside its value limits its hosts, and so does the native API.

use atoll_core::Code;
use atoll_core::policy::{DomainPattern, SecretScope};
use atoll_core::secret::Secret;
use atoll_engine::{Caller as EngineCaller, Engine, SecretDraft, SecretIs};
use atoll_store::SecretRecord;
use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::devboxes::limit;
use crate::error::{Failure, Result};
use crate::once::{self, Promised};
use crate::request::{Admin, Caller, Json, Manage, Path, Query};

/// Prefix of ids.
const PREFIX: &str = "sec_";

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/secrets", post(create))
        .layer(from_fn_with_state(app.clone(), once::layer::<Admin>));
    Router::new()
        .merge(made_once)
        .route("/v1/secrets", get(list))
        .route("/v1/secrets/{secret}", get(one).post(update))
        .route("/v1/secrets/{secret}/delete", post(remove))
        .route("/v1/secrets/id/{secret}", get(one))
        .route("/v1/secrets/id/{secret}/update", post(update))
        .route("/v1/secrets/id/{secret}/delete", post(remove))
}

/// The id of a secret, as the clients know it.
pub(crate) fn id(record: &SecretRecord) -> String {
    format!("{PREFIX}{}", record.id)
}

fn view(record: &SecretRecord) -> Value {
    let newest = record.versions.last().map_or(record.created_ms, |version| version.created_ms);
    json!({
        "id": id(record),
        "name": record.name,
        "create_time_ms": record.created_ms,
        "update_time_ms": newest,
    })
}

/// The secret with this id or name.
///
/// # Errors
/// 404.
pub(crate) fn find(engine: &Engine, caller: &EngineCaller, named: &str) -> Result<SecretRecord> {
    let missing = || Failure::not_found(format!("Secret {} not found", atoll_core::error::shorten(named)));
    // A name may begin like an id.
    if let Ok(record) = engine.secret(caller.project(), named) {
        return Ok(record);
    }
    let id = named.strip_prefix(PREFIX).ok_or_else(missing)?;
    engine.secrets(caller.project()).into_iter().find(|record| record.id.as_str() == id).ok_or_else(missing)
}

#[derive(Debug, Deserialize)]
struct New {
    name: String,
    value: Secret,
    /// The hosts that it may go to; all when the client names none. Not part of the protocol: `extra_body` of the
    /// clients.
    #[serde(default)]
    hosts: Option<Vec<DomainPattern>>,
}

async fn create(
    caller: Caller<Admin>,
    State(app): State<App>,
    Promised(promise): Promised,
    Json(new): Json<New>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    // An earlier server made the secret, and was killed before it answered.
    if promise.renewed
        && let Ok(made) = engine.secret(caller.engine().project(), &new.name)
        && made.created_ms >= promise.at_ms()
        && made.created_by.as_ref() == Some(&caller.key())
    {
        return Ok(Json(view(&made)));
    }
    let scope = SecretScope {
        hosts: new.hosts.unwrap_or_else(|| vec![DomainPattern::Any]),
        templates: Vec::new(),
        sandboxes: Vec::new(),
        keys: Vec::new(),
    };
    let draft = SecretDraft {
        value: Some(new.value),
        scope: Some(scope),
        is: SecretIs::New,
        ..SecretDraft::default()
    };
    let put = engine.put_secret(caller.engine().project(), &new.name, draft, caller.engine());
    Ok(Json(view(&put.await?)))
}

#[derive(Debug, Deserialize)]
struct Update {
    value: Secret,
}

/// A new version. The hosts that the secret may go to stay.
async fn update(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(named): Path<String>,
    Json(update): Json<Update>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let known = find(engine, caller.engine(), &named)?;
    let draft = SecretDraft { value: Some(update.value), is: SecretIs::Known, ..SecretDraft::default() };
    let put = engine.put_secret(caller.engine().project(), &known.name, draft, caller.engine());
    Ok(Json(view(&put.await?)))
}

async fn one(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<Json<Value>> {
    Ok(Json(view(&find(app.host.engine(), caller.engine(), &named)?)))
}

async fn remove(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let known = find(engine, caller.engine(), &named)?;
    match engine.delete_secret(caller.engine().project(), &known.name).await {
        Err(error) if error.code != Code::SecretNotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(Json(view(&known))),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    limit: Option<i64>,
}

/// `GET /v1/secrets`: sorted by name.
async fn list(
    caller: Caller<Manage>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let (limit, all) = (limit(query.limit)?, app.host.engine().secrets(caller.engine().project()));
    let items: Vec<Value> = all.iter().take(limit).map(view).collect();
    Ok(Json(json!({"secrets": items, "has_more": all.len() > limit, "total_count": all.len()})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_no_text() {
        let new: New = serde_json::from_str(r#"{"name":"A","value":"sesame","hosts":["a.com"]}"#).unwrap();
        assert!(!format!("{new:?}").contains("sesame"));
    }
}
