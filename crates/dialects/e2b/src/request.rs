//! Who asks, and what: the parts that every handler of the control plane takes.

use std::marker::PhantomData;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Target};
use atoll_server::dialect::{Arrival, Requires, read_all};
pub(crate) use atoll_server::dialect::{Exec, Manage, Read};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use http::header::HOST;
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::App;
use crate::error::Failure;

/// The part of a path that names a sandbox.
const SANDBOX: &str = "sandbox";

/// A caller that may do what `S` requires, also with the sandbox that the path names. The first argument of every
/// handler.
#[derive(Debug, Clone)]
pub(crate) struct Caller<S> {
    caller: EngineCaller,
    key: KeyId,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// Who asks, for the engine.
    pub(crate) const fn engine(&self) -> &EngineCaller {
        &self.caller
    }

    /// The key itself.
    pub(crate) const fn key(&self) -> &KeyId {
        &self.key
    }

    /// Whether it may know of a sandbox.
    pub(crate) async fn may_see(&self, engine: &atoll_engine::Engine, sandbox: &SandboxId) -> bool {
        engine.authorize(&self.caller, Needs::READ, Target::Sandbox(sandbox.as_str())).await.is_ok()
    }
}

impl<S: Requires> FromRequestParts<App> for Caller<S> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let key = app.host.verify(&parts.headers).map_err(|error| Failure::of(&error))?;
        let caller = EngineCaller::of(&key);
        let named = sandbox_of(parts, app).await;
        let target = named.as_deref().map_or(Target::Installation, Target::Sandbox);
        // By id alone; what is none names nothing. A key that is too weak for anything is told that first.
        let is_id = named.as_ref().is_none_or(|text| text.parse::<SandboxId>().is_ok());
        let target = if is_id { target } else { Target::Installation };
        let grant = app.host.engine().authorize(&caller, S::NEEDS, target).await;
        let grant = grant.map_err(|error| match &named {
            Some(text) if error.code == Code::SandboxNotFound => Failure::no_sandbox(text),
            _ => Failure::of(&error),
        })?;
        if let Some(text) = named.filter(|_| !is_id) {
            return Err(Failure::no_sandbox(&text));
        }
        app.host.fill(&parts.extensions, grant);
        Ok(Self { caller, key: key.id, scope: PhantomData })
    }
}

/// The sandbox that the path names. Older clients send `<id>-<client>`.
async fn sandbox_of(parts: &mut Parts, app: &App) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, app).await.ok()?;
    let found = params.iter().find(|(name, _)| *name == SANDBOX).map(|(_, value)| bare(value));
    found.map(str::to_owned)
}

/// The id, without what older clients put behind it.
fn bare(text: &str) -> &str {
    text.split('-').next().unwrap_or(text)
}

/// The sandbox that the path names. It is there, and the caller has been checked, when `Caller` comes first.
#[derive(Debug)]
pub(crate) struct Id(pub(crate) SandboxId);

impl FromRequestParts<App> for Id {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let text = sandbox_of(parts, app).await.unwrap_or_default();
        text.parse().map(Self).map_err(|_malformed: Error| Failure::no_sandbox(&text))
    }
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

/// Where this dialect is, as the caller sees it: what absolute addresses in answers begin with.
#[derive(Debug, Clone)]
pub(crate) struct Root(pub(crate) String);

impl FromRequestParts<App> for Root {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Self::Rejection> {
        let prefix = parts.extensions.get::<Arrival>().map_or("", |arrival| arrival.prefix);
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        // A proxy that ends TLS says so. Whoever lies here lies to himself only.
        let scheme = text("x-forwarded-proto").filter(|scheme| *scheme == "https").unwrap_or("http");
        let authority = parts.uri.authority().map(http::uri::Authority::as_str);
        let authority = text("x-forwarded-host").or_else(|| text(HOST.as_str())).or(authority);
        let authority = authority.unwrap_or("localhost");
        Ok(Self(format!("{scheme}://{authority}{prefix}")))
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
