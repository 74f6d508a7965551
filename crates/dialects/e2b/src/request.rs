//! The caller and the parts of a request that every handler of the control plane takes.

use std::convert::Infallible;

use atoll_core::limits::JSON_BODY_MAX_BYTES;
pub(crate) use atoll_dialect_kit::request::{
    Admin, Caller, Exec, Manage, Read, Requires, Root, Sandbox as Id,
};
use atoll_server::dialect::read_all;
use axum::extract::{self, FromRequest, FromRequestParts, Request};
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::App;
use crate::error::Failure;

/// The part of a path that names a sandbox.
pub(crate) const SANDBOX: &str = "sandbox";

/// The id, without the suffix that older clients add: they send `<id>-<client>`.
pub(crate) fn bare(text: &str) -> &str {
    text.split('-').next().unwrap_or(text)
}

/// JSON of a request. Unknown fields are ignored; an empty body is `{}`.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &App) -> Result<Self, Failure> {
        let bytes = read_all(request.into_body(), JSON_BODY_MAX_BYTES).await;
        let bytes = bytes.map_err(|error| Failure::of(&error))?;
        parse(&bytes).map(Self)
    }
}

/// Reads the JSON of a body.
///
/// # Errors
/// 400.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let text = if bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { bytes };
    serde_json::from_slice(text).map_err(|error| {
        let error: String = error.to_string().chars().take(400).collect();
        Failure::bad(format!("the body cannot be read: {error}"))
    })
}

/// Parts of the path, decoded.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        match extract::Path::from_request_parts(parts, app).await {
            Ok(extract::Path(parts)) => Ok(Self(parts)),
            Err(error) => Err(Failure::bad(format!("the path cannot be read: {}", error.body_text()))),
        }
    }
}

/// The domain below which this client finds the ports of sandboxes, with the server's port; `None` where the server
/// cannot know: the client falls back on its own setting then.
#[derive(Debug, Clone)]
pub(crate) struct Domain(pub(crate) Option<String>);

impl FromRequestParts<App> for Domain {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        Ok(Self(app.host.ingress().domain(parts)))
    }
}

/// The query string. Unknown parameters are ignored.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Failure> {
        let text = parts.uri.query().unwrap_or_default();
        serde_html_form::from_str(text)
            .map(Self)
            .map_err(|error| Failure::bad(format!("the query cannot be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ids_have_a_client_behind() {
        assert_eq!((bare("sb1-abc"), bare("sb1"), bare("")), ("sb1", "sb1", ""));
    }

    #[test]
    fn no_body_is_an_empty_one() {
        assert_eq!(parse::<serde_json::Value>(b" \n").unwrap(), serde_json::json!({}));
        assert!(parse::<serde_json::Value>(b"{").is_err());
    }
}
