//! The parts of a request that handlers take.

use std::marker::PhantomData;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine, Grant, Target};
pub use atoll_server::dialect::{Admin, Exec, Manage, Read, Requires};
use atoll_server::dialect::{Arrival, Origin, read_all};
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Protocol;

/// Most characters of a parser's message that an error repeats.
const WHY_MAX_CHARS: usize = 400;

/// Where the dialect is, as the caller sees it: absolute addresses in answers begin with it.
#[derive(Debug, Clone)]
pub struct Root(pub String);

impl std::fmt::Display for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<S: Sync> FromRequestParts<S> for Root {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let prefix = parts.extensions.get::<Arrival>().map_or("", |arrival| arrival.prefix);
        Ok(Self(format!("{}{prefix}", Origin::of(parts))))
    }
}

/// A caller that may do what `S` requires, also on the sandbox that the request is about. It is the first argument of
/// every handler, so that the server checks the key before it looks at anything else of a request.
#[derive(Debug, Clone)]
pub struct Caller<S> {
    caller: EngineCaller,
    key: KeyId,
    grant: Grant,
    sandbox: Result<SandboxId, Error>,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// The caller, for the engine.
    #[must_use]
    pub const fn engine(&self) -> &EngineCaller {
        &self.caller
    }

    /// The key itself.
    #[must_use]
    pub fn key(&self) -> KeyId {
        self.key.clone()
    }

    /// The right by which the caller is here. Work that outlives the request ends when this right ends, and checks it
    /// again before each thing that it begins.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The sandbox that the request is about, as it was found when the request was authorised. Handlers do not look it
    /// up by its name again: the name may belong to another sandbox by now.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], also for a sandbox that the key may not know of. The handler turns it into the answer
    /// that its clients expect.
    pub fn sandbox(&self) -> Result<&SandboxId, Error> {
        self.sandbox.as_ref().map_err(Error::clone)
    }

    /// The key whose entries the caller may see in listings; `None` when it may see all.
    #[must_use]
    pub fn sees(&self) -> Option<&KeyId> {
        (!self.caller.is_admin()).then_some(&self.key)
    }
}

impl<P: Protocol, S: Requires> FromRequestParts<P> for Caller<S> {
    type Rejection = P::Failure;

    async fn from_request_parts(parts: &mut Parts, app: &P) -> Result<Self, P::Failure> {
        let refused = |error: Error| P::refused(&error);
        let key = app.host().verify(&parts.headers).map_err(refused)?;
        let caller = EngineCaller::of(&key);
        let engine = app.host().engine();
        let anywhere = engine.authorize(&caller, S::NEEDS, Target::Installation).await.map_err(refused)?;
        let (sandbox, grant) = match sandbox_of(parts, app).await {
            None => (Err(Error::new(Code::SandboxNotFound, "no sandbox is named")), anywhere),
            Some(named) => match on_sandbox::<P>(engine, &caller, S::NEEDS, &named).await {
                Ok((id, grant)) => (Ok(id), grant),
                Err(error) if error.code == Code::SandboxNotFound => match P::missing(&named) {
                    Some(failure) => return Err(failure),
                    None => (Err(error), anywhere),
                },
                Err(error) => return Err(refused(error)),
            },
        };
        app.host().fill(&parts.extensions, grant.clone()).map_err(refused)?;
        parts.extensions.insert(Found(sandbox.clone()));
        Ok(Self { caller, key: key.id, grant, sandbox, scope: PhantomData })
    }
}

async fn on_sandbox<P: Protocol>(
    engine: &Engine,
    caller: &EngineCaller,
    needs: Needs,
    named: &str,
) -> Result<(SandboxId, Grant), Error> {
    let missing = || SandboxId::not_found(named);
    if P::BY_ID_ALONE && named.parse::<SandboxId>().is_err() {
        return Err(missing());
    }
    let grant = engine.authorize(caller, needs, Target::Sandbox(named)).await?;
    Ok((grant.sandbox().cloned().ok_or_else(missing)?, grant))
}

/// The sandbox that a [`Caller`] found, for the arguments after it.
#[derive(Debug, Clone)]
struct Found(Result<SandboxId, Error>);

/// The id of the sandbox that the request is about: [`Caller::sandbox`], as an argument. It must come after a
/// [`Caller`], which has found it; without a [`Caller`] every request is refused.
#[derive(Debug, Clone)]
pub struct Sandbox(pub SandboxId);

impl<P: Protocol> FromRequestParts<P> for Sandbox {
    type Rejection = P::Failure;

    async fn from_request_parts(parts: &mut Parts, _: &P) -> Result<Self, P::Failure> {
        let nobody = || Error::new(Code::Unauthorized, "nobody was asked who this is");
        let found = parts.extensions.get::<Found>().map_or_else(|| Err(nobody()), |found| found.0.clone());
        found.map(Self).map_err(|error| P::refused(&error))
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

/// Parsers quote their input in their messages: the message is cut.
fn malformed<P: Protocol>(part: &str, why: &dyn std::fmt::Display) -> P::Failure {
    let why: String = why.to_string().chars().take(WHY_MAX_CHARS).collect();
    P::refused(&Error::invalid(part, why))
}
