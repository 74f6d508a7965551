//! Secrets of the installation. Clients send their values, and no answer holds them: values go out only in requests of
//! sandboxes whose `network` has a rule that names the secret: `${e2b.secrets.NAME}` in a header.
//!
//! The secret's note holds, as JSON, what the clients call metadata.

use std::collections::BTreeMap;

use atoll_core::policy::{DomainPattern, SecretScope};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine, SecretDraft, SecretIs};
use atoll_store::SecretRecord;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

use crate::App;
use crate::error::{Failure, Result, sentence};
use crate::request::{Admin, Caller, Json, Manage, Path, Query};
use crate::sandboxes::list::{NEXT, limit};
use crate::time;

/// Ids begin with it; no name does.
const PREFIX: &str = "sec_";
/// Entries of metadata, and bytes of a key, of a value, and of all.
const METADATA_MAX_COUNT: usize = 32;
const METADATA_KEY_MAX_BYTES: usize = 128;
const METADATA_VALUE_MAX_BYTES: usize = 1024;
const METADATA_MAX_BYTES: usize = 8192;
/// Key under which a note that is no metadata is shown.
const NOTE: &str = "note";

type Metadata = BTreeMap<String, String>;

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/secrets", get(list).post(create))
        .route("/secrets/{secret}", get(one).post(update).delete(remove))
}

fn told(error: &Error) -> Failure {
    match error.code {
        Code::SecretNotFound => Failure::not_found(sentence(error)),
        Code::LimitExceeded | Code::QuotaExceeded => {
            Failure::conflict(sentence(error)).with_code("secret_limit_reached")
        }
        _ => Failure::of(error),
    }
}

fn missing(named: &str) -> Failure {
    let named = atoll_core::error::shorten(named);
    Failure::not_found(format!("secret '{named}' not found"))
}

/// A secret as the clients read it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct View {
    #[serde(rename = "secretID")]
    secret_id: String,
    name: String,
    current_version: u32,
    metadata: Metadata,
    created_at: String,
    updated_at: String,
}

impl From<SecretRecord> for View {
    fn from(record: SecretRecord) -> Self {
        let newest = record.versions.last();
        Self {
            secret_id: format!("{PREFIX}{}", record.id),
            current_version: newest.map_or(0, |version| version.version),
            metadata: metadata(&record.note),
            created_at: time::of_ms(record.created_ms),
            updated_at: time::of_ms(newest.map_or(record.created_ms, |version| version.created_ms)),
            name: record.name,
        }
    }
}

/// The metadata in a note.
fn metadata(note: &str) -> Metadata {
    if note.is_empty() {
        return Metadata::new();
    }
    serde_json::from_str(note).unwrap_or_else(|_text| Metadata::from([(NOTE.to_owned(), note.to_owned())]))
}

/// The note that holds this metadata.
fn note(metadata: &Metadata) -> Result<String> {
    let fits = |(key, value): (&String, &String)| {
        key.len() <= METADATA_KEY_MAX_BYTES && value.len() <= METADATA_VALUE_MAX_BYTES
    };
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if metadata.len() > METADATA_MAX_COUNT || bytes > METADATA_MAX_BYTES || !metadata.iter().all(fits) {
        return Err(Failure::bad(format!(
            "metadata: at most {METADATA_MAX_COUNT} entries, keys of {METADATA_KEY_MAX_BYTES} bytes, values of \
             {METADATA_VALUE_MAX_BYTES}, {METADATA_MAX_BYTES} bytes in all"
        )));
    }
    if metadata.is_empty() {
        return Ok(String::new());
    }
    serde_json::to_string(metadata).map_err(|error| Failure::bad(format!("metadata: {error}")))
}

/// The name of the secret that a client means: names of this protocol have no capitals, those of the native API may.
pub(crate) fn meant(engine: &Engine, caller: &EngineCaller, name: &str) -> String {
    if engine.secret(caller.project(), name).is_ok() { name.to_owned() } else { name.to_ascii_lowercase() }
}

/// The secret with this id or name.
fn found(engine: &Engine, caller: &EngineCaller, named: &str) -> Result<SecretRecord> {
    if let Some(id) = named.strip_prefix(PREFIX) {
        let found = engine.secrets(caller.project()).into_iter().find(|record| record.id.as_str() == id);
        return found.ok_or_else(|| missing(named));
    }
    engine.secret(caller.project(), &meant(engine, caller, named)).map_err(|_missing| missing(named))
}

