//! Building a template: the clients' orders, as builds of the engine.
//!
//! ```text
//! POST /v3/templates                         a build is ordered: it has an id, and no steps yet
//! GET  /templates/{t}/files/{hash}           is this archive here? if not: where to send it   (archives)
//! POST /v2/templates/{t}/builds/{b}          its steps: the engine's build begins             (translate)
//! GET  /templates/{t}/builds/{b}/status      how it stands, and its log                       (status)
//! ```
//!
//! Orders live in memory: when the server restarts, the interrupted build is over and its id is forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::build::BuildSpec;
use atoll_core::id::{BuildId, KeyId};
use atoll_core::service::Services;
use atoll_core::spec::{self, ResourcesDraft};
use atoll_engine::BuildSecrets;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::translate::{Asked, Line, Plan, plan};
use super::{archives, id_of, name_of, tag_of};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Manage, Path};
use crate::time::now_ms;

/// Most orders that are remembered.
const ORDERS_MAX: usize = 10_000;
/// Most orders of one key: no key uses up the room that all share. The key's oldest order is removed.
const OF_KEY_MAX: usize = 1000;
/// How long, milliseconds.
const REMEMBERED_MS: u64 = 24 * 3600 * 1000;
const MIB: u64 = 1 << 20;

/// The orders of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Orders(Arc<Mutex<HashMap<String, Order>>>);

/// A build that was ordered.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) key: KeyId,
    pub(super) name: String,
    pub(super) tags: Vec<String>,
    pub(super) resources: ResourcesDraft,
    pub(super) at_ms: u64,
    /// Whether a client sent its steps.
    pub(super) is_claimed: bool,
    /// Present once its steps are known.
    pub(super) begun: Option<Begun>,
}

#[derive(Debug, Clone)]
pub(super) struct Begun {
    pub(super) build: BuildId,
    /// The client's step for each instruction of the engine's build.
    pub(super) lines: Arc<[Line]>,
}

impl Orders {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<String, Order>> {
        // The map stays usable when a task panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, id: String, order: Order) -> Result<()> {
        let mut table = self.table();
        table.retain(|_, known| known.at_ms.saturating_add(REMEMBERED_MS) > order.at_ms);
        let own = table.iter().filter(|(_, known)| known.key == order.key);
        if own.clone().count() >= OF_KEY_MAX
            && let Some(oldest) = own.min_by_key(|(_, known)| known.at_ms).map(|(id, _)| id.clone())
        {
            table.remove(&oldest);
        }
        if table.len() >= ORDERS_MAX {
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, "too many builds were ordered today"));
        }
        table.insert(id, order);
        Ok(())
    }

    /// An order of this key, for the request that begins it: every later request is refused.
    fn claim(&self, id: &str, key: &KeyId) -> Result<Order> {
        let mut order = self.find(id, key)?;
        if let Some(known) = self.table().get_mut(id) {
            order.is_claimed = std::mem::replace(&mut known.is_claimed, true);
        }
        if order.is_claimed { Err(Failure::conflict("the build has begun already")) } else { Ok(order) }
    }

    /// The steps were refused: the client may send steps again.
    fn release(&self, id: &str) {
        if let Some(order) = self.table().get_mut(id) {
            order.is_claimed = false;
        }
    }

    /// An order of this key.
    pub(super) fn find(&self, id: &str, key: &KeyId) -> Result<Order> {
        let found = self.table().get(id).filter(|order| order.key == *key).cloned();
        found.ok_or_else(|| {
            Failure::not_found(format!("build '{}' not found", atoll_core::error::shorten(id)))
        })
    }
}

/// The template that a client wants built.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    name: Option<String>,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    #[serde(rename = "cpuCount")]
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u64>,
    #[serde(rename = "minFreeDiskMb")]
    min_free_disk_mb: Option<u64>,
}

/// `POST /v3/templates`.
pub(super) async fn order(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(wanted): Json<Wanted>,
) -> Result<(StatusCode, axum::Json<Value>)> {
    let asked = wanted.name.or(wanted.alias).filter(|name| !name.is_empty());
    let asked = asked.ok_or_else(|| Failure::bad("name: is missing"))?;
    let name = name_of(&asked).to_ascii_lowercase();
    spec::recipe_name("name", &name).map_err(|error| Failure::of(&error))?;
    let tags: Vec<&str> =
        tag_of(&asked).into_iter().chain(wanted.tags.iter().flatten().map(String::as_str)).collect();
    let tags = super::tags::checked(&tags)?;
    if wanted.memory_mb.is_some_and(|mb| mb < 128 || mb % 2 == 1) {
        return Err(Failure::bad("memoryMB: must be even and at least 128"));
    }
    let resources = ResourcesDraft {
        cpu_millis: wanted.cpu_count.map(|count| count.saturating_mul(1000)),
        memory_bytes: wanted.memory_mb.map(|mb| mb.saturating_mul(MIB)),
        disk_bytes: wanted.min_free_disk_mb.map(|mb| mb.saturating_mul(MIB)),
        ..ResourcesDraft::default()
    };
    let id = uuid()?;
    let order = Order {
        key: caller.key(),
        name: name.clone(),
        tags: tags.clone(),
        resources,
        at_ms: now_ms(),
        is_claimed: false,
        begun: None,
    };
    app.orders.enter(id.clone(), order)?;
    let answer = json!({
        "templateID": id_of(&name), "buildID": id, "public": false,
        "names": [name], "aliases": [name], "tags": tags,
    });
    Ok((StatusCode::ACCEPTED, axum::Json(answer)))
}

