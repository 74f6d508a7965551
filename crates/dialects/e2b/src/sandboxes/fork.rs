//! Forks: several sandboxes that go on from the state of one.

use std::collections::BTreeMap;

use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{IsolationLevel, SandboxUpdate};
use atoll_dialect_kit::sandboxes::finish;
use atoll_engine::{Caller as EngineCaller, Engine, ForkOrder, Made};
use atoll_store::SandboxRecord;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::open_ports;
use super::lifecycle::limit_s;
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Caller, Domain, Id, Json, Manage};
use crate::view::Sandbox;

/// Most children at once.
const CHILDREN_MAX: u32 = 100;
/// Life of a child when the client gives none, seconds.
const TIMEOUT_S: u64 = 15;

/// The fork that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Order {
    timeout: Option<i64>,
    count: Option<u32>,
}

/// Makes children; answers with each child or its error.
pub(super) async fn fork(
    caller: Caller<Manage>,
    State(app): State<App>,
    domain: Domain,
    Id(id): Id,
    Json(request): Json<Order>,
) -> Result<Response> {
    let seconds = request.timeout.map_or(Ok(TIMEOUT_S), |seconds| limit_s(seconds, 1))?;
    let count = request.count.unwrap_or(1);
    if !(1..=CHILDREN_MAX).contains(&count) {
        return Err(Failure::bad(format!("count: must lie between 1 and {CHILDREN_MAX}")));
    }
    let engine = app.host.engine();
    let parent = engine.sandbox(&id).map_err(|_missing| Failure::no_sandbox(id.as_str()))?;
    match parent.state {
        SandboxState::Running => {}
        SandboxState::Deleting | SandboxState::Failed => return Err(Failure::no_sandbox(id.as_str())),
        _ => return Err(Failure::conflict(format!("Sandbox '{id}' is not running"))),
    }
    let order = ForkOrder {
        count,
        memory: parent.spec.isolation == IsolationLevel::Microvm,
        ttl_ms: Some(seconds * 1000),
        ..ForkOrder::default()
    };
    let by = caller.engine();
    let made = engine.fork_sandbox(&id, &order, by).await.map_err(|error| Failure::of(&error))?;
    // The protocol has no key by which a retry finds the children: a client that left has lost them.
    let undo = app.host.undo(made.iter().flatten().map(|child| child.id.clone()).collect());
    let mut extras = Extras::of(&parent);
    extras.timeout_s = Some(seconds);
    let mut answers = Vec::with_capacity(made.len());
    for child in made {
        let dressed = match child {
            Ok(child) => dress(engine, child, &extras, by).await,
            Err(error) => Err(Failure::of(&error)),
        };
        answers.push(match dressed {
            Ok(child) => json!({"sandbox": Sandbox::new(engine, &child, &caller.key(), domain.clone())}),
            Err(failure) => error(&failure),
        });
    }
    Ok((StatusCode::CREATED, axum::Extension(undo), axum::Json(answers)).into_response())
}

fn error(failure: &Failure) -> Value {
    json!({"error": {"code": failure.status.as_u16(), "message": failure.message}})
}

/// Gives a child its parent's annotation and open ports, by which its clients know it.
async fn dress(
    engine: &Engine,
    child: SandboxRecord,
    extras: &Extras,
    by: &EngineCaller,
) -> Result<SandboxRecord> {
    let annotations = BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]);
    let update = SandboxUpdate { annotations, ..SandboxUpdate::default() };
    let dressed = finish(engine, by, Made::New(child), |child| async move {
        let record = engine.update_sandbox(&child.id, update).await;
        let record = record.map_err(|error| Failure::of(&error))?;
        if !extras.private_ports {
            open_ports(engine, &record, by).await?;
        }
        Ok::<_, Failure>(record)
    });
    dressed.await.map(Made::into_record)
}
