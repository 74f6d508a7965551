//! Tunnels: ports of a devbox under host names, as the clients make them: `PORT-KEY.tunnel.DOMAIN`.
//!
//! The key of a tunnel is the sandbox's id, so the server need not look up or keep a key. An open tunnel is an access
//! of the engine that needs no token. An authenticated tunnel takes a token that stands for the API key that got it:
//! the token allows what that key may do there, and ends with it.

use std::collections::BTreeMap;

use atoll_core::access::{Target, parse_port};
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error};
use atoll_dialect_kit::sandboxes;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::{Caller as EngineCaller, Engine, Grant};
use atoll_server::Forward;
use atoll_store::SandboxRecord;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{self, Caller, Json, Manage, Path};

/// Name of the access of an open tunnel.
const OPEN: &str = "runloop open tunnel";
/// The purpose of the tokens of authenticated tunnels.
const PURPOSE: &str = "runloop tunnel";
/// Header that carries the token.
const TOKEN: HeaderName = HeaderName::from_static("x-runloop-tunnel-authorization");
/// Comes between the key and the domain.
const SUFFIX: &str = ".tunnel";

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/devboxes/{devbox}/enable_tunnel", post(enable))
        .route("/v1/devboxes/{devbox}/remove_tunnel", post(remove))
}

/// The tunnel that a client asks for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    auth_mode: Option<String>,
    http_keep_alive: Option<bool>,
    wake_on_http: Option<bool>,
}

/// The tunnel, as it is kept with the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tunnel {
    authenticated: bool,
    wake_on_http: bool,
    create_time_ms: u64,
}

impl Asked {
    /// `wakes` comes from the launch parameters.
    pub(crate) fn tunnel(&self, wakes: Option<bool>) -> Result<Tunnel> {
        let authenticated = match self.auth_mode.as_deref() {
            None | Some("open") => false,
            Some("authenticated") => true,
            Some(_) => return Err(Failure::bad("auth_mode: must be open or authenticated")),
        };
        if self.http_keep_alive == Some(false) {
            return Err(Failure::bad(
                "http_keep_alive: false is not supported by this server: requests through a tunnel are use of the devbox",
            ));
        }
        let wake_on_http = wakes.or(self.wake_on_http).unwrap_or_default();
        Ok(Tunnel { authenticated, wake_on_http, create_time_ms: now_ms() })
    }
}

impl Tunnel {
    /// The tunnel as its clients read it; with the token of `key`, where it needs one.
    pub(crate) fn view(&self, engine: &Engine, sandbox: &SandboxId, key: Option<&KeyId>) -> Value {
        let mut view = json!({
            "tunnel_key": sandbox,
            "auth_mode": if self.authenticated { "authenticated" } else { "open" },
            "http_keep_alive": true,
            "wake_on_http": self.wake_on_http,
            "create_time_ms": self.create_time_ms,
        });
        if let Some(key) = key.filter(|_| self.authenticated) {
            view["auth_token"] = engine.sandbox_token(PURPOSE, key, sandbox).reveal().into();
        }
        view
    }

    /// Lets every client in, if the tunnel is open.
    pub(crate) async fn open(
        &self,
        engine: &Engine,
        sandbox: &SandboxId,
        by: &EngineCaller,
    ) -> Result<(), Error> {
        if self.authenticated {
            return Ok(());
        }
        sandboxes::open(engine, sandbox, Target::Ports, OPEN, by).await
    }
}

async fn close(engine: &Engine, sandbox: &SandboxId) -> Result<(), Error> {
    for access in engine.accesses(sandbox)? {
        if access.name.as_deref() == Some(OPEN) {
            engine.revoke_access(sandbox, access.id.as_str()).await?;
        }
    }
    Ok(())
}

async fn keep(engine: &Engine, record: &SandboxRecord, tunnel: Option<Tunnel>) -> Result<()> {
    let extras = Extras { tunnel, ..Extras::of(record) };
    let annotations = BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]);
    let update = SandboxUpdate { annotations, ..SandboxUpdate::default() };
    engine.update_sandbox(&record.id, update).await.map(drop).map_err(|error| Failure::of(&error))
}

