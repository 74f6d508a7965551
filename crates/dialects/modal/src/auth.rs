//! The callers, and what they may do. All look-ups of rights are here.
//!
//! Calls of the control plane show a key, as id and secret. Calls about one sandbox's commands show a token that was
//! made for a key and that sandbox. It has the form of a JWT, because the clients read its end from it; the engine's
//! code in its last part makes it valid. It allows what the key may do in the sandbox at that moment.

use std::sync::Arc;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::secret::Secret;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_dialect_kit::status::Status;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::{Caller as EngineCaller, Engine, Grant, Target, VerifiedKey};
use atoll_server::dialect::{ClientGone, Origin, credentials};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::request::Parts;
use serde::Deserialize;

use crate::App;
use crate::grpc::{Fault, Result};
use crate::ids;

/// How long a token is good, seconds; clients get another before it ends.
const TOKEN_S: u64 = 6 * 3600;
/// The purpose of the code in a token.
const PURPOSE: &str = "modal task";
/// The head of every token: it only gives the token its form.
const HEAD: &str = r#"{"alg":"none","typ":"JWT"}"#;

/// The key of a request.
pub(crate) fn credential(headers: &HeaderMap) -> Option<Secret> {
    credentials::pair(headers, "x-modal-token-id", "x-modal-token-secret")
}

/// A caller with a key, or with a token that stands for one.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) app: App,
    pub(crate) head: Head,
    /// The caller, for the engine.
    caller: EngineCaller,
    key: KeyId,
    /// The right by which the call was admitted.
    right: Arc<Grant>,
}

/// The parts of a call's head that are read.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) headers: HeaderMap,
    /// Host and port by which the server was reached.
    pub(crate) authority: String,
    /// Whether the call came over TLS.
    pub(crate) encrypted: bool,
    pub(crate) gone: ClientGone,
    extensions: http::Extensions,
}

impl Head {
    pub(crate) fn new(parts: Parts) -> Self {
        let host = parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
        let encrypted = Origin::of(&parts).is_encrypted();
        let authority = parts.uri.authority().map(http::uri::Authority::as_str).or(host);
        Self {
            authority: authority.unwrap_or_default().to_owned(),
            encrypted,
            gone: ClientGone::of(&parts.extensions),
            headers: parts.headers,
            extensions: parts.extensions,
        }
    }

    /// The request's extensions, in which its subject and its right are noted.
    pub(crate) const fn extensions(&self) -> &http::Extensions {
        &self.extensions
    }

    /// A header's text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Asker {
    /// The caller of the control plane.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`.
    pub(crate) async fn with_key(app: &App, head: Head) -> Result<Self> {
        let key = app.host.verify(&head.headers)?;
        let caller = EngineCaller::of(&key);
        let grant = app.host.engine().authorize(&caller, Needs::READ, Target::Installation).await?;
        app.host.fill(&head.extensions, grant.clone())?;
        Ok(Self { app: app.clone(), head, caller, key: key.id, right: Arc::new(grant) })
    }

    /// The caller of a sandbox's task, for a call that needs this scope. Gives the sandbox too: with this token the
    /// caller reaches no other.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, upon which the clients get another token; as [`Engine::authorize`].
    pub(crate) async fn with_token(app: &App, head: Head, needs: Scope) -> Result<(Self, SandboxId)> {
        let refused = || Fault::new(Status::Unauthenticated, "the token is not valid for this task");
        let shown = credentials::bearer(&head.headers).ok_or_else(refused)?;
        let engine = app.host.engine();
        let (key, sandbox) = read(engine, shown.reveal(), engine.now_ms() / 1000).ok_or_else(refused)?;
        let caller = EngineCaller::of(&key);
        let grant = engine.authorize(&caller, Needs::scope(needs), Target::Sandbox(sandbox.as_str())).await?;
        app.host.fill(&head.extensions, grant.clone())?;
        Ok((Self { app: app.clone(), head, caller, key: key.id, right: Arc::new(grant) }, sandbox))
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.app.host.engine()
    }

    /// The caller, for the engine.
    pub(crate) const fn caller(&self) -> &EngineCaller {
        &self.caller
    }

