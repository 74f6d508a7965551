//! Objects: files that a client sends once and that are read many times, as contexts of builds and as files of
//! devboxes.
//!
//! A client makes an object, sends its content to the address in the answer, and then closes it. Addresses carry their
//! own authority, because the clients send nothing else with them: a signature by a key of the object's own. It is
//! valid as long as the API key that made the object. Only that API key sees the object.

mod content;
mod known;
mod shelf;

use std::collections::BTreeMap;

use atoll_core::limits::LABELS_MAX_COUNT;
use atoll_dialect_kit::request::Root;
use atoll_dialect_kit::time::now_ms;
use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::devboxes::{PAGE_MAX_BYTES, limit};
use crate::disk::{self, broken, work};
use crate::error::{Failure, Result};
use crate::once::{self, Promised};
use crate::request::{Caller, Json, Manage, Path, Query, Read};

pub(crate) use content::Opened;
pub(crate) use shelf::Shelf;
use shelf::{ContentType, Object};

/// Most objects of all keys together, and of one key.
const MAX_COUNT: usize = 10_000;
const OF_KEY_MAX_COUNT: usize = 2000;
/// Bytes of a name, and of one entry of an object's metadata.
const NAME_MAX_BYTES: usize = 255;
const METADATA_MAX_BYTES: usize = 1024;
/// How long an address to read from is good when the client gives no time, and at most, seconds.
const ADDRESS_S: u64 = 3600;
const ADDRESS_MAX_S: u64 = 7 * 24 * 3600;

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/objects", post(create))
        .layer(from_fn_with_state(app.clone(), once::layer::<Manage>));
    Router::new()
        .merge(made_once)
        .route("/v1/objects", get(list))
        .route("/v1/objects/list_public", get(list_public))
        .route("/v1/objects/{object}", get(one))
        .route("/v1/objects/{object}/complete", post(complete))
        .route("/v1/objects/{object}/delete", post(delete))
        .route("/v1/objects/{object}/download", get(download))
        .route("/v1/objects/{object}/content", put(content::take))
        .route("/v1/objects/{object}/content", get(content::give))
}

fn view(object: &Object) -> Value {
    json!({
        "id": object.id,
        "name": object.name,
        "content_type": object.content_type,
        "state": object.state,
        "create_time_ms": object.created_at_ms,
        "delete_after_time_ms": object.delete_after_ms,
        "metadata": object.metadata,
        "size_bytes": object.size_bytes,
    })
}

fn missing(id: &str) -> Failure {
    Failure::not_found(format!("Object {} not found", atoll_core::error::shorten(id)))
}

/// The object that a client names, if the caller's key made it.
async fn find<S>(app: &App, caller: &Caller<S>, id: &str) -> Result<Object> {
    let (shelf, name) = (app.objects.clone(), id.to_owned());
    let found = work(move || shelf.find(&name)).await?;
    found.filter(|object| object.owner == caller.key().as_str()).ok_or_else(|| missing(id))
}

/// The object that a client asks for.
#[derive(Debug, Deserialize)]
struct Create {
    name: String,
    content_type: ContentType,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    ttl_ms: Option<u64>,
}

impl Create {
    fn check(&self) -> Result<()> {
        if self.name.is_empty() || self.name.len() > NAME_MAX_BYTES {
            return Err(Failure::bad(format!("name: 1 to {NAME_MAX_BYTES} bytes")));
        }
        let noted = self.metadata.iter().flatten();
        if noted.clone().count() > LABELS_MAX_COUNT
            || noted.clone().any(|(key, value)| key.len() + value.len() > METADATA_MAX_BYTES)
        {
            return Err(Failure::bad(format!(
                "metadata: at most {LABELS_MAX_COUNT} entries of {METADATA_MAX_BYTES} bytes"
            )));
        }
        Ok(())
    }
}

/// `POST /v1/objects`.
async fn create(
    caller: Caller<Manage>,
    root: Root,
    State(app): State<App>,
    Promised(promise): Promised,
    Json(asked): Json<Create>,
) -> Result<Json<Value>> {
    asked.check()?;
    let id = shelf::id_of(&promise);
    // An earlier server made the object, and was killed before it answered.
    if promise.renewed
        && let Ok(made) = find(&app, &caller, &id).await
    {
        return Ok(Json(uploading(&root, &made)));
    }
    let (shelf, owner) = (app.objects.clone(), caller.key());
    let (own, all) = work(move || shelf.totals(&owner)).await?;
    if own.count >= OF_KEY_MAX_COUNT || all.count >= MAX_COUNT {
        return Err(Failure::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many",
            "there are too many objects: delete some",
        ));
    }
    let now = now_ms();
    let object = Object {
        id,
        owner: caller.key().to_string(),
        name: asked.name,
        content_type: asked.content_type,
        metadata: asked.metadata.unwrap_or_default(),
        created_at_ms: now,
        delete_after_ms: asked.ttl_ms.map(|ttl| now.saturating_add(ttl)),
        size_bytes: None,
        state: shelf::State::Uploading,
        secret: disk::random().map_err(|error| broken(&error))?,
    };
    let answer = uploading(&root, &object);
    let shelf = app.objects.clone();
    work(move || shelf.create(&object)).await?;
    Ok(Json(answer))
}

