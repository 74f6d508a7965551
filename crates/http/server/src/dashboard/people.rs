//! People sign in at their issuer of identities, and come back.
//!
//! The state of a login lies sealed in a cookie of the browser that began it: no node has to remember it, no client can
//! fill a node's memory with logins that it never finishes, and no other browser can go on with it.

use atoll_core::{Code, Error};
use atoll_dashboard::{Site, cleared_login, is_prefetched, is_typed, logins_of, of_login, of_session};
use atoll_store::LoginBy;
use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Serialize;

use super::login::page;
use super::{end, session};
use crate::error::{ApiResult, json, status};
use crate::middleware;
use crate::routes::login::issuer;
use crate::shared::App;

/// Where the issuer sends the browser back to.
pub(super) const BACK: &str = "/login/oidc/callback";
/// The purpose for which the cookie of a login that has begun is sealed.
const NOTE: &str = "dashboard login";
/// Longest query that the issuer sends, bytes.
const QUERY_MAX_BYTES: usize = 16 << 10;

/// What the server tells the page about the issuer.
#[derive(Serialize)]
struct View<'a> {
    /// The issuer's name on the button.
    name: &'a str,
}

/// Whether there is an issuer, and its name.
pub(super) async fn with(State(app): State<App>) -> ApiResult<Response> {
    let people = app.config.people.as_ref();
    let name = people.map(|people| people.name.as_str());
    let view = json(&name.map(|name| View { name }));
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], view).into_response())
}

/// Sends the browser to the issuer.
pub(super) async fn begin(
    State(app): State<App>,
    Extension(site): Extension<Site>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    if method != Method::GET {
        return Err(middleware::method_not_allowed().await);
    }
    if is_prefetched(&headers) || !is_typed(&headers) {
        let text = "Another page led here. <a href=\"/\">Open the dashboard</a> and log in there.";
        return Ok(page(StatusCode::FORBIDDEN, "Log in from the dashboard", text));
    }
    let begun = async {
        let begun = issuer(&app)?.begin_in_browser(&format!("{}{BACK}", site.origin)).await?;
        let sealed = app.engine.seal_note(NOTE, &begun.kept)?;
        let cookie = of_login(sealed.reveal(), begun.patience_s, site.secure);
        let location = HeaderValue::try_from(begun.location).ok();
        cookie.zip(location).ok_or_else(|| Error::new(Code::IssuerInvalid, "the issuer's address is none"))
    };
    Ok(match begun.await {
        Ok((cookie, location)) => {
            (StatusCode::SEE_OTHER, [(LOCATION, location), (SET_COOKIE, cookie)]).into_response()
        }
        Err(error) => refused(&error),
    })
}

/// Makes a session for the person whom the issuer has sent back.
pub(super) async fn finish(
    State(app): State<App>,
    Extension(site): Extension<Site>,
    method: Method,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> ApiResult<Response> {
    if method != Method::GET || is_prefetched(&headers) {
        return Err(middleware::method_not_allowed().await);
    }
    let mut response = match signed_in(&app, &site, &headers, query.as_deref().unwrap_or_default()).await {
        Ok(cookie) => {
            let headers = [(LOCATION, HeaderValue::from_static("/")), (SET_COOKIE, cookie)];
            (StatusCode::SEE_OTHER, headers).into_response()
        }
        Err(error) => refused(&error),
    };
    // The login is over, whether it succeeded or failed.
    if let Some(cookie) = cleared_login(site.secure) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// The cookie of the session.
async fn signed_in(app: &App, site: &Site, headers: &HeaderMap, query: &str) -> Result<HeaderValue, Error> {
    let issuer = issuer(app)?;
    let kept = logins_of(headers, site.secure).find_map(|sealed| app.engine.open_note(NOTE, sealed));
    let kept = kept.filter(|_| query.len() <= QUERY_MAX_BYTES).ok_or_else(|| {
        Error::new(Code::Unauthorized, "this browser has begun no login, or it took too long")
            .hint("log in anew")
    })?;
    let verified = issuer.finish_in_browser(&kept, query).await?;
    let by = if site.local { LoginBy::DashboardHere } else { LoginBy::Dashboard };
    let new = app.engine.log_in(verified.person, by, verified.exchange.as_bytes()).await?;
    // A user who signs in anew is done with the session before.
    if let Some((session, before)) = session(app, site, headers).await
        && let Err(error) = end(app, site, &session, before).await
    {
        tracing::info!(%error, "the session before was not ended");
    }
    let left_ms = new.record.expires_ms.unwrap_or_default().saturating_sub(app.engine.now_ms());
    of_session(new.secret.reveal(), left_ms / 1000, site.secure)
        .ok_or_else(|| Error::new(Code::Internal, "the session does not fit into a cookie"))
}

/// Makes a page that says why the login failed.
fn refused(error: &Error) -> Response {
    let mut text = escaped(&error.message);
    if let Some(hint) = &error.hint {
        text = format!("{text}: {}", escaped(hint));
    }
    let text = format!("{text}.</p><p><a href=\"/\">Back</a>");
    page(status(error.code), "You are not logged in", &text)
}

/// As text of HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
