//! The Runloop protocol over Atoll's engine: Runloop's SDKs, and programs built on them, run on Atoll unmodified.
//!
//! # How a request flows
//!
//! ```text
//! server ─ below /runloop ─▶ router
//!    /v1/devboxes, /v1/devboxes/{id}, wait_for_status, suspend, …    devboxes
//!    /v1/devboxes/{id}/execute…, /executions/{id}/…                  executions
//!    /v1/devboxes/{id}/read_file_contents, upload_file, …            files
//!    /v1/devboxes/disk_snapshots                                     snapshots
//!    /v1/blueprints                                                  blueprints
//!    /v1/objects                                                     objects
//!    /v1/network-policies, /v1/gateway-configs, /v1/secrets          policies, gateways, secrets
//!    what there is not                                               refused
//! server ─ by the host name PORT-KEY.tunnel.DOMAIN ─▶ tunnel ─▶ the server inside
//! ```
//!
//! Requests that make a thing carry an idempotency key, because the clients send them again up to five times: [`once`]
//! makes sure that they are done once. Requests that only wait answer 408 when their time is over; the clients take
//! that for "not yet" and ask again at once.
//!
//! # What has no equal in the engine
//!
//! Nothing here has a table. Objects are files ([`objects`]), and so are policies and gateways ([`records`]). Values
//! that the protocol wants to be told back and the engine does not know (see [`extras`]) live in an annotation of the
//! sandbox. Ids are the engine's with another prefix ([`ids`]). The engine forgets devboxes that ended, but the clients
//! still ask for them: the server remembers them for a while ([`devboxes::ended`]).

mod agents;
mod blueprints;
mod devboxes;
mod disk;
mod error;
mod executions;
mod extras;
mod files;
mod gateways;
mod gone;
mod ids;
mod logs;
mod newest;
mod objects;
mod once;
mod policies;
mod records;
mod refused;
mod request;
mod secrets;
mod snapshots;
mod tunnel;

use std::convert::Infallible;

use atoll_core::Error;
use atoll_dialect_kit::Protocol;
use atoll_dialect_kit::exec::Bookmarks;
use atoll_dialect_kit::pending::Works;
use atoll_server::dialect::{Arrival, Dialect, Host, Mount, Named, credentials};
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, RawPathParams, Request};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use tower::ServiceExt as _;

use crate::agents::Agent;
use crate::devboxes::ended::Ended;
use crate::devboxes::setup::Setups;
use crate::error::Failure;
use crate::gateways::Gateway;
use crate::gone::Gone;
use crate::objects::Shelf;
use crate::once::Answers;
use crate::policies::NetworkPolicy;
use crate::records::Records;
use crate::snapshots::Taking;

/// The dialect, for the server to mount.
pub const DIALECT: Dialect = Dialect {
    name: "runloop",
    mounts: &[Mount::Prefix("/runloop"), Mount::Host(is_ours)],
    router,
    credential: credentials::bearer,
    refuse: |error, _| Failure::of(error).into_response(),
};

/// The state of the router.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) host: Host,
    pub(crate) marks: Bookmarks,
    pub(crate) answers: Answers,
    pub(crate) ended: Ended,
    pub(crate) setups: Setups,
    pub(crate) taking: Works<Taking>,
    pub(crate) gone: Gone,
    pub(crate) objects: Shelf,
    pub(crate) policies: Records<NetworkPolicy>,
    pub(crate) gateways: Records<Gateway>,
    pub(crate) agents: Records<Agent>,
}

impl Protocol for App {
    type Failure = Failure;
    const BY_ID_ALONE: bool = true;

    fn host(&self) -> &Host {
        &self.host
    }

    fn refused(error: &Error) -> Failure {
        Failure::of(error)
    }

    fn sandbox(route: &str, params: &RawPathParams, _: &Parts) -> Option<String> {
        if !route.starts_with(request::DEVBOX_ROUTES) {
            return None;
        }
        params.iter().find(|(name, _)| *name == request::DEVBOX).map(|(_, value)| ids::sandbox(value))
    }
}

impl FromRef<App> for Host {
    fn from_ref(app: &App) -> Self {
        app.host.clone()
    }
}

fn router(host: Host) -> Router {
    let app = App {
        objects: Shelf::new(host.engine()),
        policies: Records::new(host.engine()),
        gateways: Records::new(host.engine()),
        agents: Records::new(host.engine()),
        ended: Ended::new(host.engine()),
        answers: Answers::read(host.engine()),
        host,
        marks: Bookmarks::default(),
        setups: Setups::default(),
        taking: Works::default(),
        gone: Gone::default(),
    };
    let control = Router::new()
        .merge(agents::routes(&app))
        .merge(blueprints::routes(&app))
        .merge(devboxes::routes(&app))
        .merge(executions::routes(&app))
        .merge(files::routes())
        .merge(gateways::routes(&app))
        .merge(logs::routes())
        .merge(objects::routes(&app))
        .merge(policies::routes(&app))
        .merge(refused::routes())
        .merge(secrets::routes(&app))
        .merge(snapshots::routes(&app))
        .merge(tunnel::routes())
        .fallback(error::route_not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(DefaultBodyLimit::disable())
        .with_state(app.clone());
    Router::new().fallback(move |request: Request| {
        let (app, control) = (app.clone(), control.clone());
        async move {
            let label = request.extensions().get::<Arrival>().and_then(|arrival| arrival.label.clone());
            if let Some(to) = label.as_deref().and_then(tunnel::destination) {
                return tunnel::forward(&app, to, request).await;
            }
            let answered: Result<Response, Infallible> = control.oneshot(request).await;
            answered.unwrap_or_else(|never| match never {})
        }
    })
}

/// Host names of tunnels.
fn is_ours(named: &Named<'_>) -> bool {
    tunnel::destination(named.label).is_some()
}
