//! The way into the dashboard.

use std::time::Duration;

use atoll_api::DashboardLink;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_dashboard::LINK_AGE;
use axum::Extension;
use axum::extract::State;
use http::header::HOST;
use http::{HeaderMap, StatusCode};

use crate::auth::{Caller, Read, SignedIn};
use crate::dashboard::link_text;
use crate::error::ApiResult;
use crate::extract::Json;
use crate::serve::Encrypted;
use crate::shared::App;

/// Makes a link that signs a browser in to the dashboard, with the rights of this request's key. It works once, for
/// one minute. A session of the dashboard makes none: it ends when it ends.
#[utoipa::path(post, path = "/v1/dashboard/links", tag = "system", security(("key" = ["read"])),
    responses((status = 201, body = DashboardLink)))]
pub(crate) async fn create_dashboard_link(
    caller: Caller<Read>,
    State(app): State<App>,
    headers: HeaderMap,
    encrypted: Option<Extension<Encrypted>>,
    session: Option<Extension<SignedIn>>,
) -> ApiResult<(StatusCode, Json<DashboardLink>)> {
    if session.is_some() {
        return Err(Error::new(Code::Forbidden, "a session of the dashboard opens no other")
            .hint("ask with the API key: 'atoll dashboard'")
            .into());
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let site = app.console.site_for(host, encrypted.is_some(), &app.config)?;
    let token = link_text(&app, &app.console.sessions().link(caller.key().lasts_with())?);
    let link = Secret::new(format!("{}/login?token={}", site.origin, token.reveal()));
    let expires_at_ms =
        app.engine.now_ms() + u64::try_from(Duration::as_millis(&LINK_AGE)).unwrap_or_default();
    Ok((StatusCode::CREATED, Json(DashboardLink { link, expires_at_ms })))
}
