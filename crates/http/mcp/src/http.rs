//! Streamable HTTP: many sessions, each with the API key of the client that opened it.
//!
//! A request brings its own key. All sessions of a key that want the same [`Preset`] live in a service of their own: with another
//! key, a session's id means nothing. Nothing here decides what a key may do: each tool asks the server with it.
//!
//! There are two ways here: a server's own port, which has checked the key before ([`Endpoint`]), and a port of `atoll mcp`
//! ([`serve_http`]), which asks the server about it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_client::{Client, ClientError, ListSandboxes};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use http::{StatusCode, Uri, header};
use rmcp::model::ProtocolVersion;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::address;
use crate::session::{Preset, Session};
use crate::tools::Tools;

/// Keys with a preset that are served at a time.
const SERVICES_MAX_COUNT: usize = 1024;
/// Sessions of a key at a time, over all presets.
const SESSIONS_MAX_COUNT: usize = 32;
/// A session that its client did not use for this long ends.
const SESSION_IDLE: Duration = Duration::from_secs(60 * 60);
/// Largest request, bytes.
const REQUEST_MAX_BYTES: usize = 16 << 20;
/// How long ended sessions have to remove their sandboxes when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

type Service = StreamableHttpService<Tools, LocalSessionManager>;

/// The name of a service: the identity of its key, and the preset that the address says.
type ServiceName = (u64, String);

/// The preset by which the sandboxes of sessions are made.
#[derive(Debug, Clone)]
pub enum Presets {
    /// The same for all.
    Given(Box<Preset>),
    /// What the query of the address says under which a session is opened.
    OfAddress,
}

/// Serves the requests of sessions.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    /// The server that tools ask, with the caller's key.
    url: String,
    presets: Presets,
    /// Names by which clients may call it; any if empty.
    hosts: Vec<String>,
    stopped: CancellationToken,
    services: Mutex<HashMap<ServiceName, Service>>,
    /// The sessions that there are.
    sessions: Arc<std::sync::Mutex<Vec<Open>>>,
}

