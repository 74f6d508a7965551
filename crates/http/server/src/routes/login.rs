//! People log in from programs without a browser.

use std::sync::Arc;

use atoll_api::{DeviceLogin, DeviceLoginPolled, DeviceLoginState, PollDeviceLogin};
use atoll_core::{Code, Error};
use atoll_oidc::{Issuer, Polled};
use atoll_store::LoginBy;
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Caller, Read};
use crate::error::ApiResult;
use crate::extract::Json;
use crate::shared::App;

/// What the server seals in a login that has begun.
const NOTE: &str = "device login";

/// Begins a login of a person: they open the address in a browser, anywhere, and type the code. Needs no key.
#[utoipa::path(post, path = "/v1/login/device", tag = "keys", responses((status = 201, body = DeviceLogin)))]
pub(crate) async fn begin_device_login(State(app): State<App>) -> ApiResult<(StatusCode, Json<DeviceLogin>)> {
    let begun = issuer(&app)?.begin_on_device().await?;
    let login = app.engine.seal_note(NOTE, &begun.kept)?;
    Ok((
        StatusCode::CREATED,
        Json(DeviceLogin {
            user_code: begun.user_code,
            verification_uri: begun.address,
            verification_uri_complete: begun.address_with_code,
            interval_ms: begun.interval_s * 1000,
            expires_at_ms: app.engine.now_ms() + begun.patience_s * 1000,
            login,
        }),
    ))
}

/// Says what has become of a login that was begun, and gives its secret, this once. Needs no key.
#[utoipa::path(post, path = "/v1/login/device/poll", tag = "keys", request_body = PollDeviceLogin,
    responses((status = 200, body = DeviceLoginPolled)))]
pub(crate) async fn poll_device_login(
    State(app): State<App>,
    Json(request): Json<PollDeviceLogin>,
) -> ApiResult<Json<DeviceLoginPolled>> {
    let issuer = issuer(&app)?;
    let kept = app.engine.open_note(NOTE, request.login.reveal()).ok_or_else(|| {
        Error::new(Code::Unauthorized, "this is no login that was begun here").hint("begin anew")
    })?;
    let waits = |state| DeviceLoginPolled { state, name: None, expires_at_ms: None, secret: None };
    let verified = match issuer.poll_device(&kept).await? {
        Polled::Pending => return Ok(Json(waits(DeviceLoginState::Pending))),
        Polled::Slower => return Ok(Json(waits(DeviceLoginState::SlowDown))),
        Polled::Verified(verified) => *verified,
    };
    let new = app.engine.log_in(verified.person, LoginBy::Key, verified.exchange.as_bytes()).await?;
    Ok(Json(DeviceLoginPolled {
        name: Some(new.record.name),
        expires_at_ms: new.record.expires_ms,
        secret: Some(new.secret),
        ..waits(DeviceLoginState::Done)
    }))
}

/// Ends the login by which this request came, and what is open by it.
#[utoipa::path(delete, path = "/v1/login", tag = "keys", security(("key" = ["read"])), responses((status = 204)))]
pub(crate) async fn end_login(caller: Caller<Read>, State(app): State<App>) -> ApiResult<StatusCode> {
    let login = caller.key().login.as_ref().ok_or_else(|| {
        Error::new(Code::InvalidState, "the request came by a key, not by a login")
            .hint("'atoll key rm' makes a key stop working")
    })?;
    app.engine.end_login(login).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The issuer of identities.
///
/// # Errors
/// [`Code::RouteNotFound`] without one.
pub(crate) fn issuer(app: &App) -> Result<&Arc<Issuer>, Error> {
    app.config.people.as_ref().map(|people| &people.issuer).ok_or_else(|| {
        Error::new(Code::RouteNotFound, "people cannot log in here: the server knows no issuer of identities")
            .hint("use an API key; 'atoll serve --oidc-issuer' names an issuer")
    })
}
