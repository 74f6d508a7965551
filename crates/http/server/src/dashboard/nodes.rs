//! Sessions of one node, at all nodes of a cluster.
//!
//! A session belongs to the node that opened it, and a link to the node that made it; the token names that node. When a
//! browser shows such a token to another node, that node asks the one that is named, and has the session too for as
//! long as the answer goes on. The answer ends with the session, with the named node, and with the connection; after
//! that the node asks again.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{KeyId, NodeId};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_dashboard::Site;
use atoll_store::NodeRecord;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};

use crate::cluster::{self, PassedOn};
use crate::shared::App;

/// The path at which other nodes ask about a session. Served only on the port for nodes.
pub(crate) const PATH: &str = "/nodes/session";
/// The token that they ask about.
const TOKEN: HeaderName = HeaderName::from_static("atoll-node-token");
/// Whether it is a session for the servers' own machines.
const LOCAL: HeaderName = HeaderName::from_static("atoll-node-local");
/// Stands between the secret part of a token and the id of the node that knows it.
const MARK: char = '.';
/// How long another node may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long this node waits for a node that has just joined to become known here, and how often it looks.
const JOIN_TIMEOUT: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest line that a node sends about a session, bytes.
const LINE_MAX_BYTES: usize = 1 << 10;

/// The data about a session that a node sends to another.
#[derive(Serialize, Deserialize)]
struct Told {
    key: KeyId,
    csrf: String,
}

/// A token as it is shown: with the node that knows it, where there are others.
pub(crate) fn text(app: &App, code: &Secret) -> Secret {
    match app.engine.node_id() {
        Some(node) => Secret::new(format!("{}{MARK}{node}", code.reveal())),
        None => code.clone(),
    }
}

/// The secret part of a token.
pub(super) fn code(text: &str) -> &str {
    text.split_once(MARK).map_or(text, |(code, _)| code)
}

/// The other node that knows a token, if it lives.
fn home(app: &App, text: &str) -> Option<Arc<NodeRecord>> {
    let id: NodeId = text.split_once(MARK)?.1.parse().ok()?;
    app.engine.other_nodes().into_iter().find(|node| node.id == id)
}

/// Whether a token names another node, which may have entered since this one last looked.
fn is_of_another(app: &App, text: &str) -> bool {
    let id = text.split_once(MARK).and_then(|(_, id)| id.parse::<NodeId>().ok());
    id.is_some() && id != app.engine.node_id()
}

async fn ask(
    app: &App,
    site: &Site,
    node: &NodeRecord,
    method: Method,
    text: &str,
) -> Result<Response, Error> {
    let wrong = || Error::new(Code::Unauthorized, "the token cannot be read");
    let mut token = HeaderValue::from_str(code(text)).map_err(|_error| wrong())?;
    token.set_sensitive(true);
    let request = Request::builder().method(method).uri(PATH).header(TOKEN, token);
    let request = if site.local { request.header(LOCAL, "1") } else { request };
    let asking = cluster::ask_node(app, node, request.body(()).map_err(|_error| wrong())?);
    let late =
        || Error::new(Code::NodeUnavailable, format!("the node '{}' does not answer in time", node.name));
    tokio::time::timeout(TIMEOUT, asking).await.map_err(|_late| late())?
}

/// Takes over the first session that the request shows and that another node has.
pub(super) async fn look_up(app: &App, site: &Site, shown: impl Iterator<Item = &str>) {
    let unknown = shown.filter(|text| app.console.sessions.find(code(text), site.local).is_none());
    let Some((text, node)) = unknown.filter_map(|text| Some((text, home(app, text)?))).next() else { return };
    if let Err(error) = take_over(app, site, &node, text).await {
        tracing::debug!(%error, node = node.name, "a session of another node");
    }
}

async fn take_over(app: &App, site: &Site, node: &NodeRecord, text: &str) -> Result<(), Error> {
    let response = ask(app, site, node, Method::GET, text).await?;
    if response.status() != StatusCode::OK {
        return Ok(());
    }
    let broken = || Error::new(Code::NodeUnavailable, "it broke off");
    let mut body = response.into_body().into_data_stream();
    let line = tokio::time::timeout(TIMEOUT, line_of(&mut body)).await.ok().flatten().ok_or_else(broken)?;
    let told: Told = serde_json::from_slice(&line).map_err(|_error| broken())?;
    let held = app.console.sessions.take_over(code(text), told.key, Secret::new(told.csrf), site.local)?;
    // Another request has taken it over already.
    let Some(session) = held else { return Ok(()) };
    let ended = session.ended().clone();
    app.tasks.spawn({
        let draining = app.draining.clone();
        async move {
            tokio::select! {
                () = async { while let Some(Ok(_)) = body.next().await {} } => {}
                () = ended.cancelled() => {}
                () = draining.cancelled() => {}
            }
            ended.cancel();
        }
    });
    Ok(())
}

