//! Who asks, and what: the parts that every handler of the control plane takes.

use std::marker::PhantomData;

use atoll_core::Error;
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::sharing::Requester;
use atoll_engine::{Caller as EngineCaller, Pass, VerifiedKey};
use atoll_server::dialect::{Arrival, read_all};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use http::StatusCode;
use http::header::HOST;
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::App;
use crate::error::Failure;

/// The part of a path that names a sandbox.
const SANDBOX: &str = "sandbox";

/// The scope that a route needs.
pub(crate) trait Needs {
    const SCOPE: Scope;
}

macro_rules! needs {
    ($($name:ident)*) => {
        $(
            #[derive(Debug, Clone, Copy)]
            pub(crate) enum $name {}
            impl Needs for $name {
                const SCOPE: Scope = Scope::$name;
            }
        )*
    };
}
needs! { Read Exec Manage }

/// A caller whose key has at least the scope `S`. The first argument of every handler.
#[derive(Debug, Clone)]
pub(crate) struct Caller<S> {
    key: VerifiedKey,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// For the engine's records.
    pub(crate) fn engine(&self) -> EngineCaller {
        EngineCaller { key: Some(self.key.id.clone()) }
    }

    /// The key itself.
    pub(crate) const fn key(&self) -> &KeyId {
        &self.key.id
    }

    /// Whether it may know of a sandbox.
    pub(crate) fn may_see(&self, engine: &atoll_engine::Engine, sandbox: &SandboxId) -> bool {
        let who = Requester { key: &self.key.id, scope: self.key.scope, holder: None };
        engine.standing(&who, sandbox.as_str()).is_ok()
    }

    /// Whose listings it gets; nobody's in particular when it may see all.
    pub(crate) fn sees(&self) -> Option<KeyId> {
        (self.key.scope < Scope::Admin).then(|| self.key.id.clone())
    }
}

impl<S: Needs> FromRequestParts<App> for Caller<S> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let key = app.host.verify(&parts.headers).map_err(|error| Failure::of(&error))?;
        if key.scope < S::SCOPE {
            return Err(Failure::new(
                StatusCode::FORBIDDEN,
                "the API key does not have the scope for this; use one with a higher scope: read, exec, manage, admin",
            ));
        }
        let named = sandbox_of(parts, app).await;
        if let Some(text) = &named {
            check::<S>(app, &key, text)?;
        }
        let sandbox = named.and_then(|text| text.parse::<SandboxId>().ok());
        let pass = Pass::Key { key: key.id.clone(), needed: S::SCOPE, sandbox };
        app.host.admit(&parts.extensions, pass);
        Ok(Self { key, scope: PhantomData })
    }
}

/// Roles, visibility and leases of the sandbox that the path names: as in the native API.
fn check<S: Needs>(app: &App, key: &VerifiedKey, text: &str) -> Result<(), Failure> {
    // By id alone; one that is none names nothing.
    let sandbox: SandboxId = text.parse().map_err(|_malformed: Error| Failure::no_sandbox(text))?;
    let who = Requester { key: &key.id, scope: key.scope, holder: None };
    let standing = app.host.engine().standing(&who, sandbox.as_str());
    let standing = standing.map_err(|_missing| Failure::no_sandbox(text))?;
    standing.allow(S::SCOPE, S::SCOPE <= Scope::Read).map_err(|error| Failure::of(&error))?;
    Ok(())
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