/// An object whose content may be sent, with the address for it.
fn uploading(root: &Root, object: &Object) -> Value {
    let mut answer = view(object);
    answer["upload_url"] = content::upload_address(root, object).into();
    answer
}

/// The objects that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    limit: Option<i64>,
    starting_after: Option<String>,
    name: Option<String>,
    search: Option<String>,
    content_type: Option<String>,
    state: Option<String>,
}

impl List {
    fn wants(&self, object: &Object) -> bool {
        let has = |text: &str, part: &Option<String>| part.as_deref().is_none_or(|part| text.contains(part));
        let is = |value: Value, word: &Option<String>| {
            word.as_deref().filter(|word| !word.is_empty()).is_none_or(|word| value == word)
        };
        has(&object.name, &self.name)
            && (has(&object.name, &self.search) || has(&object.id, &self.search))
            && is(json!(object.content_type), &self.content_type)
            && is(json!(object.state), &self.state)
    }

    /// The page of these objects, as clients read it; `None` when it is to begin after one that is not among them. No more
    /// objects than the page has are in memory.
    fn page(&self, objects: impl Iterator<Item = Object>, limit: usize) -> Option<Value> {
        let (mut items, mut bytes, mut total, mut more) = (Vec::new(), 0, 0_usize, false);
        let mut after = self.starting_after.as_deref().filter(|after| !after.is_empty());
        for object in objects.filter(|object| self.wants(object)) {
            total += 1;
            match after {
                Some(id) if id == object.id => after = None,
                Some(_) => {}
                None if !more && items.len() < limit && bytes < PAGE_MAX_BYTES => {
                    bytes += object.bytes();
                    items.push(view(&object));
                }
                None => more = true,
            }
        }
        after.is_none().then(|| json!({"objects": items, "has_more": more, "total_count": total}))
    }
}

/// `GET /v1/objects`: newest first.
async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let limit = limit(query.limit)?;
    let (shelf, owner) = (app.objects.clone(), caller.key());
    let page = work(move || Ok(query.page(shelf.of(&owner)?, limit))).await?;
    page.map(Json).ok_or_else(|| Failure::bad("starting_after: is no id of an object in this list"))
}

/// `GET /v1/objects/list_public`: there are no public objects.
async fn list_public(_: Caller<Read>) -> Json<Value> {
    Json(json!({"objects": [], "has_more": false, "total_count": 0}))
}

/// `GET /v1/objects/{object}`: also an object that was deleted, for a while.
async fn one(caller: Caller<Read>, State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>> {
    match find(&app, &caller, &id).await {
        Ok(object) => Ok(Json(view(&object))),
        Err(failure) => app.gone.find(&id, caller.sees()).map(Json).ok_or(failure),
    }
}

/// `POST /v1/objects/{object}/complete`.
async fn complete(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let object = find(&app, &caller, &id).await?;
    let shelf = app.objects.clone();
    let closed = work(move || shelf.complete(&object.id)).await?;
    let closed = closed.ok_or_else(|| Failure::bad("the content of the object was not sent yet"))?;
    Ok(Json(view(&closed)))
}

/// `POST /v1/objects/{object}/delete`.
async fn delete(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let object = find(&app, &caller, &id).await?;
    let mut answer = view(&object);
    answer["state"] = "DELETED".into();
    let (shelf, id) = (app.objects.clone(), object.id.clone());
    work(move || shelf.remove(&id)).await?;
    app.gone.note(object.id, &caller.key(), answer.clone());
    Ok(Json(answer))
}

/// How long an address is good.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Download {
    duration_seconds: Option<u64>,
}

/// `GET /v1/objects/{object}/download`.
async fn download(
    caller: Caller<Read>,
    root: Root,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<Download>,
) -> Result<Json<Value>> {
    let object = find(&app, &caller, &id).await?;
    content::check_closed(&object)?;
    let seconds = query.duration_seconds.unwrap_or(ADDRESS_S);
    if !(1..=ADDRESS_MAX_S).contains(&seconds) {
        return Err(Failure::bad(format!("duration_seconds: 1 to {ADDRESS_MAX_S}")));
    }
    let until = app.host.engine().now_ms().saturating_add(seconds.saturating_mul(1000));
    Ok(Json(json!({"download_url": content::download_address(&root, &object, until)})))
}
