//! Who asks, and may they: `Authorization: Bearer <key>` or `X-API-Key: <key>`.
//!
//! Where the path names a sandbox, what the key may do with *that* counts too: roles, visibility and leases
//! are asked for here, for every route, so no handler can forget them.
//!
//! A handler names the scope it needs in the type of its first argument, so that nothing else of the
//! request is looked at before the key. A test walks the OpenAPI document and tries every operation
//! without a key and with one that is too weak.

use std::marker::PhantomData;

use atoll_core::id::KeyId;
use atoll_core::key::Scope;
use atoll_core::sharing::Requester;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine, Pass, VerifiedKey};
use axum::extract::{FromRequestParts, RawPathParams};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName};

use crate::error::{ApiError, ApiResult};
use crate::middleware::RequestId;
use crate::shared::App;
use crate::welcome::Guest;

/// Longest text that can be a key, bytes. Anything longer is refused unread.
const KEY_MAX_BYTES: usize = 256;

/// Names who works with a key that several share: see [`Requester::holder`].
pub(crate) const HOLDER: HeaderName = HeaderName::from_static("x-atoll-holder");
/// The part of a path that names a sandbox.
const SANDBOX: &str = "sandbox";
/// The part of a path that names a snapshot.
const SNAPSHOT: &str = "snapshot";

/// The scope that a route needs.
pub(crate) trait Needs {
    const SCOPE: Scope;
    /// Whether it may be done to a sandbox that somebody else has for itself.
    const DESPITE_LEASE: bool = Self::SCOPE as u8 <= Scope::Read as u8;
    /// Whether it may be done to a sandbox that is gone and left a journal.
    const EVEN_GONE: bool = false;
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
needs! { Read Exec Manage Admin }

/// To end a lease.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Release {}

/// To read the journal of a sandbox, which may be gone.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadTrace {}

impl Needs for ReadTrace {
    const SCOPE: Scope = Scope::Read;
    const EVEN_GONE: bool = true;
}

impl Needs for Release {
    const SCOPE: Scope = Scope::Exec;
    const DESPITE_LEASE: bool = true;
}

/// A caller whose key has at least the scope `S`.
#[derive(Debug, Clone)]
pub(crate) struct Caller<S> {
    key: VerifiedKey,
    holder: Option<String>,
    /// What it may do here: with the sandbox that the path names, if it names one.
    allowed: Scope,
    pass: Pass,
    request_id: RequestId,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// For the engine's records.
    pub(crate) fn engine(&self) -> EngineCaller {
        EngineCaller { key: Some(self.key.id.clone()) }
    }

    /// By what right it is here, on the sandbox if the path names one.
    pub(crate) fn pass(&self) -> Pass {
        self.pass.clone()
    }

    /// The key itself.
    pub(crate) const fn key(&self) -> &VerifiedKey {
        &self.key
    }

    /// Whether the key may do more than the route needs, leases aside.
    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.allowed >= scope
    }

    /// For questions about one sandbox.
    pub(crate) fn requester(&self) -> Requester<'_> {
        Requester { key: &self.key.id, scope: self.key.scope, holder: self.holder.as_deref() }
    }

    /// Whose listings it gets; nobody's in particular when it may see all.
    pub(crate) fn sees(&self) -> Option<KeyId> {
        (self.key.scope < Scope::Admin).then(|| self.key.id.clone())
    }

    /// The request's id.
    pub(crate) fn request_id(&self) -> &str {
        &self.request_id.0
    }
}

impl<S: Needs> FromRequestParts<App> for Caller<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let key = verify(&parts.headers, app)?;
        if key.scope < S::SCOPE {
            return Err(forbidden().into());
        }
        let request_id = parts.extensions.get::<RequestId>().cloned().unwrap_or_default();
        let pass = Pass::Key { key: key.id.clone(), needed: S::SCOPE, sandbox: None };
        let holder = parts.headers.get(HOLDER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let allowed = key.scope;
        let mut caller = Self { key, holder, allowed, pass, request_id, scope: PhantomData };
        if let Some(sandbox) = named(parts, app, SANDBOX).await {
            let sandbox = if S::EVEN_GONE {
                let (id, standing) = app.engine.trace_standing(&caller.requester(), &sandbox).await?;
                caller.allowed = standing.allow(S::SCOPE, S::DESPITE_LEASE)?;
                Some(id)
            } else {
                caller.allowed = may::<S>(&app.engine, &caller.requester(), &sandbox)?;
                Some(app.engine.sandbox_id(&sandbox)?)
            };
            caller.pass = Pass::Key { key: caller.key.id.clone(), needed: S::SCOPE, sandbox };
        }
        if let Some(snapshot) = named(parts, app, SNAPSHOT).await {
            app.engine.check_sees_snapshot(caller.sees().as_ref(), &snapshot).await?;
        }
        Guest::admit(&parts.extensions, caller.pass());
        Ok(caller)
    }
}

/// The sandbox or snapshot that the path names.
async fn named(parts: &mut Parts, app: &App, what: &str) -> Option<String> {
    // A path that cannot be read is refused by the handler, which names what is wrong.
    let params = RawPathParams::from_request_parts(parts, app).await.ok()?;
    params.iter().find(|(name, _)| *name == what).map(|(_, value)| value.to_owned())
}

/// The most that somebody may do with a sandbox, if that is enough for `S`.
fn may<S: Needs>(engine: &Engine, who: &Requester<'_>, sandbox: &str) -> Result<Scope, Error> {
    engine.standing(who, sandbox)?.allow(S::SCOPE, S::DESPITE_LEASE)
}

/// Whether somebody may send input to what runs in a sandbox, now.
pub(crate) fn may_send(engine: &Engine, who: &Requester<'_>, sandbox: &str) -> Result<(), Error> {
    may::<Exec>(engine, who, sandbox).map(drop)
}

/// The key that a request presents.
pub(crate) fn verify(headers: &HeaderMap, app: &App) -> ApiResult<VerifiedKey> {
    let presented = presented(headers).filter(|text| text.len() <= KEY_MAX_BYTES);
    // One answer for every way of being wrong.
    let verified = presented.and_then(|text| app.engine.verify_key(text).ok());
    verified.ok_or_else(|| ApiError(unauthorized()))
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| key.trim());
    }
    headers.get("x-api-key")?.to_str().ok()
}

fn unauthorized() -> Error {
    Error::new(Code::Unauthorized, "a valid API key is needed")
        .hint("send 'Authorization: Bearer <key>'; 'atoll key create' makes one")
}

/// The answer to a key that is too weak.
pub(crate) fn forbidden() -> Error {
    Error::new(Code::Forbidden, "the API key does not have the scope for this")
        .hint("use a key with a higher scope: read, exec, manage, admin")
}
