//! Who asks, and what: the parts that every handler takes.

use std::marker::PhantomData;

use atoll_core::id::KeyId;
use atoll_core::key::Scope;
use atoll_core::sharing::Requester;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Pass, VerifiedKey};
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;

use crate::App;
use crate::error::Failure;
use crate::ids;

pub(crate) use atoll_dialect_kit::request::{Json, Query};

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

/// A caller whose key has at least the scope `S`. The first argument of every handler.
#[derive(Debug, Clone)]
pub(crate) struct Caller<S> {
    key: VerifiedKey,
    pass: Pass,
    scope: PhantomData<fn() -> S>,
}

impl<S> Caller<S> {
    /// For the engine's records.
    pub(crate) fn engine(&self) -> EngineCaller {
        EngineCaller { key: Some(self.key.id.clone()) }
    }

    /// The key itself.
    pub(crate) fn key(&self) -> KeyId {
        self.key.id.clone()
    }

    /// By what right it is here, on the sandbox if the path names one.
    pub(crate) fn pass(&self) -> Pass {
        self.pass.clone()
    }
}

impl<S: Needs> FromRequestParts<App> for Caller<S> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let key = app.host.verify(&parts.headers).map_err(|error| Failure::control(&error))?;
        if key.scope < S::SCOPE {
            let error = Error::new(Code::Forbidden, "the API key does not have the scope for this")
                .hint("use a key with a higher scope: read, exec, manage, admin");
            return Err(Failure::control(&error));
        }
        let pass = Pass::Key { key: key.id.clone(), needed: S::SCOPE, sandbox: None };
        let mut caller = Self { key, pass, scope: PhantomData };
        if let Some(sandbox) = sandbox_of(parts, app).await {
            caller.check(app, &sandbox, S::SCOPE).map_err(|error| Failure::control(&error))?;
            let sandbox = app.host.engine().sandbox_id(&sandbox).ok();
            caller.pass = Pass::Key { key: caller.key(), needed: S::SCOPE, sandbox };
        }
        app.host.admit(&parts.extensions, caller.pass());
        Ok(caller)
    }
}

impl<S> Caller<S> {
    /// Roles, visibility and leases of the sandbox that the path names: as in the native API. One that is not
    /// there is the handler's matter.
    fn check(&self, app: &App, sandbox: &str, needs: Scope) -> Result<(), Error> {
        let engine = app.host.engine();
        if engine.sandbox(sandbox).is_err() {
            return Ok(());
        }
        let who = Requester { key: &self.key.id, scope: self.key.scope, holder: None };
        let standing = engine.standing(&who, sandbox)?;
        if standing.scope < needs {
            let role = standing.scope.as_str();
            return Err(Error::new(
                Code::Forbidden,
                format!("the API key has the role '{role}' on this sandbox"),
            ));
        }
        match standing.leased {
            Some(error) if needs > Scope::Read => Err(error),
            Some(_) | None => Ok(()),
        }
    }

    /// Whose listings it gets; nobody's in particular when it may see all.
    pub(crate) fn sees(&self) -> Option<KeyId> {
        (self.key.scope < Scope::Admin).then(|| self.key.id.clone())
    }
}

/// What the engine knows the sandbox by that the path names.
async fn sandbox_of(parts: &mut Parts, app: &App) -> Option<String> {
    let route = parts.extensions.get::<MatchedPath>()?.as_str().to_owned();
    let param = if route.contains("/boxes/{name}") { "name" } else { "id" };
    let params = RawPathParams::from_request_parts(parts, app).await.ok()?;
    params.iter().find(|(name, _)| *name == param).map(|(_, value)| ids::sandbox(value))
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

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.headers, crate::PREFIX))
    }
}
