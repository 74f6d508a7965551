//! Authentication and authorisation of requests by their API key: `Authorization: Bearer <key>` or `X-API-Key: <key>`.
//!
//! A handler names the right that it needs in the type of its first argument, so that nothing else of the request is
//! looked at before the key. [`Caller`] asks [`Engine::authorize`](atoll_engine::Engine::authorize) about the object
//! that the path names, for every route, so no handler can forget it; [`OnSandbox`] and its like are for routes whose
//! path names an object, and give its id, which is what calls of the engine take: no handler sees the name that was
//! checked.
//!
//! A test walks the OpenAPI document and tries every operation on real objects, with every kind of key.

use std::marker::PhantomData;
use std::ops::Deref;

use atoll_core::id::{BuildId, SandboxId, VolumeId};
use atoll_core::key::Scope;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_dashboard::Session;
use atoll_engine::{AgentGrant, Caller as EngineCaller, Grant, Resource, SnapshotGrant, Target, VerifiedKey};
use axum::extract::{FromRequestParts, RawPathParams};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName};

use crate::error::{ApiError, ApiResult};
use crate::middleware::RequestId;
use crate::revocation::GrantSlot;
use crate::shared::App;

/// Longest text that can be a key, bytes. Anything longer is refused unread.
const KEY_MAX_BYTES: usize = 256;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The header in which a client names itself when several clients share one API key: see [`EngineCaller::holder`].
pub(crate) const HOLDER: HeaderName = HeaderName::from_static("x-atoll-holder");

/// The right that a route needs, as a type.
pub trait Requires {
    /// The right that the caller must have.
    const NEEDS: Needs;
    /// Whether a sandbox in the path may be gone, because the route is about its journal.
    const JOURNAL: bool = false;
}

macro_rules! requires {
    ($($(#[$doc:meta])* $name:ident = $needs:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub enum $name {}
            impl Requires for $name {
                const NEEDS: Needs = $needs;
            }
        )*
    };
}
requires! {
    /// To look.
    Read = Needs::READ;
    /// To run commands and change files.
    Exec = Needs::EXEC;
    /// To make, change and delete.
    Manage = Needs::MANAGE;
    /// To administer the server.
    Admin = Needs::ADMIN;
    /// To end a lease.
    Release = Needs::EXEC.despite_lease();
}

/// To make, change and delete objects that all projects use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ManageCommon {}

impl Requires for ManageCommon {
    const NEEDS: Needs = Needs::MANAGE.common();
}

/// To read the journal of a sandbox, which may be gone.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadJournal {}

impl Requires for ReadJournal {
    const NEEDS: Needs = Needs::READ;
    const JOURNAL: bool = true;
}

/// A caller that may do what `S` requires with the object that the path names.
#[derive(Debug, Clone)]
pub(crate) struct Caller<S> {
    caller: EngineCaller,
    key: VerifiedKey,
    grant: Grant,
    request_id: RequestId,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// The caller, as the engine takes it.
    pub(crate) const fn engine(&self) -> &EngineCaller {
        &self.caller
    }

    /// The right by which the caller is here.
    pub(crate) const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The key itself.
    pub(crate) const fn key(&self) -> &VerifiedKey {
        &self.key
    }

    /// Whether the key may do more than the route needs, leases aside.
    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.grant.scope() >= scope
    }

    /// The request's id.
    pub(crate) fn request_id(&self) -> &str {
        &self.request_id.0
    }
}

impl<S: Requires> FromRequestParts<App> for Caller<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let key = identify(&parts.headers, &parts.extensions, app)?;
        let holder = parts.headers.get(HOLDER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let caller = EngineCaller::of(&key).working_as(holder);
        // A path that cannot be read names nothing, and is refused by the handler.
        let params = RawPathParams::from_request_parts(parts, app).await.ok();
        let target = match params.as_ref().and_then(named) {
            Some(Target::Sandbox(text)) if S::JOURNAL => Target::Journal(text),
            named => named.unwrap_or(Target::Installation),
        };
        let grant = app.engine.authorize(&caller, S::NEEDS, target).await?;
        let grant = match parts.extensions.get::<SignedIn>() {
            Some(SignedIn(session)) => grant.ending_with(session.ended().clone()),
            None => grant,
        };
        GrantSlot::fill(&parts.extensions, grant.clone())?;
        let request_id = parts.extensions.get::<RequestId>().cloned().unwrap_or_default();
        Ok(Self { caller, key, grant, request_id, scope: PhantomData })
    }
}