/// `enable_tunnel`: one tunnel for all ports. A further call replaces its settings.
async fn enable(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<Asked>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = request::record(engine, &caller, &id)?;
    let tunnel = asked.tunnel(None)?;
    close(engine, &record.id).await.map_err(|error| Failure::of(&error))?;
    keep(engine, &record, Some(tunnel.clone())).await?;
    tunnel.open(engine, &record.id, caller.engine()).await.map_err(|error| Failure::of(&error))?;
    Ok(Json(tunnel.view(engine, &record.id, Some(&caller.key()))))
}

/// `remove_tunnel`.
async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = request::record(engine, &caller, &id)?;
    close(engine, &record.id).await.map_err(|error| Failure::of(&error))?;
    keep(engine, &record, None).await?;
    Ok(Json(json!({})))
}

/// The port and sandbox of a tunnel's host name, from the part before the domain; `None` for other host names.
pub(crate) fn destination(label: &str) -> Option<(u16, SandboxId)> {
    let (port, key) = label.strip_suffix(SUFFIX)?.split_once('-')?;
    Some((parse_port(port)?, key.parse().ok()?))
}

/// Passes a request on to the port.
pub(crate) async fn forward(app: &App, (port, sandbox): (u16, SandboxId), request: Request) -> Response {
    match try_forward(app, port, sandbox, request).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn try_forward(app: &App, port: u16, sandbox: SandboxId, mut request: Request) -> Result<Response> {
    let engine = app.host.engine();
    // The same answer for everything that is no tunnel, so that a client does not learn which devboxes there are.
    let none = || Failure::not_found("there is no such tunnel");
    let record = engine.sandbox(&sandbox).map_err(|_missing| none())?;
    let tunnel = Extras::of(&record).tunnel.ok_or_else(none)?;
    let grant = grant(engine, &tunnel, &sandbox, port, request.headers_mut()).await?;
    let asleep =
        matches!(record.state, SandboxState::Paused | SandboxState::Pausing | SandboxState::Resuming);
    if asleep && !tunnel.wake_on_http {
        return Err(Failure::unavailable("the devbox is suspended"));
    }
    if asleep {
        crate::devboxes::wake(engine, &record).await.map_err(|error| Failure::of(&error))?;
    }
    let forward = Forward { sandbox, port, prefix: None, keep_host: true, tls: false, grant };
    app.host.ingress().try_forward(request, forward).await.map_err(|error| match error.code {
        Code::PortClosed => Failure::unavailable(format!("nothing listens on port {port} of the devbox")),
        Code::SandboxNotFound | Code::SandboxFailed => none(),
        _ => Failure::of(&error),
    })
}

/// The right of a client that shows a token, or of every client if the tunnel is open. The token is not passed on.
async fn grant(
    engine: &Engine,
    tunnel: &Tunnel,
    sandbox: &SandboxId,
    port: u16,
    headers: &mut HeaderMap,
) -> Result<Grant> {
    let shown = headers.remove(TOKEN);
    if !tunnel.authenticated {
        let access = engine.public_access(sandbox, port);
        return access.map(Grant::of_link).ok_or_else(|| Failure::not_found("there is no such tunnel"));
    }
    let refused = || {
        Failure::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "this tunnel needs 'X-Runloop-Tunnel-Authorization: Bearer TOKEN'",
        )
    };
    let shown = shown.as_ref().and_then(|value| value.to_str().ok()).ok_or_else(refused)?;
    let shown = shown.strip_prefix("Bearer ").unwrap_or(shown).trim();
    request::token_grant(engine, PURPOSE, shown, sandbox).await.ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tunnels() {
        let id = SandboxId::from_parts(5, 6);
        assert_eq!(destination(&format!("8080-{id}.tunnel")), Some((8080, id.clone())));
        for label in
            [format!("8080-{id}"), format!("0-{id}.tunnel"), "80-web.tunnel".into(), ".tunnel".into()]
        {
            assert_eq!(destination(&label), None, "{label}");
        }
    }

    #[test]
    fn modes() {
        let of = |text: &str| serde_json::from_str::<Asked>(text).unwrap().tunnel(None);
        assert!(!of("{}").unwrap().authenticated);
        assert!(of(r#"{"auth_mode":"authenticated","wake_on_http":true}"#).unwrap().wake_on_http);
        assert!(of(r#"{"auth_mode":"none"}"#).is_err() && of(r#"{"http_keep_alive":false}"#).is_err());
    }
}
