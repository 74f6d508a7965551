//! Which requests are a dialect's.
//!
//! ```text
//! 1. a host name that a dialect claims          49983-i0abc.sandboxes.example.com
//! 2. a host name of a port                      3000-web.sandboxes.example.com       → ingress
//! 3. a header that a dialect claims             E2b-Sandbox-Id: i0abc
//! 4. headers or a path that name a port                                              → ingress
//! 5. a gRPC service, or the beginning of a path /modal.client.ModalClient/AppList, /langsmith/…
//! 6. all else                                                                        → native API
//! ```
//!
//! The host name decides before headers, because a page in a sandbox chooses its headers, but not the name under
//! which it was reached: what it asks of its own origin goes to its own port.

use std::sync::Arc;

use atoll_core::access::below_domain;
use atoll_engine::Engine;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use tower::ServiceExt as _;

use super::{Dialect, Host};
use crate::ingress::{address, shows_credential};
use crate::middleware::{self, Around};
use crate::shared::App;

/// A claim on requests.
#[derive(Debug, Clone, Copy)]
pub enum Mount {
    /// Below a path, such as `/langsmith`: starts with a slash, does not end with one. The dialect's router sees
    /// paths without it.
    Prefix(&'static str),
    /// Under host names below the server's domain, or below another of its names.
    Host(fn(&Named<'_>) -> bool),
    /// With a header of this name (in lower case), under any path. The request may come under any host name that is not
    /// a port's.
    Header(&'static str),
    /// Calls of a gRPC or Connect service, such as `modal.client.ModalClient`: the router sees
    /// `/modal.client.ModalClient/Method`.
    Service(&'static str),
}

/// A request under a host name below the server's domain, for dialects to say whether it is theirs.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// What stands before the domain, in lower case: `api` or `49983-i0abc`.
    pub label: &'a str,
    /// The headers of the request. The client chose them.
    pub headers: &'a HeaderMap,
    /// The address of the request.
    pub uri: &'a Uri,
    /// The use cases.
    pub engine: &'a Engine,
}

impl Named<'_> {
    /// Whether a credential of the native API for ports comes with it: a link's token, a cookie, or a header.
    #[must_use]
    pub fn shows_native_credential(&self) -> bool {
        shows_credential(self.headers, self.uri)
    }
}

/// How a request came to its dialect. It is in the extensions of each request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Beginning of the path that was taken off.
    pub prefix: &'static str,
    /// What stood before the domain in the host name that was claimed, in lower case.
    pub label: Option<String>,
}

/// The dialects of a server, ready to take requests.
#[derive(Debug, Clone)]
pub(crate) struct Mounts {
    app: App,
    list: Arc<[(Dialect, Router)]>,
}

impl Mounts {
    pub(crate) fn new(app: &App, dialects: &[Dialect]) -> Self {
        let mount = |dialect: &Dialect| {
            let host = Host { app: app.clone(), dialect: *dialect };
            let around = Around { app: app.clone(), dialect: Some(*dialect) };
            let around = axum::middleware::from_fn_with_state(around, middleware::around);
            (*dialect, (dialect.router)(host).layer(around))
        };
        Self { app: app.clone(), list: dialects.iter().map(mount).collect() }
    }

    /// Finds the dialect that claims a request; gives its path the form that the dialect's router reads.
    fn find(&self, request: &mut Request) -> Option<Router> {
        if self.list.is_empty() {
            return None;
        }
        if let Some((router, arrival)) = self.by_host(request) {
            request.extensions_mut().insert(arrival);
            return Some(router);
        }
        let (uri, headers) = (request.uri(), request.headers());
        let domain = &self.app.config.ports_domain;
        if address::by_host(uri, headers, domain).is_some() {
            return None;
        }
        let by_header = self.claimed(|mount| match mount {
            Mount::Header(name) => headers.contains_key(*name).then_some(()),
            Mount::Prefix(_) | Mount::Host(_) | Mount::Service(_) => None,
        });
        if let Some((router, ())) = by_header {
            request.extensions_mut().insert(Arrival::default());
            return Some(router);
        }
        if !matches!(address::parse(uri, headers, domain), Ok(None)) {
            return None;
        }
        let (router, (prefix, uri)) = self.claimed(|mount| match mount {
            Mount::Prefix(prefix) => Some((*prefix, below(uri, prefix)?)),
            Mount::Service(name) => is_of_service(uri.path(), name).then(|| ("", uri.clone())),
            Mount::Host(_) | Mount::Header(_) => None,
        })?;
        *request.uri_mut() = uri;
        request.extensions_mut().insert(Arrival { prefix, label: None });
        Some(router)
    }

    fn by_host(&self, request: &Request) -> Option<(Router, Arrival)> {
        let config = &self.app.config;
        let host = address::host(request.uri(), request.headers())?;
        let domains = std::iter::once(&config.ports_domain).chain(&config.hosts);
        let label = domains.filter_map(|domain| below_domain(host, domain)).next()?.to_ascii_lowercase();
        let (uri, headers, engine) = (request.uri(), request.headers(), &self.app.engine);
        let named = Named { label: &label, headers, uri, engine };
        let (router, ()) = self.claimed(|mount| match mount {
            Mount::Host(is_ours) => is_ours(&named).then_some(()),
            Mount::Prefix(_) | Mount::Header(_) | Mount::Service(_) => None,
        })?;
        Some((router, Arrival { prefix: "", label: Some(label) }))
    }

    /// The first claim for which `claim` finds something.
    fn claimed<T>(&self, claim: impl Fn(&Mount) -> Option<T>) -> Option<(Router, T)> {
        let find = |(dialect, router): &(Dialect, Router)| {
            dialect.mounts.iter().find_map(&claim).map(|found| (router.clone(), found))
        };
        self.list.iter().find_map(find)
    }
}

/// The layer around ingress and the native API.
pub(crate) async fn claim(State(mounts): State<Mounts>, mut request: Request, next: Next) -> Response {
    match mounts.find(&mut request) {
        // A router cannot fail.
        Some(router) => router.oneshot(request).await.unwrap_or_else(|never| match never {}),
        None => next.run(request).await,
    }
}

/// The address without the prefix, when it lies below it.
#[must_use]
pub fn below(uri: &Uri, prefix: &str) -> Option<Uri> {
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

/// Whether a path is `/SERVICE/METHOD`.
fn is_of_service(path: &str, name: &str) -> bool {
    path.strip_prefix('/').and_then(|path| path.strip_prefix(name)).is_some_and(|rest| rest.starts_with('/'))
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

    #[test]
    fn a_service_is_a_whole_segment() {
        assert!(is_of_service("/a.b.C/D", "a.b.C"));
        assert!(!is_of_service("/a.b.Cx/D", "a.b.C") && !is_of_service("/a.b.C", "a.b.C"));
        assert!(!is_of_service("/x/a.b.C/D", "a.b.C") && !is_of_service("a.b.C/D", "a.b.C"));
    }
}
