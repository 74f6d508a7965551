//! Who asks: every look-up of keys, tokens, and rights on a sandbox is here.
//!
//! | what is asked | by what right |
//! |---|---|
//! | control plane | the API key, as `Authorization: Bearer` |
//! | toolbox | the same, or a preview token, which stands for the key that asked for it |
//! | ports | the same, in Daytona's places ([`crate::preview`]) |
//! | files by a signed address | the signing key of the sandbox, which stands for the key that asked for it |

use atoll_core::id::{AccessId, KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::{Code, Error};
use atoll_dialect_kit::request::{Caller as KitCaller, Needs};
use atoll_dialect_kit::uuid;
use atoll_engine::{Access, Caller as EngineCaller, Engine, Pass};
use atoll_store::SandboxRecord;
use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use http::{HeaderMap, HeaderName};

use crate::App;
use crate::error::{Failure, Result, Source};
use crate::extras::Extras;
use crate::preview::{CODE_CHARS, Signed};

pub(crate) use atoll_dialect_kit::request::{Exec, Manage, Read};

/// The part of a path that names a sandbox.
const PARAM: &str = "sandbox";
/// Carries a preview token.
pub(crate) const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-daytona-preview-token");
/// The same, for whoever cannot send headers.
pub(crate) const TOKEN_PARAMETER: &str = "DAYTONA_SANDBOX_AUTH_KEY";
/// What preview tokens are for.
const PREVIEW: &str = "daytona preview";
/// What signing keys are for.
const SIGNING: &str = "daytona signing";
/// Longest text that can be a token, bytes.
const TOKEN_MAX_BYTES: usize = 256;

/// What the engine knows the sandbox by that a path names.
pub(crate) fn named(params: &RawPathParams) -> Option<String> {
    params.iter().find(|(name, _)| *name == PARAM).map(|(_, value)| uuid::sandbox(value))
}

/// A caller and the sandbox that the path names, by id: a name may pass to another sandbox meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct On<S> {
    pub(crate) caller: KitCaller<S>,
    pub(crate) id: SandboxId,
}

impl<S: Needs + Send + Sync> FromRequestParts<App> for On<S> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let caller = KitCaller::<S>::from_request_parts(parts, app).await?;
        match caller.pass() {
            Pass::Key { sandbox: Some(id), .. } => Ok(Self { caller, id }),
            _ => Err(no_sandbox(parts, app).await),
        }
    }
}

async fn no_sandbox(parts: &mut Parts, app: &App) -> Failure {
    let params = RawPathParams::from_request_parts(parts, app).await.ok();
    let text = params.as_ref().and_then(|params| params.iter().find(|(name, _)| *name == PARAM));
    let text: String = text.map(|(_, value)| value.chars().take(64).collect()).unwrap_or_default();
    Failure::not_found(format!("Sandbox with ID or name {text} not found"))
}

/// Whoever may run commands in a sandbox, and the sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    pub(crate) app: App,
    pub(crate) id: SandboxId,
    key: KeyId,
    pass: Pass,
}

impl FromRequestParts<App> for Inside {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let bearer = parts.headers.contains_key(http::header::AUTHORIZATION);
        if let Some(token) = preview_token(&parts.headers, parts.uri.query()).filter(|_| !bearer) {
            let params = RawPathParams::from_request_parts(parts, app).await.ok();
            let sandbox = params.as_ref().and_then(named).unwrap_or_default();
            let (id, key) = by_token(app.host.engine(), &token, &sandbox)?;
            let pass = pass(&key, &id);
            app.host.admit(&parts.extensions, pass.clone());
            return Ok(Self { app: app.clone(), id, key, pass });
        }
        let on = On::<Exec>::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), id: on.id, key: on.caller.key(), pass: on.caller.pass() })
    }
}

fn pass(key: &KeyId, sandbox: &SandboxId) -> Pass {
    Pass::Key { key: key.clone(), needed: Scope::Exec, sandbox: Some(sandbox.clone()) }
}

impl Inside {
    /// With the right that a signed address gives.
    pub(crate) fn signed(app: &App, id: SandboxId, key: KeyId) -> Self {
        let pass = pass(&key, &id);
        Self { app: app.clone(), id, key, pass }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.app.host.engine()
    }

    pub(crate) fn id(&self) -> &str {
        self.id.as_str()
    }

    /// For the engine's records.
    pub(crate) fn recorded(&self) -> EngineCaller {
        EngineCaller { key: Some(self.key.clone()) }
    }

    /// What outlives the request ends with it.
    pub(crate) fn pass(&self) -> Pass {
        self.pass.clone()
    }

    pub(crate) fn record(&self) -> Result<SandboxRecord> {
        self.engine().sandbox(self.id()).map_err(|error| Failure::of_daemon(&error))
    }
}