struct Open {
    service: ServiceName,
    session: Weak<Session>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.inner.url).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// One whose tools ask the server at `url`. Where `hosts` names any, requests for other names are refused. Sessions end with
    /// `stopped`.
    #[must_use]
    pub fn new(url: &str, presets: Presets, hosts: Vec<String>, stopped: CancellationToken) -> Self {
        let inner = Inner {
            url: url.to_owned(),
            presets,
            hosts,
            stopped,
            services: Mutex::default(),
            sessions: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Answers a request that came with this key, which is one of the server's.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] when the address says something that is no preset; [`Code::LimitExceeded`] when too many are
    /// served.
    pub async fn answer(&self, key: &Secret, request: Request) -> Result<Response, Error> {
        let client = Client::new(&self.inner.url, key)
            .map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
        let uri = request.uri().clone();
        let service = self.inner.service(&client, &uri).await?;
        Ok(service.handle(request).await.map(Body::new))
    }

    /// Ends all sessions, and removes their sandboxes.
    pub async fn close(&self) {
        let sessions: Vec<_> = self.inner.live().into_iter().map(|(_, session)| session).collect();
        let closing = futures::future::join_all(sessions.iter().map(|session| session.close()));
        if tokio::time::timeout(STOP_TIMEOUT, closing).await.is_err() {
            tracing::warn!("sandboxes of ended sessions were not removed in time");
        }
    }
}

impl Inner {
    fn live(&self) -> Vec<(ServiceName, Arc<Session>)> {
        let all = self.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.iter().filter_map(|open| Some((open.service.clone(), open.session.upgrade()?))).collect()
    }

    /// The service of a key for the preset that the address asks for.
    async fn service(&self, client: &Client, uri: &Uri) -> Result<Service, Error> {
        let (preset, text) = match &self.presets {
            Presets::Given(preset) => (Preset::clone(preset), String::new()),
            Presets::OfAddress => (address::preset(uri)?, uri.query().unwrap_or_default().to_owned()),
        };
        let name = (client.identity(), text);
        let mut services = self.services.lock().await;
        if let Some(service) = services.get(&name) {
            return Ok(service.clone());
        }
        if services.len() >= SERVICES_MAX_COUNT {
            // Those without a session make room.
            let used: HashSet<ServiceName> = self.live().into_iter().map(|(service, _)| service).collect();
            services.retain(|name, _| used.contains(name));
        }
        if services.len() >= SERVICES_MAX_COUNT {
            return Err(
                Error::new(Code::LimitExceeded, "too many keys have sessions here").hint("try again later")
            );
        }
        let service = self.make(client, preset, &name);
        services.insert(name, service.clone());
        Ok(service)
    }

    fn make(&self, client: &Client, preset: Preset, name: &ServiceName) -> Service {
        let config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(self.hosts.clone())
            .with_cancellation_token(self.stopped.clone())
            .with_max_request_body_bytes(REQUEST_MAX_BYTES)
            .enforce_origin_validation();
        let mut manager = LocalSessionManager::default();
        let mut idle = SessionConfig::default();
        idle.keep_alive = Some(SESSION_IDLE);
        manager.session_config = idle;
        let (client, name, all) = (client.clone(), name.clone(), Arc::clone(&self.sessions));
        let stopped = self.stopped.clone();
        let make = move || {
            let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            all.retain(|open| open.session.strong_count() > 0);
            if all.iter().filter(|open| open.service.0 == name.0).count() >= SESSIONS_MAX_COUNT {
                return Err(std::io::Error::other("this key has too many sessions"));
            }
            let session = Session::new(client.clone(), preset.clone(), &stopped);
            all.push(Open { service: name.clone(), session: Arc::downgrade(&session) });
            // Newer versions know no sessions over HTTP, and so no sandbox of a session.
            Ok(Tools::new(session, ProtocolVersion::V_2025_11_25))
        };
        StreamableHttpService::new(make, Arc::new(manager), config)
    }
}

/// Serves sessions at `/mcp` until `stopped` is cancelled. Callers bring their own keys for the server at `url`.
///
/// # Errors
/// When connections can no longer be accepted.
pub async fn serve_http(
    listener: TcpListener,
    url: &str,
    preset: Preset,
    stopped: CancellationToken,
) -> std::io::Result<()> {
    let local = listener.local_addr()?.ip().to_string();
    let hosts = ["localhost", "127.0.0.1", "::1", &local].map(str::to_owned).to_vec();
    let endpoint = Endpoint::new(url, Presets::Given(Box::new(preset)), hosts, stopped.clone());
    let router = axum::Router::new().route("/mcp", any(handle)).with_state(endpoint.clone());
    tokio::select! {
        served = axum::serve(listener, router) => served?,
        () = stopped.cancelled() => {}
    }
    endpoint.close().await;
    Ok(())
}

async fn handle(State(endpoint): State<Endpoint>, request: Request) -> Response {
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    let Some(key) = bearer(&request) else {
        return (StatusCode::UNAUTHORIZED, challenge, "send an API key as 'Authorization: Bearer KEY'")
            .into_response();
    };
    match known(&endpoint.inner.url, &key).await {
        Ok(()) => {}
        Err(error) if error.code() == Some(Code::Unauthorized) => {
            return (StatusCode::UNAUTHORIZED, challenge, error.to_string()).into_response();
        }
        Err(error @ ClientError::Api { .. }) => {
            return (StatusCode::FORBIDDEN, error.to_string()).into_response();
        }
        Err(error) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
    let refuse = |error: Error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response();
    endpoint.answer(&key, request).await.unwrap_or_else(refuse)
}

/// The key that a request shows.
fn bearer(request: &Request) -> Option<Secret> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !key.trim().is_empty()).then(|| Secret::new(key.trim()))
}

/// Whether the server knows the key. Asked each time: it may have ended.
async fn known(url: &str, key: &Secret) -> Result<(), ClientError> {
    let probe = ListSandboxes { limit: Some(1), ..ListSandboxes::default() };
    Client::new(url, key)?.list_sandboxes(&probe).await.map(drop)
}