async fn line_of(body: &mut BodyDataStream) -> Option<Bytes> {
    let mut read = BytesMut::new();
    while read.len() < LINE_MAX_BYTES {
        if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            return Some(read.split_to(end).freeze());
        }
        read.extend_from_slice(&body.next().await?.ok()?);
    }
    None
}

/// Opens a session by a link, at the node that made it. Gives the text of its token.
pub(super) async fn open(app: &App, site: &Site, link: &str) -> Result<Option<Secret>, Error> {
    let known = async {
        loop {
            match home(app, link) {
                None if is_of_another(app, link) => tokio::time::sleep(LOOK_EVERY).await,
                home => break home,
            }
        }
    };
    let Some(node) = tokio::time::timeout(JOIN_TIMEOUT, known).await.ok().flatten() else {
        return Ok(app.console.sessions.open(code(link), site.local)?.map(|opened| text(app, &opened)));
    };
    let response = ask(app, site, &node, Method::POST, link).await?;
    if response.status() != StatusCode::OK {
        return Ok(None);
    }
    let line = line_of(&mut response.into_body().into_data_stream()).await;
    let opened = line.and_then(|line| Some(Secret::new(std::str::from_utf8(&line).ok()?)));
    Ok(opened.map(|opened| Secret::new(format!("{}{MARK}{}", opened.reveal(), node.id))))
}

/// Ends a session, at its node too.
pub(super) async fn end(app: &App, site: &Site, token: &str) -> Result<(), Error> {
    app.console.sessions.end(code(token));
    if let Some(node) = home(app, token) {
        drop(ask(app, site, &node, Method::DELETE, token).await?);
    }
    Ok(())
}

/// Answers other nodes about sessions and links of this one.
pub(crate) async fn session_of_node(State(app): State<App>, request: Request) -> Response {
    let token = request.headers().get(&TOKEN).and_then(|token| token.to_str().ok());
    let Some(token) = token.filter(|_| request.extensions().get::<PassedOn>().is_some()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let local = request.headers().contains_key(&LOCAL);
    let sessions = &app.console.sessions;
    match *request.method() {
        Method::GET => match sessions.find(token, local) {
            Some(session) => tell(&app, &session),
            None => StatusCode::UNAUTHORIZED.into_response(),
        },
        Method::POST => match sessions.open(token, local) {
            Ok(Some(opened)) => format!("{}\n", opened.reveal()).into_response(),
            Ok(None) | Err(_) => StatusCode::UNAUTHORIZED.into_response(),
        },
        Method::DELETE => {
            sessions.end(token);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// Tells a node what a session is; the end of the answer tells that the session has ended.
fn tell(app: &App, session: &atoll_dashboard::Session) -> Response {
    let told = Told { key: session.key().clone(), csrf: session.csrf().reveal().to_owned() };
    let Ok(mut line) = serde_json::to_vec(&told) else { return StatusCode::UNAUTHORIZED.into_response() };
    line.push(b'\n');
    let (ended, draining) = (session.ended().clone(), app.draining.clone());
    let end = async move {
        tokio::select! {
            () = ended.cancelled() => {}
            () = draining.cancelled() => {}
        }
        None
    };
    let line = stream::once(async move { Some(Ok::<_, std::io::Error>(Bytes::from(line))) });
    Body::from_stream(line.chain(stream::once(end)).filter_map(futures::future::ready)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_is_bounded_and_whole() {
        let line = async |pieces: &'static [&'static str]| {
            let body =
                Body::from_stream(stream::iter(pieces.iter().map(|piece| Ok::<_, std::io::Error>(*piece))));
            line_of(&mut body.into_data_stream()).await
        };
        assert_eq!(line(&["{\"a\"", ":1}\nrest"]).await.unwrap(), "{\"a\":1}");
        assert_eq!(line(&["no end"]).await, None);
        static LONG: [&str; 64] = ["0123456789012345678901234567890123456789"; 64];
        assert_eq!(line(&LONG).await, None);
        assert_eq!((code("abc.nd_1"), code("abc"), code("")), ("abc", "abc", ""));
    }
}