/// A preview token, wherever a client puts it.
pub(crate) fn preview_token(headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    let header = headers.get(&TOKEN_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let token = header.or_else(|| token_of_query(query?))?;
    (!token.is_empty() && token.len() <= TOKEN_MAX_BYTES).then_some(token)
}

fn token_of_query(query: &str) -> Option<String> {
    let pairs: Vec<(String, String)> = serde_html_form::from_str(query).ok()?;
    pairs.into_iter().find(|(name, _)| name == TOKEN_PARAMETER).map(|(_, value)| value)
}

/// The token that lets somebody reach the ports of a sandbox, and its toolbox, with the rights of this key.
pub(crate) fn token_of(engine: &Engine, key: &KeyId, sandbox: &SandboxId) -> String {
    engine.sandbox_token(PREVIEW, key, sandbox).reveal().to_owned()
}

/// Whom a preview token stands for, if he may use the sandbox now.
pub(crate) fn by_token(engine: &Engine, token: &str, sandbox: &str) -> Result<(SandboxId, KeyId)> {
    let refused = || refused("the preview token is not valid for this sandbox");
    let id = engine.sandbox_id(sandbox).map_err(|_missing| refused())?;
    let key = engine.verify_sandbox_token(PREVIEW, token, &id).map_err(|_wrong| refused())?;
    may_use(engine, &key, &id)?;
    Ok((id, key))
}

/// Whether a key may run commands in a sandbox, told in one way if it may not know of it.
pub(crate) fn may_use(engine: &Engine, key: &KeyId, sandbox: &SandboxId) -> Result<()> {
    engine.may_exec(key, sandbox.as_str()).map_err(|error| match error.code {
        Code::Unauthorized | Code::SandboxNotFound => {
            refused("the key behind this token is not valid any more")
        }
        _ => Failure::of(&error),
    })
}

/// The right of whoever shows an API key or a preview token, to use the ports of a sandbox. `None` when nothing of
/// ours is shown.
///
/// # Errors
/// 401, 403 for what is ours and not enough.
pub(crate) fn of_port(
    app: &App,
    headers: &HeaderMap,
    token: Option<&str>,
    sandbox: &SandboxId,
) -> Result<Option<Pass>> {
    let engine = app.host.engine();
    if let Ok(key) = app.host.verify(headers) {
        may_use(engine, &key.id, sandbox)?;
        return Ok(Some(pass(&key.id, sandbox)));
    }
    let Some(token) = token else { return Ok(None) };
    let (id, key) = by_token(engine, token, sandbox.as_str())?;
    Ok(Some(pass(&key, &id)))
}

/// The code of a signed address of a port.
fn code_of(engine: &Engine, key: &KeyId, sandbox: &SandboxId, access: &AccessId, port: u16) -> String {
    let token = engine.sandbox_token(&format!("daytona signed {access} {port}"), key, sandbox);
    let code = token.reveal().rsplit('_').next().unwrap_or_default();
    code.chars().take(CODE_CHARS).collect()
}

/// The signed address of an access to a port. It stands for the key that made the access.
pub(crate) fn sign(engine: &Engine, key: &KeyId, access: &Access, port: u16) -> Signed {
    let code = code_of(engine, key, &access.sandbox, &access.id, port);
    Signed { sandbox: access.sandbox.clone(), access: access.id.clone(), code }
}

/// The right that a signed address gives, as long as its access is there and its key may use the sandbox.
///
/// # Errors
/// 401, whatever is wrong with it.
pub(crate) fn by_signed(engine: &Engine, signed: &Signed, port: u16) -> Result<Pass> {
    let refused = || refused("this preview URL has expired, or never was");
    let all = engine.accesses(signed.sandbox.as_str()).map_err(|_missing| refused())?;
    let access = all.into_iter().find(|access| access.id == signed.access).ok_or_else(refused)?;
    let key = access.created_by.clone().filter(|_| access.target.covers_port(port)).ok_or_else(refused)?;
    let code = code_of(engine, &key, &signed.sandbox, &signed.access, port);
    // In a time that does not depend on where they differ.
    let same = code.bytes().zip(signed.code.bytes()).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0;
    if !same || code.len() != signed.code.len() {
        return Err(refused());
    }
    may_use(engine, &key, &signed.sandbox)?;
    Ok(pass(&key, &signed.sandbox))
}

/// The key with which a client signs addresses of files. It stands for its API key, until it is replaced.
pub(crate) fn signing_key(engine: &Engine, key: &KeyId, record: &SandboxRecord) -> String {
    let purpose = format!("{SIGNING} {}", Extras::of(record).signing);
    engine.sandbox_token(&purpose, key, &record.id).reveal().to_owned()
}

/// The API key whose signing key made a signature: the one of those who may use the sandbox for which `signed` holds.
pub(crate) async fn signer(
    engine: &Engine,
    sandbox: &SandboxId,
    signed: impl Fn(&str) -> bool,
) -> Result<KeyId> {
    let refused = || refused("the signature is not valid");
    let record = engine.sandbox(sandbox.as_str()).map_err(|_missing| refused())?;
    let is = |key: &KeyId| signed(&signing_key(engine, key, &record));
    let access = engine.access(sandbox.as_str()).map_err(|_missing| refused())?;
    let known = access.owner.iter().chain(access.grants.keys());
    let key = match known.into_iter().find(|key| is(key)).cloned() {
        Some(key) => key,
        // Keys that see it because all do, or because they administer.
        None => {
            let keys = engine.keys().await.map_err(|error| Failure::of(&error))?;
            keys.into_iter().map(|record| record.id).find(is).ok_or_else(refused)?
        }
    };
    may_use(engine, &key, sandbox)?;
    Ok(key)
}

pub(crate) fn refused(message: &str) -> Failure {
    Failure::of(&Error::new(Code::Unauthorized, message)).from(Source::Proxy)
}
