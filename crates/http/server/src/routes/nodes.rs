//! Nodes of a cluster.

use atoll_api::{Node, NodeDrain, NodeList, NodeState, StayingSandbox, UpdateNode};
use atoll_store::NodeRecord;
use axum::extract::State;

use crate::auth::{Admin, Caller};
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

const fn state(node: &NodeRecord) -> NodeState {
    match (node.is_alive, node.is_draining) {
        (false, _) => NodeState::Dead,
        (true, true) => NodeState::Draining,
        (true, false) => NodeState::Ready,
    }
}

fn view(app: &App, node: NodeRecord) -> Node {
    Node {
        is_this: app.engine.node_id().as_ref() == Some(&node.id),
        state: state(&node),
        id: node.id.to_string(),
        name: node.name,
        address: node.address,
        version: node.version,
        levels: node.facts.levels,
        labels: node.facts.labels,
        sandboxes: node.load.sandboxes,
        sandboxes_max: node.facts.sandboxes_max,
        memory_available_bytes: Some(node.load.memory_available_bytes).filter(|bytes| *bytes < u64::MAX),
        lease_ms: node.lease_ms,
        seen_ms: node.seen_ms,
        created_ms: node.created_ms,
    }
}

/// Lists the nodes of the cluster; none where the database belongs to one server.
#[utoipa::path(get, path = "/v1/nodes", tag = "system", security(("key" = ["admin"])),
    responses((status = 200, body = NodeList)))]
pub(crate) async fn list_nodes(_: Caller<Admin>, State(app): State<App>) -> ApiResult<Json<NodeList>> {
    let nodes = app.engine.nodes().await?;
    Ok(Json(NodeList { items: nodes.into_iter().map(|node| view(&app, node)).collect() }))
}

/// Shows a node, by id or name.
#[utoipa::path(get, path = "/v1/nodes/{node}", tag = "system", security(("key" = ["admin"])),
    params(("node" = String, Path)), responses((status = 200, body = Node)))]
pub(crate) async fn get_node(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(node): Path<String>,
) -> ApiResult<Json<Node>> {
    let node = app.engine.node(&node).await?;
    Ok(Json(view(&app, node)))
}

/// Shows what a node still has: with an object store, what can go to other nodes does while it takes no new sandboxes.
#[utoipa::path(get, path = "/v1/nodes/{node}/drain", tag = "system", security(("key" = ["admin"])),
    params(("node" = String, Path)), responses((status = 200, body = NodeDrain)))]
pub(crate) async fn get_node_drain(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(node): Path<String>,
) -> ApiResult<Json<NodeDrain>> {
    let (node, left) = app.engine.left_on(&node).await?;
    let items = left.items.into_iter().map(|one| StayingSandbox {
        id: one.sandbox.into(),
        name: one.name,
        reason: one.reason,
    });
    Ok(Json(NodeDrain {
        state: state(&node),
        sandboxes: left.sandboxes,
        staying: left.staying,
        items: items.collect(),
    }))
}

/// Says whether a node takes new sandboxes. With an object store, those that it has go to others meanwhile; without, they go on
/// there.
#[utoipa::path(patch, path = "/v1/nodes/{node}", tag = "system", security(("key" = ["admin"])),
    params(("node" = String, Path)), request_body = UpdateNode, responses((status = 200, body = Node)))]
pub(crate) async fn update_node(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(node): Path<String>,
    Json(request): Json<UpdateNode>,
) -> ApiResult<Json<Node>> {
    let node = app.engine.set_draining(&node, request.draining).await?;
    Ok(Json(view(&app, node)))
}

/// Forgets a node that is dead, with what was on its disks: hibernated sandboxes, snapshots, volumes.
#[utoipa::path(delete, path = "/v1/nodes/{node}", tag = "system", security(("key" = ["admin"])),
    params(("node" = String, Path)), responses((status = 200, body = Node)))]
pub(crate) async fn delete_node(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(node): Path<String>,
) -> ApiResult<Json<Node>> {
    let node = app.engine.remove_node(&node).await?;
    Ok(Json(view(&app, node)))
}