    pub(crate) const fn key(&self) -> &KeyId {
        &self.key
    }

    /// Checks that the caller may still do what it was admitted for: a call that lasts asks this for each thing that it begins
    /// after the first. Its key may have been deleted meanwhile, or another key have the sandbox for itself.
    ///
    /// # Errors
    /// As [`Engine::recheck`].
    pub(crate) fn recheck(&self) -> Result<()> {
        Ok(self.engine().recheck(&self.right, self.right.needs())?)
    }

    /// Whether the caller may use things that the key `owner` made.
    pub(crate) fn may_use_of(&self, owner: &KeyId) -> bool {
        self.caller.is_admin() || self.key == *owner
    }

    /// Checks the key's scope, for calls that are about no sandbox.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`.
    pub(crate) fn needs(&self, scope: Scope) -> Result<()> {
        if self.caller.scope() >= scope {
            return Ok(());
        }
        let error = Error::new(Code::Forbidden, "the API key does not have the scope for this")
            .hint("use a key with a higher scope: read, exec, manage, admin");
        Err(Fault::of(&error))
    }

    /// Checks what the key may do with a sandbox: its scope, and role, visibility and lease there.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`; `NOT_FOUND` for a sandbox that is not there, or that the key may not know of.
    pub(crate) async fn may(&self, sandbox: &SandboxId, needed: Scope) -> Result<()> {
        self.grant(Needs::scope(needed), Target::Sandbox(sandbox.as_str())).await?;
        Ok(())
    }

    /// The same, of anything that has rights of its own.
    ///
    /// # Errors
    /// As [`Engine::authorize`].
    pub(crate) async fn grant(&self, needs: Needs, target: Target<'_>) -> Result<Grant, Error> {
        let grant = self.engine().authorize(&self.caller, needs, target).await?;
        self.app.host.fill(&self.head.extensions, grant.clone())?;
        Ok(grant)
    }

    /// A token for the task of a sandbox.
    pub(crate) fn token(&self, sandbox: &SandboxId) -> String {
        let end = self.engine().now_ms() / 1000 + TOKEN_S;
        let code = self.engine().sandbox_token(&purpose(end), &self.key, sandbox);
        let claims = serde_json::json!({"exp": end, "task": sandbox.as_str()}).to_string();
        let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{}", part(HEAD), part(&claims), part(code.reveal()))
    }
}

/// The end is part of the purpose, so the code vouches for it.
fn purpose(end_s: u64) -> String {
    format!("{PURPOSE} until {end_s}")
}

/// The claims in a token, and no others: the code vouches for all of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    exp: u64,
    task: String,
}

/// The key and the sandbox of a valid token.
fn read(engine: &Engine, token: &str, now_s: u64) -> Option<(VerifiedKey, SandboxId)> {
    let mut parts = token.splitn(3, '.').skip(1);
    let mut part = || BASE64_URL_SAFE_NO_PAD.decode(parts.next()?).ok();
    let (claims, code) = (part()?, part()?);
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    let sandbox: SandboxId = claims.task.parse().ok()?;
    if claims.exp <= now_s {
        return None;
    }
    let code = std::str::from_utf8(&code).ok()?;
    let key = engine.verify_sandbox_token(&purpose(claims.exp), code, &sandbox).ok()?;
    Some((key, sandbox))
}

/// A token that allows nothing, for the metadata of calls whose clients want to show one beside their key.
pub(crate) fn empty_token() -> String {
    let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let claims = serde_json::json!({"exp": now_ms() / 1000 + TOKEN_S}).to_string();
    format!("{}.{}.{}", part(HEAD), part(&claims), part("atoll"))
}

/// The sandbox that a request names, once its key may do with it what `needed` says.
///
/// # Errors
/// As [`Asker::may`].
pub(crate) async fn sandbox(
    asker: &Asker,
    text: &str,
    needed: Scope,
) -> Result<(SandboxId, ids::Generation)> {
    let (id, generation) = ids::parse_sandbox(text)?;
    asker.may(&id, needed).await.map_err(|fault| match fault.status {
        Status::NotFound => ids::no_sandbox(text),
        _ => fault,
    })?;
    Ok((id, generation))
}
