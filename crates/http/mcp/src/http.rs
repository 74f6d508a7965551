//! Streamable HTTP: many sessions, each with the API key of who opened it.
//!
//! A request brings its own key as a bearer token. All sessions of a key live in a service of that key: with another key, a
//! session's id means nothing. Nothing here decides what a key may do: each tool asks the server with it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_client::{Client, ClientError, ListSandboxes};
use atoll_core::Code;
use atoll_core::secret::Secret;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use http::{StatusCode, header};
use rmcp::model::ProtocolVersion;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::session::{Preset, Session};
use crate::tools::Tools;

/// Keys that are served at a time.
const KEYS_MAX_COUNT: usize = 256;
/// Sessions of a key at a time.
const SESSIONS_MAX_COUNT: usize = 32;
/// A session that nobody used for this long ends.
const SESSION_IDLE: Duration = Duration::from_secs(60 * 60);
/// Largest request, bytes.
const REQUEST_MAX_BYTES: usize = 16 << 20;
/// How long ended sessions have to remove their sandboxes when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

type Service = StreamableHttpService<Tools, LocalSessionManager>;

struct Server {
    url: String,
    preset: Preset,
    local: SocketAddr,
    stopped: CancellationToken,
    services: Mutex<HashMap<u64, Service>>,
    /// The sessions that there are.
    sessions: Arc<std::sync::Mutex<Vec<Weak<Session>>>>,
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
    let server = Arc::new(Server {
        url: url.to_owned(),
        preset,
        local: listener.local_addr()?,
        stopped: stopped.clone(),
        services: Mutex::default(),
        sessions: Arc::default(),
    });
    let router = axum::Router::new().route("/mcp", any(handle)).with_state(Arc::clone(&server));
    tokio::select! {
        served = axum::serve(listener, router) => served?,
        () = stopped.cancelled() => {}
    }
    let sessions: Vec<_> = server.live().iter().filter_map(Weak::upgrade).collect();
    let closing = futures::future::join_all(sessions.iter().map(|session| session.close()));
    if tokio::time::timeout(STOP_TIMEOUT, closing).await.is_err() {
        tracing::warn!("sandboxes of ended sessions were not removed in time");
    }
    Ok(())
}

impl Server {
    fn live(&self) -> Vec<Weak<Session>> {
        self.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The service of a key, once the server has said that the key is one.
    async fn service(&self, key: &Secret) -> Result<Service, Box<Response>> {
        let refuse =
            |status: StatusCode, text: &str| Err(Box::new((status, text.to_owned()).into_response()));
        let client = match Client::new(&self.url, key) {
            Ok(client) => client,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        // Asked each time: a key may have ended.
        let probe = ListSandboxes { limit: Some(1), ..ListSandboxes::default() };
        match client.list_sandboxes(&probe).await {
            Ok(_) => {}
            Err(error) if error.code() == Some(Code::Unauthorized) => {
                let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
                return Err(Box::new(
                    (StatusCode::UNAUTHORIZED, challenge, error.to_string()).into_response(),
                ));
            }
            Err(error @ ClientError::Api { .. }) => return refuse(StatusCode::FORBIDDEN, &error.to_string()),
            Err(error) => return refuse(StatusCode::BAD_GATEWAY, &error.to_string()),
        }
        let mut services = self.services.lock().await;
        if let Some(service) = services.get(&client.identity()) {
            return Ok(service.clone());
        }
        if services.len() >= KEYS_MAX_COUNT {
            // Keys without a session make room.
            let used: HashSet<u64> = self
                .live()
                .iter()
                .filter_map(Weak::upgrade)
                .map(|session| session.client.identity())
                .collect();
            services.retain(|identity, _| used.contains(identity));
        }
        if services.len() >= KEYS_MAX_COUNT {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many keys have sessions here");
        }
        let service = self.make(&client);
        services.insert(client.identity(), service.clone());
        Ok(service)
    }

    fn make(&self, client: &Client) -> Service {
        let config = StreamableHttpServerConfig::default()
            .with_allowed_hosts([
                "localhost".to_owned(),
                "127.0.0.1".to_owned(),
                "::1".to_owned(),
                self.local.ip().to_string(),
            ])
            .with_cancellation_token(self.stopped.clone())
            .with_max_request_body_bytes(REQUEST_MAX_BYTES)
            .enforce_origin_validation();
        let mut manager = LocalSessionManager::default();
        let mut idle = SessionConfig::default();
        idle.keep_alive = Some(SESSION_IDLE);
        manager.session_config = idle;
        let (client, preset, all) = (client.clone(), self.preset.clone(), Arc::clone(&self.sessions));
        let identity = client.identity();
        let stopped = self.stopped.clone();
        let make = move || {
            let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            all.retain(|session| session.strong_count() > 0);
            let of_key = all.iter().filter_map(Weak::upgrade);
            if of_key.filter(|session| session.client.identity() == identity).count() >= SESSIONS_MAX_COUNT {
                return Err(std::io::Error::other("this key has too many sessions"));
            }
            let session = Session::new(client.clone(), preset.clone(), &stopped);
            all.push(Arc::downgrade(&session));
            // Newer versions know no sessions over HTTP, and so no sandbox of a session.
            Ok(Tools::new(session, ProtocolVersion::V_2025_11_25))
        };
        StreamableHttpService::new(make, Arc::new(manager), config)
    }
}

async fn handle(State(server): State<Arc<Server>>, request: Request) -> Response {
    let bearer = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer") && !key.trim().is_empty());
    let Some((_, key)) = bearer else {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "send an API key as 'Authorization: Bearer KEY'")
            .into_response();
    };
    let key = Secret::new(key.trim());
    match server.service(&key).await {
        Ok(service) => service.handle(request).await.map(Body::new),
        Err(refusal) => *refusal,
    }
}