#[derive(Debug, Deserialize)]
struct New {
    name: String,
    value: Secret,
    metadata: Option<Metadata>,
}

/// A new secret may go to every host, as rules say: this protocol means secrets so. The native API can limit its hosts.
/// That is why only callers who may do that may make one.
async fn create(
    caller: Caller<Admin>,
    State(app): State<App>,
    Json(new): Json<New>,
) -> Result<(StatusCode, axum::Json<View>)> {
    let name = new.name.to_ascii_lowercase();
    if name.starts_with(PREFIX) {
        return Err(Failure::bad(format!("name: '{PREFIX}' is how ids begin; choose another name")));
    }
    let scope = SecretScope {
        hosts: vec![DomainPattern::Any],
        templates: Vec::new(),
        sandboxes: Vec::new(),
        keys: Vec::new(),
    };
    let draft = SecretDraft {
        value: Some(new.value),
        scope: Some(scope),
        note: Some(note(&new.metadata.unwrap_or_default())?),
        is: SecretIs::New,
    };
    let by = caller.engine();
    let made = app.host.engine().put_secret(by.project(), &name, draft, by).await;
    Ok((StatusCode::CREATED, axum::Json(made.map_err(|error| told(&error))?.into())))
}

#[derive(Debug, Deserialize)]
struct Update {
    value: Secret,
    metadata: Option<Metadata>,
}

/// A new version. Metadata that the client does not send stays, and so do the hosts that the secret may go to.
async fn update(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(named): Path<String>,
    Json(update): Json<Update>,
) -> Result<axum::Json<View>> {
    let engine = app.host.engine();
    let known = found(engine, caller.engine(), &named)?;
    let draft = SecretDraft {
        value: Some(update.value),
        note: update.metadata.as_ref().map(note).transpose()?,
        is: SecretIs::Known,
        ..SecretDraft::default()
    };
    let by = caller.engine();
    let changed = engine.put_secret(by.project(), &known.name, draft, by).await;
    Ok(axum::Json(changed.map_err(|error| told(&error))?.into()))
}

async fn one(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<axum::Json<View>> {
    found(app.host.engine(), caller.engine(), &named).map(|record| axum::Json(record.into()))
}

async fn remove(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let known = found(engine, caller.engine(), &named)?;
    engine.delete_secret(caller.engine().project(), &known.name).await.map_err(|error| told(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// The page that the client asks for.
#[derive(Debug, Deserialize)]
struct Page {
    limit: Option<i64>,
    /// The last name of the page before.
    #[serde(rename = "nextToken")]
    next_token: Option<String>,
}

async fn list(caller: Caller<Manage>, State(app): State<App>, Query(page): Query<Page>) -> Result<Response> {
    let limit = limit(page.limit)?;
    // Sorted by name.
    let mut all = app.host.engine().secrets(caller.engine().project());
    if let Some(after) = page.next_token.as_deref().filter(|after| !after.is_empty()) {
        all.retain(|record| record.name.as_str() > after);
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| more).and_then(|record| HeaderValue::try_from(&record.name).ok());
    let items: Vec<View> = all.into_iter().map(View::from).collect();
    let mut response = axum::Json(items).into_response();
    if let Some(next) = next {
        response.headers_mut().insert(NEXT, next);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_the_note() {
        let some = Metadata::from([("team".to_owned(), "ü\n\"".to_owned())]);
        assert_eq!(metadata(&note(&some).unwrap()), some);
        assert_eq!((note(&Metadata::new()).unwrap().as_str(), metadata("")), ("", Metadata::new()));
        // The note was written with the native API.
        assert_eq!(metadata("read only"), Metadata::from([("note".to_owned(), "read only".to_owned())]));
        assert_eq!(metadata("[1]").len(), 1);
    }

    #[test]
    fn metadata_has_limits() {
        let many = |count: usize, key: usize, value: usize| -> Metadata {
            (0..count).map(|n| (format!("{n:0key$}"), "x".repeat(value))).collect()
        };
        assert!(note(&many(32, 128, 128)).is_ok() && note(&many(1, 128, 1024)).is_ok());
        for bad in [many(33, 2, 1), many(1, 129, 1), many(1, 1, 1025), many(32, 128, 129)] {
            assert!(note(&bad).is_err());
        }
    }

    #[test]
    fn values_are_in_no_text() {
        let new: New = serde_json::from_str(r#"{"name":"a","value":"sesame"}"#).unwrap();
        assert!(!format!("{new:?}").contains("sesame"));
    }
}
