//! Answers that all nodes give together: lists and streams of what each node keeps for itself.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Code, Error};
use atoll_engine::Asked;
use atoll_store::NodeRecord;
use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, UPGRADE};
use http::request::Parts;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::upgrade::OnUpgrade;

use super::{PassedOn, Unsent, send};
use crate::shared::App;

/// How long one node may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer of one node, bytes.
const ANSWER_MAX_BYTES: usize = 16 << 20;
/// A node may hear of a new key a moment later: so often it is asked again.
const TRIES: u32 = 5;
const TRY_EVERY: Duration = Duration::from_millis(250);

/// What each of the other living nodes answers to the same request; none for a request that a node passed on.
pub(crate) async fn from_others(app: &App, parts: &Parts) -> Vec<(Arc<NodeRecord>, Result<Bytes, Error>)> {
    let asked = others(app, parts).into_iter().map(|(node, parts)| async move {
        let whole = async {
            let body = Limited::new(ask(app, &node, &parts).await?, ANSWER_MAX_BYTES).collect().await;
            body.map(http_body_util::Collected::to_bytes).map_err(|error| {
                tracing::warn!(node = node.name, %error, "another node's part of a list");
                silent(&node, "broke off")
            })
        };
        let answer = tokio::time::timeout(TIMEOUT, whole).await;
        let answer = answer.unwrap_or_else(|_late| Err(silent(&node, "does not answer in time")));
        (node, answer)
    });
    futures::future::join_all(asked).await
}

/// The same, of streams that have only begun.
pub(crate) async fn streams_of_others(app: &App, parts: &Parts) -> Result<Vec<Body>, Error> {
    let asked = others(app, parts).into_iter().map(|(node, parts)| async move {
        let answer = tokio::time::timeout(TIMEOUT, ask(app, &node, &parts)).await;
        answer.unwrap_or_else(|_late| Err(silent(&node, "does not answer in time")))
    });
    futures::future::try_join_all(asked).await
}

/// The other nodes to ask, each with the head of the request.
fn others(app: &App, parts: &Parts) -> Vec<(Arc<NodeRecord>, Parts)> {
    let is_passed_on = parts.extensions.get::<PassedOn>().is_some();
    if parts.method != Method::GET || is_passed_on || Asked::current().is_none() {
        return Vec::new();
    }
    let mut parts = parts.clone();
    // This node reads the answers itself, so these headers of the client's request do not go along.
    for header in [ACCEPT_ENCODING, CONTENT_LENGTH, UPGRADE] {
        parts.headers.remove(header);
    }
    parts.extensions.remove::<OnUpgrade>();
    app.engine.other_nodes().into_iter().map(|node| (node, parts.clone())).collect()
}

async fn ask(app: &App, node: &NodeRecord, parts: &Parts) -> Result<Body, Error> {
    for number in 1.. {
        let answered = send(app, node, parts, None, Body::empty()).await;
        let response = answered.map_err(|(Unsent::NotReached(error) | Unsent::Unknown(error))| error)?;
        match response.status() {
            StatusCode::OK => return Ok(response.into_body()),
            StatusCode::UNAUTHORIZED if number < TRIES => tokio::time::sleep(TRY_EVERY).await,
            status => return Err(silent(node, &format!("refuses ({status})"))),
        }
    }
    Err(silent(node, "refuses"))
}

fn silent(node: &NodeRecord, what: &str) -> Error {
    Error::new(Code::NodeUnavailable, format!("the node '{}' {what}", node.name))
        .hint("try again; 'atoll node ls' shows the nodes")
}
