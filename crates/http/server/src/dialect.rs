//! Where other vendors' protocols join the server.
//!
//! A *dialect* is a crate with a router of its own, mounted under a path prefix of the one port. It gets a
//! [`Host`]: the engine, who asks, and how the server stops. The middleware around every request (id, log,
//! metrics, the check of `Origin`, panics) is the server's; how paths are read below the prefix, and what
//! errors look like, is the dialect's.

use std::sync::Arc;

use atoll_core::Error;
use atoll_engine::{Engine, Grant, VerifiedKey};
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::uri::PathAndQuery;
use http::{Extensions, HeaderMap, Uri};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::ServiceExt as _;

use crate::ingress::Ingress;
use crate::middleware;
use crate::serve::Slot;
use crate::shared::App;

pub use crate::auth::{Admin, Exec, Manage, Read, Release, Requires};
pub use crate::body::{Pieces, read_all};
pub use crate::transfer::{Source, body};

/// A dialect to mount: the prefix, such as `/langsmith`, and what makes its router. The router sees paths
/// without the prefix.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Path prefix: starts with a slash, does not end with one.
    pub prefix: &'static str,
    /// Makes the router.
    pub router: fn(Host) -> Router,
}

/// What a dialect gets of the server.
#[derive(Debug, Clone)]
pub struct Host {
    app: App,
    prefix: &'static str,
}

/// Keeps the server from stopping, and the connection counted, while something goes on.
#[derive(Debug)]
pub struct Held {
    _task: TaskTrackerToken,
    _slot: Option<Slot>,
}

impl Host {
    /// The use cases.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.app.engine
    }

    /// Where the dialect is mounted.
    #[must_use]
    pub fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// The ways to ports of sandboxes.
    #[must_use]
    pub fn ingress(&self) -> Ingress {
        Ingress { app: Arc::clone(&self.app) }
    }

    /// The key that a request presents, as `Authorization: Bearer` or `X-API-Key`.
    ///
    /// # Errors
    /// [`atoll_core::Code::Unauthorized`].
    pub fn verify(&self, headers: &HeaderMap) -> Result<VerifiedKey, Error> {
        crate::auth::verify(headers, &self.app).map_err(|error| error.0)
    }

    /// Notes by what right a request is answered: its bodies break off when that ends. What outlives the request,
    /// as a WebSocket does, waits for [`Engine::until_revoked`] itself.
    pub fn fill(&self, extensions: &Extensions, grant: Grant) {
        crate::revocation::GrantSlot::fill(extensions, grant);
    }

    /// Resolves when the server begins to stop: streams should end.
    pub fn draining(&self) -> WaitForCancellationFuture<'_> {
        self.app.draining.cancelled()
    }

    /// The token behind [`Self::draining`], for streams that outlive a borrow.
    #[must_use]
    pub fn draining_token(&self) -> CancellationToken {
        self.app.draining.clone()
    }

    /// For what outlives its HTTP request, as a WebSocket does. `extensions` are the request's.
    #[must_use]
    pub fn hold(&self, extensions: &Extensions) -> Held {
        Held { _task: self.app.tasks.token(), _slot: extensions.get::<Slot>().cloned() }
    }

    /// Counts bytes that a WebSocket took and gave.
    pub fn count(&self, received: usize, sent: usize) {
        self.app.metrics.received(received);
        self.app.metrics.sent(sent);
    }
}

/// The dialects of a server, ready to take requests.
#[derive(Debug, Clone)]
pub(crate) struct Mounts(Arc<[(&'static str, Router)]>);

/// Names the dialect that answered, for metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mounted(pub(crate) &'static str);

impl Mounts {
    pub(crate) fn new(app: &App, dialects: &[Dialect]) -> Self {
        let mount = |dialect: &Dialect| {
            let host = Host { app: Arc::clone(app), prefix: dialect.prefix };
            (dialect.prefix, (dialect.router)(host))
        };
        Self(dialects.iter().map(mount).collect())
    }

    /// Takes what no native route does.
    pub(crate) async fn handle(self, mut request: Request) -> Response {
        let found = self.0.iter().find_map(|(prefix, router)| {
            let uri = below(request.uri(), prefix)?;
            Some((*prefix, router.clone(), uri))
        });
        let Some((prefix, router, uri)) = found else {
            return middleware::route_not_found(request.uri().clone()).await.into_response();
        };
        *request.uri_mut() = uri;
        // A router cannot fail.
        let mut response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
        response.extensions_mut().insert(Mounted(prefix));
        response
    }
}

/// The address without the prefix, when it lies below it.
fn below(uri: &Uri, prefix: &str) -> Option<Uri> {
    let rest = uri.path().strip_prefix(prefix)?;
    if !rest.is_empty() && !rest.starts_with('/') {
        return None;
    }
    let path = if rest.is_empty() { "/" } else { rest };
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_whole_segments() {
        let at = |text: &str| below(&text.parse::<Uri>().unwrap(), "/dialect").map(|uri| uri.to_string());
        assert_eq!(at("/dialect/a/b?c=d").as_deref(), Some("/a/b?c=d"));
        assert_eq!(at("/dialect").as_deref(), Some("/"));
        assert_eq!(at("/dialect//a").as_deref(), Some("//a"));
        assert_eq!(at("/dialects/a"), None);
        assert_eq!(at("/v1/info"), None);
    }
}
