//! Who asks, and may they: `Authorization: Bearer <key>` or `X-API-Key: <key>`.
//!
//! A handler names the scope it needs in the type of its first argument, so that nothing else of the
//! request is looked at before the key. A test walks the OpenAPI document and tries every operation
//! without a key and with one that is too weak.

use std::marker::PhantomData;

use atoll_core::key::Scope;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, VerifiedKey};
use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;

use crate::error::{ApiError, ApiResult};
use crate::middleware::RequestId;
use crate::shared::App;

/// Longest text that can be a key, bytes. Anything longer is refused unread.
const KEY_MAX_BYTES: usize = 256;

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
needs! { Read Exec Manage Admin }

/// A caller whose key has at least the scope `S`.
#[derive(Debug, Clone)]
pub(crate) struct Caller<S> {
    key: VerifiedKey,
    request_id: RequestId,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// For the engine's records.
    pub(crate) fn engine(&self) -> EngineCaller {
        EngineCaller { key: Some(self.key.id.clone()) }
    }

    /// The key itself.
    pub(crate) const fn key(&self) -> &VerifiedKey {
        &self.key
    }

    /// Whether the key may do more than the route needs.
    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.key.scope >= scope
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
        Ok(Self { key, request_id, scope: PhantomData })
    }
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
