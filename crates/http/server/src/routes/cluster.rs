//! Whether the nodes of a cluster fit together.

use std::time::Instant;

use atoll_api::Doctor;
use atoll_isolation::{Check, Status};
use axum::extract::State;
use http::request::Parts;

use crate::auth::{Admin, Caller};
use crate::cluster::{from_others, reach};
use crate::error::ApiResult;
use crate::extract::Json;
use crate::shared::App;

/// Whether all nodes have what a cluster needs: leases, clocks, the vault's key, schema and versions, and whether each reaches
/// each other. Without nodes there is nothing to check.
#[utoipa::path(get, path = "/v1/doctor/cluster", tag = "system", security(("key" = ["admin"])),
    responses((status = 200, body = Doctor)))]
pub(crate) async fn run_cluster_doctor(
    _: Caller<Admin>,
    State(app): State<App>,
    parts: Parts,
) -> ApiResult<Json<Doctor>> {
    let others = from_others(&app, &parts).await;
    let mut checks = of_this(&app).await?;
    let is_asked = parts.extensions.get::<crate::cluster::PassedOn>().is_none();
    if is_asked {
        checks.extend(known(&app).await?);
    }
    for (node, answer) in others {
        match answer.map(|text| serde_json::from_slice::<Doctor>(&text)) {
            Ok(Ok(theirs)) => checks.extend(theirs.checks),
            Ok(Err(_malformed)) => {
                checks.push(Check::new(&node.name, Status::Missing, "it answers in another way"));
            }
            Err(error) => checks.push(Check::new(&node.name, Status::Missing, error.message)),
        }
    }
    Ok(Json(Doctor { checks }))
}

/// What this node finds of itself and its ways to the others, under its name.
async fn of_this(app: &App) -> ApiResult<Vec<Check>> {
    let mut checks = app.engine.check_node().await?;
    let ways = app.engine.other_nodes().into_iter().map(|node| async move {
        let began = Instant::now();
        match reach(app, &node).await {
            Ok(()) => {
                let ms = began.elapsed().as_millis();
                Check::new("reach", Status::Ok, format!("{} at {} in {ms} ms", node.name, node.address))
            }
            Err(error) => Check::new(
                "reach",
                Status::Missing,
                format!("{} at {}: {}", node.name, node.address, error.message),
            )
            .hint("is --advertise an address that the other nodes reach, and the port open between them?"),
        }
    });
    checks.extend(futures::future::join_all(ways).await);
    let id = app.engine.node_id();
    let nodes = app.engine.nodes().await?;
    let name = nodes.into_iter().find(|node| Some(&node.id) == id.as_ref()).map(|node| node.name);
    for check in &mut checks {
        check.name = format!("{}: {}", name.as_deref().unwrap_or("?"), check.name);
    }
    Ok(checks)
}

/// What the database says of all nodes.
async fn known(app: &App) -> ApiResult<Vec<Check>> {
    let nodes = app.engine.nodes().await?;
    let mut versions: Vec<&str> =
        nodes.iter().filter(|node| node.is_alive).map(|node| node.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let mut checks = Vec::new();
    if !versions.is_empty() {
        let detail = format!("living nodes run {}", versions.join(", "));
        checks.push(if versions.len() == 1 {
            Check::new("versions", Status::Ok, detail)
        } else {
            Check::new("versions", Status::Limited, detail).hint("bring all nodes to the newest")
        });
    }
    for node in nodes.iter().filter(|node| !node.is_alive) {
        checks.push(
            Check::new(&node.name, Status::Limited, "it is dead: what is on its disks waits for it")
                .hint("start it again, or forget it with 'atoll node rm'"),
        );
    }
    Ok(checks)
}
