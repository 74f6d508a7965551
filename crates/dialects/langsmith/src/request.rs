//! Who asks, and what: the parts that every handler takes.

use std::marker::PhantomData;

use atoll_core::id::SandboxId;
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Grant, Target};
pub(crate) use atoll_server::dialect::{Admin, Exec, Manage, Read};
use atoll_server::dialect::{Requires, read_all};
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::App;
use crate::error::Failure;
use crate::ids;

/// A caller that may do what `S` requires, with the sandbox that the path names, if it names one. The first argument
/// of every handler.
#[derive(Debug, Clone)]
pub(crate) struct Caller<S> {
    caller: EngineCaller,
    grant: Grant,
    sandbox: Result<SandboxId, Error>,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// Who asks, for the engine.
    pub(crate) const fn engine(&self) -> &EngineCaller {
        &self.caller
    }

    /// By what right it is here.
    pub(crate) const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The sandbox that the path names, as it was found when it was authorised.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`]; the handler knows how its clients want to hear that.
    pub(crate) fn sandbox(&self) -> Result<&SandboxId, Error> {
        self.sandbox.as_ref().map_err(Error::clone)
    }
}

impl<S: Requires> FromRequestParts<App> for Caller<S> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let fail = |error: Error| Failure::control(&error);
        let caller = EngineCaller::of(&app.host.verify(&parts.headers).map_err(fail)?);
        let engine = app.host.engine();
        let whole = engine.authorize(&caller, S::NEEDS, Target::Installation).await.map_err(fail)?;
        let (sandbox, grant) = match sandbox_of(parts, app).await {
            None => (Err(Error::new(Code::SandboxNotFound, "no sandbox is named")), whole),
            Some(text) => match engine.authorize(&caller, S::NEEDS, Target::Sandbox(&text)).await {
                Ok(grant) => (grant.sandbox().cloned().ok_or_else(|| SandboxId::not_found(&text)), grant),
                Err(error) if error.code == Code::SandboxNotFound => (Err(error), whole),
                Err(error) => return Err(fail(error)),
            },
        };
        app.host.fill(&parts.extensions, grant.clone());
        Ok(Self { caller, grant, sandbox, scope: PhantomData })
    }
}

/// What the engine knows the sandbox by that the path names.
async fn sandbox_of(parts: &mut Parts, app: &App) -> Option<String> {
    let route = parts.extensions.get::<MatchedPath>()?.as_str().to_owned();
    let param = if route.contains("/boxes/{name}") { "name" } else { "id" };
    let params = RawPathParams::from_request_parts(parts, app).await.ok()?;
    params.iter().find(|(name, _)| *name == param).map(|(_, value)| ids::sandbox(value))
}

/// JSON of a request, or of an answer. Unknown fields are ignored; an empty body is `{}`.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &App) -> Result<Self, Failure> {
        let bytes = read_all(request.into_body(), JSON_BODY_MAX_BYTES)
            .await
            .map_err(|error| Failure::control(&error))?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|error| {
            let error: String = error.to_string().chars().take(400).collect();
            Failure::field("body", error)
        })
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self.0).unwrap_or_else(|error| {
            // Our types have string keys and no failing serialisers.
            tracing::error!(%error, "an answer cannot be written as JSON");
            "null".to_owned()
        });
        ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
    }
}

/// The query string. Unknown parameters are ignored.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Failure> {
        let text = parts.uri.query().unwrap_or_default();
        serde_html_form::from_str(text).map(Self).map_err(|error| Failure::field("query", error))
    }
}

/// One part of the path, decoded.
#[derive(Debug)]
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<App> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, app).await;
        path.map(|path| Self(path.0)).map_err(|rejection| Failure::field("path", rejection.body_text()))
    }
}

/// Where this dialect is, as the caller sees it: what absolute addresses in answers begin with.
#[derive(Debug, Clone)]
pub(crate) struct Root(String);

impl Root {
    /// The address of something below `/v2/sandboxes`.
    pub(crate) fn url(&self, rest: &str) -> String {
        format!("{}/v2/sandboxes{rest}", self.0)
    }

    fn of(headers: &HeaderMap, prefix: &str) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // A proxy that ends TLS says so. Whoever lies here lies to himself only.
        let scheme = text("x-forwarded-proto").filter(|scheme| *scheme == "https").unwrap_or("http");
        let authority = text("x-forwarded-host").or_else(|| text(HOST.as_str())).unwrap_or("localhost");
        Self(format!("{scheme}://{authority}{prefix}"))
    }
}

impl FromRequestParts<App> for Root {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.headers, app.host.prefix()))
    }
}
