//! Signing in and out.

use std::time::Duration;

use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_dashboard::{
    SESSION_AGE, Site, check_csrf, check_origin, cleared, is_prefetched, is_typed, of_session,
};
use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Serialize;

use super::{end, forbidden, nodes, session as find_session, signed_out};
use crate::error::{ApiError, ApiResult, json};
use crate::middleware;
use crate::shared::App;

/// Bytes of a token, and those of one that names its node at most.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 64..=128;

/// What the server tells the page about its session.
#[derive(Serialize)]
struct View<'a> {
    /// To be sent with everything that changes something.
    csrf: &'a str,
}

/// Turns the token of a link into a session. A user must open the link, not a web page: a page could sign its reader in
/// as another user.
pub(super) async fn login(
    State(app): State<App>,
    Extension(site): Extension<Site>,
    method: Method,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> ApiResult<Response> {
    if method != Method::GET {
        return Err(middleware::method_not_allowed().await);
    }
    if is_prefetched(&headers) || !is_typed(&headers) {
        return Ok(page(
            StatusCode::FORBIDDEN,
            "Open the link itself",
            "A page led here. Copy the link into the address bar of the browser.",
        ));
    }
    let token = query.as_deref().and_then(token_in).map(Secret::new);
    let opened = match token {
        Some(token) => nodes::open(&app, &site, token.reveal()).await?,
        None => None,
    };
    let Some(opened) = opened else {
        return Ok(page(
            StatusCode::UNAUTHORIZED,
            "This link does not work",
            "A link works once, for one minute. <code>atoll dashboard</code> prints a new one.",
        ));
    };
    // A user who signs in anew is done with the session before.
    if let Some((session, before)) = find_session(&app, &site, &headers).await
        && let Err(error) = end(&app, &site, &session, before).await
    {
        tracing::info!(%error, "the session before was not ended");
    }
    let cookie = of_session(opened.reveal(), Duration::as_secs(&SESSION_AGE), site.secure);
    let cookie = cookie
        .ok_or_else(|| ApiError(Error::new(Code::Internal, "the session does not fit into a cookie")))?;
    let headers = [(LOCATION, HeaderValue::from_static("/")), (SET_COOKIE, cookie)];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

fn token_in(query: &str) -> Option<&str> {
    let token = query.split('&').find_map(|pair| pair.strip_prefix("token="))?;
    TOKEN_BYTES.contains(&token.len()).then_some(token)
}

/// Tells the page about its session, or ends it.
pub(super) async fn session(
    State(app): State<App>,
    Extension(site): Extension<Site>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    check_origin(&method, &headers, &site).map_err(forbidden)?;
    let (found, token) = find_session(&app, &site, &headers).await.ok_or_else(signed_out)?;
    check_csrf(&method, &headers, found.csrf()).map_err(forbidden)?;
    match method {
        Method::GET => {
            let view = json(&View { csrf: found.csrf().reveal() });
            Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], view).into_response())
        }
        Method::DELETE => {
            end(&app, &site, &found, token).await?;
            let mut response = StatusCode::NO_CONTENT.into_response();
            response.headers_mut().extend(cleared(site.secure).map(|cookie| (SET_COOKIE, cookie)));
            Ok(response)
        }
        _ => Err(middleware::method_not_allowed().await),
    }
}

/// A page that says one thing. `text` is ours, as HTML.
pub(super) fn page(status: StatusCode, title: &str, text: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>Atoll</title></head><body><h1>{title}</h1><p>{text}</p></body></html>"
    );
    (status, [(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))], html).into_response()
}
