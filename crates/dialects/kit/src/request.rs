//! The parts of a request that handlers take.

use std::marker::PhantomData;

use atoll_core::id::KeyId;
use atoll_core::key::Scope;
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::sharing::Requester;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Pass, VerifiedKey};
use atoll_server::dialect::read_all;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Protocol;

/// Most of a parser's words that a message repeats, characters.
const WHY_MAX_CHARS: usize = 400;

/// The scope that a route needs.
pub trait Needs {
    /// It.
    const SCOPE: Scope;
}

macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub enum $name {}
            impl Needs for $name {
                const SCOPE: Scope = Scope::$name;
            }
        )*
    };
}
needs! {
    /// To look.
    Read
    /// To run commands and change files.
    Exec
    /// To make and delete.
    Manage
    /// Everything.
    Admin
}

/// A caller whose key has at least the scope `S`, also on the sandbox that the request is about. The first argument
/// of every handler, so that nothing else of a request is looked at before the key.
#[derive(Debug, Clone)]
pub struct Caller<S> {
    key: VerifiedKey,
    pass: Pass,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// For the engine's records.
    #[must_use]
    pub fn engine(&self) -> EngineCaller {
        EngineCaller { key: Some(self.key.id.clone()) }
    }

    /// The key itself.
    #[must_use]
    pub fn key(&self) -> KeyId {
        self.key.id.clone()
    }

    /// By what right it is here: what outlives the request ends with it.
    #[must_use]
    pub fn pass(&self) -> Pass {
        self.pass.clone()
    }

    /// Whose listings it gets; nobody's in particular when it may see all.
    #[must_use]
    pub fn sees(&self) -> Option<KeyId> {
        (self.key.scope < Scope::Admin).then(|| self.key.id.clone())
    }
}

impl<P: Protocol, S: Needs> FromRequestParts<P> for Caller<S> {
    type Rejection = P::Failure;

    async fn from_request_parts(parts: &mut Parts, app: &P) -> Result<Self, P::Failure> {
        let refused = |error: Error| P::refused(&error);
        let key = app.host().verify(&parts.headers).map_err(refused)?;
        if key.scope < S::SCOPE {
            let error = Error::new(Code::Forbidden, "the API key does not have the scope for this")
                .hint("use a key with a higher scope: read, exec, manage, admin");
            return Err(refused(error));
        }
        let mut sandbox = None;
        if let Some(named) = sandbox_of(parts, app).await {
            check(app, &key, &named, S::SCOPE).map_err(refused)?;
            sandbox = app.host().engine().sandbox_id(&named).ok();
        }
        let pass = Pass::Key { key: key.id.clone(), needed: S::SCOPE, sandbox };
        app.host().admit(&parts.extensions, pass.clone());
        Ok(Self { key, pass, scope: PhantomData })
    }
}

/// Roles, visibility and leases of a sandbox: as in the native API. One that is not there is the handler's matter.
fn check<P: Protocol>(app: &P, key: &VerifiedKey, sandbox: &str, needs: Scope) -> Result<(), Error> {
    let engine = app.host().engine();
    if engine.sandbox(sandbox).is_err() {
        return Ok(());
    }
    let who = Requester { key: &key.id, scope: key.scope, holder: None };
    let standing = engine.standing(&who, sandbox)?;
    if standing.scope < needs {
        let role = standing.scope.as_str();
        let why = format!("the API key has the role '{role}' on this sandbox");
        return Err(Error::new(Code::Forbidden, why));
    }
    match standing.leased {
        Some(error) if needs > Scope::Read => Err(error),
        Some(_) | None => Ok(()),
    }
}

async fn sandbox_of<P: Protocol>(parts: &mut Parts, app: &P) -> Option<String> {
    let route = parts.extensions.get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let params = RawPathParams::from_request_parts(parts, app).await.ok()?;
    P::sandbox(route.as_deref().unwrap_or_default(), &params, parts)
}

/// JSON of a request, or of an answer. Unknown fields are ignored, because clients of other vendors send more than
/// they document; an empty body is `{}`.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<P: Protocol, T: DeserializeOwned> FromRequest<P> for Json<T> {
    type Rejection = P::Failure;

    async fn from_request(request: Request, _: &P) -> Result<Self, P::Failure> {
        let read = read_all(request.into_body(), JSON_BODY_MAX_BYTES).await;
        let bytes = read.map_err(|error| P::refused(&error))?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|error| malformed::<P>("body", &error))
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self.0).unwrap_or_else(|error| {
            // Types of a protocol have string keys and no failing serialisers.
            tracing::error!(%error, "an answer cannot be written as JSON");
            "null".to_owned()
        });
        ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
    }
}

/// The query string. Unknown parameters are ignored.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<P: Protocol, T: DeserializeOwned> FromRequestParts<P> for Query<T> {
    type Rejection = P::Failure;

    async fn from_request_parts(parts: &mut Parts, _: &P) -> Result<Self, P::Failure> {
        let text = parts.uri.query().unwrap_or_default();
        serde_html_form::from_str(text).map(Self).map_err(|error| malformed::<P>("query", &error))
    }
}

/// Parts of the path, decoded.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<P: Protocol, T: DeserializeOwned + Send> FromRequestParts<P> for Path<T> {
    type Rejection = P::Failure;

    async fn from_request_parts(parts: &mut Parts, app: &P) -> Result<Self, P::Failure> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, app).await;
        path.map(|path| Self(path.0)).map_err(|rejection| malformed::<P>("path", &rejection.body_text()))
    }
}

/// Parsers quote what they were given: it is cut.
fn malformed<P: Protocol>(part: &str, why: &dyn std::fmt::Display) -> P::Failure {
    let why: String = why.to_string().chars().take(WHY_MAX_CHARS).collect();
    P::refused(&Error::invalid(part, why))
}