/// A random id, in the form that the clients read.
fn uuid() -> Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "no randomness for a build");
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the host's random generator failed")
    })?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = blake3::Hash::from_bytes({
        let mut all = [0; 32];
        all[..16].copy_from_slice(&bytes);
        all
    })
    .to_hex();
    let hex = hex.as_str();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32]))
}

/// `POST /v2/templates/{template}/builds/{build}`.
pub(super) async fn begin(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path((_, id)): Path<(String, String)>,
    Json(asked): Json<Asked>,
) -> Result<StatusCode> {
    let order = app.orders.claim(&id, &caller.key())?;
    let begun = run(&app, &caller, &id, order, asked).await;
    if begun.is_err() {
        app.orders.release(&id);
    }
    begun.map(|()| StatusCode::ACCEPTED)
}

/// Has the engine build an order.
async fn run(app: &App, caller: &Caller<Manage>, id: &str, order: Order, asked: Asked) -> Result<()> {
    let engine = app.host.engine();
    let Plan { steps, lines, archives, no_cache, start, ready, login } =
        plan(engine, &asked, caller.engine()).await?;
    let spec = BuildSpec {
        name: order.name.clone(),
        tags: order.tags,
        dockerfile: None,
        steps: Some(steps),
        // All files in the archives belong to the context.
        ignore: Some(String::new()),
        args: std::collections::BTreeMap::new(),
        target: None,
        no_cache,
        start,
        ready,
        restart: None,
        // The clients expect that a failing start command fails the build.
        verify: true,
        memory: false,
        isolation: None,
        resources: order.resources,
        labels: std::collections::BTreeMap::new(),
        egress: None,
        template_egress: None,
        ttl_ms: None,
        idle_timeout_ms: None,
        timeout_ms: None,
        services: Services::new(),
    };
    let context = match archives.is_empty() {
        true => None,
        false => Some(archives::Context::find(engine, &caller.key(), &archives).await?),
    };
    let view = engine
        .create_build_with(spec, login, BuildSecrets::new(), caller.engine())
        .await
        .map_err(|error| Failure::of(&error))?;
    let build = view.record.id.clone();
    if let Some(order) = app.orders.table().get_mut(id) {
        order.begun = Some(Begun { build: build.clone(), lines: lines.into() });
    }
    if view.needs_context {
        let engine = engine.clone();
        tokio::spawn(async move {
            let sent = match context {
                Some(context) => engine.put_build_context(&build, context.into_tar()).await.map(drop),
                None => Ok(()),
            };
            if let Err(error) = sent {
                tracing::info!(%error, %build, "the files of a build could not be read");
                drop(engine.cancel_build(&build).await);
            }
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(key: &KeyId, at_ms: u64) -> Order {
        Order {
            key: key.clone(),
            name: "x".to_owned(),
            tags: Vec::new(),
            resources: ResourcesDraft::default(),
            at_ms,
            is_claimed: false,
            begun: None,
        }
    }

    #[test]
    fn no_key_uses_up_the_orders() {
        let orders = Orders::default();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        orders.enter("other's".to_owned(), order(&other, 0)).unwrap();
        for at_ms in 0..OF_KEY_MAX as u64 + 10 {
            orders.enter(at_ms.to_string(), order(&one, at_ms)).unwrap();
        }
        assert_eq!(orders.table().len(), OF_KEY_MAX + 1);
        assert!(orders.find("9", &one).is_err() && orders.find("10", &one).is_ok());
        assert!(orders.find("other's", &other).is_ok() && orders.find("other's", &one).is_err());
    }

    #[test]
    fn an_order_is_begun_once() {
        let (orders, key) = (Orders::default(), KeyId::from_parts(1, 1));
        orders.enter("x".to_owned(), order(&key, 0)).unwrap();
        assert!(!orders.claim("x", &key).unwrap().is_claimed);
        assert_eq!(orders.claim("x", &key).unwrap_err().status, StatusCode::CONFLICT);
        orders.release("x");
        assert!(orders.claim("x", &key).is_ok());
        assert_eq!(orders.claim("y", &key).unwrap_err().status, StatusCode::NOT_FOUND);
        assert_eq!(orders.claim("x", &KeyId::from_parts(1, 2)).unwrap_err().status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn ids_are_random_uuids() {
        let one = uuid().unwrap();
        let lengths: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&one[14..15], "4");
        assert_ne!(one, uuid().unwrap());
    }
}