/// The object that the path names, if it names one.
fn named(params: &RawPathParams) -> Option<Target<'_>> {
    params.iter().find_map(|(name, value)| match name {
        "sandbox" => Some(Target::Sandbox(value)),
        "snapshot" => Some(Target::Snapshot(value)),
        "volume" => Some(Target::Volume(value)),
        "build" => Some(Target::Build(value)),
        "agent" => Some(Target::Agent(value)),
        _ => None,
    })
}

macro_rules! on {
    ($($(#[$doc:meta])* $name:ident, $variant:ident, $field:ident: $type:ty;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone)]
            pub(crate) struct $name<S> {
                caller: Caller<S>,
                $field: $type,
            }

            impl<S> $name<S> {
                /// The object that the path names, as it was found when the caller was authorised.
                pub(crate) const fn $field(&self) -> &$type {
                    &self.$field
                }
            }

            impl<S> Deref for $name<S> {
                type Target = Caller<S>;

                fn deref(&self) -> &Caller<S> {
                    &self.caller
                }
            }

            impl<S: Requires> FromRequestParts<App> for $name<S> {
                type Rejection = ApiError;

                async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
                    let caller = Caller::from_request_parts(parts, app).await?;
                    match caller.grant().resource() {
                        Resource::$variant(found) => Ok(Self { $field: found.clone(), caller }),
                        _ => Err(ApiError(Error::invalid("path", "cannot be read"))),
                    }
                }
            }
        )*
    };
}
on! {
    /// A caller on a route whose path names a sandbox.
    OnSandbox, Sandbox, sandbox: SandboxId;
    /// A caller on a route whose path names a snapshot.
    OnSnapshot, Snapshot, snapshot: SnapshotGrant;
    /// A caller on a route whose path names a volume.
    OnVolume, Volume, volume: VolumeId;
    /// A caller on a route whose path names an agent.
    OnAgent, Agent, agent: AgentGrant;
    /// A caller on a route whose path names a build.
    OnBuild, Build, build: BuildId;
}

/// Marks a request that came to the dashboard with a session and may use it: the dashboard has checked that.
#[derive(Debug, Clone)]
pub(crate) struct SignedIn(pub(crate) Session);

/// The API key of the caller: the key behind a session, or the key that the request presents.
pub(crate) fn identify(headers: &HeaderMap, extensions: &Extensions, app: &App) -> ApiResult<VerifiedKey> {
    match extensions.get::<SignedIn>() {
        Some(SignedIn(session)) => Ok(app.engine.key_behind(session.key())?),
        None => verify(headers, app),
    }
}

/// Whether a request presents a key, right or wrong.
pub(crate) fn presents_key(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || headers.contains_key(API_KEY)
}

/// The key that a request presents.
pub(crate) fn verify(headers: &HeaderMap, app: &App) -> ApiResult<VerifiedKey> {
    let presented = presented(headers).filter(|text| text.len() <= KEY_MAX_BYTES);
    // One answer for every way of being wrong.
    let verified = presented.and_then(|text| app.engine.verify_key(text).ok());
    verified.ok_or_else(|| ApiError(unauthorized(app)))
}

/// The text that a request shows as its key.
pub(crate) fn presented(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| key.trim());
    }
    headers.get(API_KEY)?.to_str().ok()
}

/// The answer to a request without a key that is valid.
pub(crate) fn unauthorized(app: &App) -> Error {
    let error = Error::new(Code::Unauthorized, "a valid API key is needed");
    let hint = "send 'Authorization: Bearer <key>'; 'atoll key create' makes one";
    match app.config.people {
        // A login ends by itself.
        Some(_) => error.hint(format!("{hint}, and 'atoll login --oidc' logs a person in")),
        None => error.hint(hint),
    }
}

/// The answer to a key that is too weak.
pub(crate) fn forbidden() -> Error {
    Error::new(Code::Forbidden, "the API key does not have the scope for this")
        .hint("use a key with a higher scope: read, exec, manage, admin")
}
