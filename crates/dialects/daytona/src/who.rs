//! The callers: every look-up of keys, tokens, and rights on a sandbox is here.
//!
//! | call | right |
//! |---|---|
//! | control plane | the API key, as `Authorization: Bearer` |
//! | toolbox | the same, or a preview token, which stands for the key that asked for it |
//! | ports | the same, in Daytona's places ([`crate::preview`]) |
//! | files by a signed address | the signing key of the sandbox, which stands for the key that asked for it |

use atoll_core::id::{AccessId, KeyId, SandboxId};
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_dialect_kit::request::{Caller as KitCaller, Requires};
use atoll_dialect_kit::uuid;
use atoll_engine::{Access, Caller as EngineCaller, Engine, Grant, Target, VerifiedKey};
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
/// Header that carries a preview token.
pub(crate) const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-daytona-preview-token");
/// The same as a query parameter, for clients that cannot send headers.
pub(crate) const TOKEN_PARAMETER: &str = "DAYTONA_SANDBOX_AUTH_KEY";
/// The purpose of preview tokens.
const PREVIEW: &str = "daytona preview";
/// The purpose of signing keys.
const SIGNING: &str = "daytona signing";
/// Longest text that can be a token, bytes.
const TOKEN_MAX_BYTES: usize = 256;

/// The id or name under which the engine knows the sandbox that a path names.
pub(crate) fn named(params: &RawPathParams) -> Option<String> {
    params.iter().find(|(name, _)| *name == PARAM).map(|(_, value)| uuid::sandbox(value))
}

/// A caller and the sandbox that the path names, by id: a name may pass to another sandbox meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct On<S> {
    pub(crate) caller: KitCaller<S>,
    pub(crate) id: SandboxId,
}

impl<S: Requires> FromRequestParts<App> for On<S> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let caller = KitCaller::<S>::from_request_parts(parts, app).await?;
        let id = caller.sandbox()?.clone();
        Ok(Self { caller, id })
    }
}

/// The answer about a sandbox that is not there, or that the key may not know of.
pub(crate) fn missing(named: &str) -> Failure {
    let shown = named.parse::<SandboxId>().map_or_else(|_name| named.to_owned(), |id| uuid::of_sandbox(&id));
    Failure::not_found(format!("Sandbox with ID or name {} not found", atoll_core::error::shorten(&shown)))
}

/// A caller that may run commands in a sandbox, and the sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    pub(crate) app: App,
    pub(crate) id: SandboxId,
    caller: EngineCaller,
    grant: Grant,
    /// It came by an address that a key signed.
    pub(crate) is_signed: bool,
}

impl FromRequestParts<App> for Inside {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let bearer = parts.headers.contains_key(http::header::AUTHORIZATION);
        if let Some(token) = preview_token(&parts.headers, parts.uri.query()).filter(|_| !bearer) {
            let params = RawPathParams::from_request_parts(parts, app).await.ok();
            let id = params.as_ref().and_then(named).and_then(|named| named.parse().ok());
            let id: SandboxId = id.ok_or_else(|| refused("a preview token is for a sandbox by its id"))?;
            let (caller, grant) = by_token(app.host.engine(), &token, &id).await?;
            app.host.fill(&parts.extensions, grant.clone())?;
            return Ok(Self { app: app.clone(), id, caller, grant, is_signed: false });
        }
        let on = On::<Exec>::from_request_parts(parts, app).await?;
        let (caller, grant) = (on.caller.engine().clone(), on.caller.grant().clone());
        Ok(Self { app: app.clone(), id: on.id, caller, grant, is_signed: false })
    }
}

impl Inside {
    /// With the right that a signed address gives.
    pub(crate) fn signed(app: &App, id: SandboxId, caller: EngineCaller, grant: Grant) -> Self {
        Self { app: app.clone(), id, caller, grant, is_signed: true }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.app.host.engine()
    }

    pub(crate) const fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The caller, for the engine.
    pub(crate) const fn recorded(&self) -> &EngineCaller {
        &self.caller
    }

    /// The caller's right: work that outlives the request ends when the right ends.
    pub(crate) const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Checks that the caller still has the right by which it was let in. A WebSocket checks this for each thing that
    /// it begins after the upgrade.
    pub(crate) fn recheck(&self) -> Result<(), Error> {
        self.engine().recheck(&self.grant, Needs::EXEC)
    }

    pub(crate) fn record(&self) -> Result<SandboxRecord> {
        self.engine().sandbox(self.id()).map_err(|error| Failure::of_daemon(&error))
    }
}

/// A preview token, from the header or the query.
pub(crate) fn preview_token(headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    let header = headers.get(&TOKEN_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let token = header.or_else(|| token_of_query(query?))?;
    (!token.is_empty() && token.len() <= TOKEN_MAX_BYTES).then_some(token)
}

fn token_of_query(query: &str) -> Option<String> {
    let pairs: Vec<(String, String)> = serde_html_form::from_str(query).ok()?;
    pairs.into_iter().find(|(name, _)| name == TOKEN_PARAMETER).map(|(_, value)| value)
}

/// The token with which a client reaches the ports of a sandbox, and its toolbox, with the rights of this key.
pub(crate) fn token_of(engine: &Engine, key: &KeyId, sandbox: &SandboxId) -> String {
    engine.sandbox_token(PREVIEW, key, sandbox).reveal().to_owned()
}

/// The caller that a preview token stands for, if it may use the sandbox now.
async fn by_token(engine: &Engine, token: &str, sandbox: &SandboxId) -> Result<(EngineCaller, Grant)> {
    let key = engine.verify_sandbox_token(PREVIEW, token, sandbox);
    let key = key.map_err(|_wrong| refused("the preview token is not valid for this sandbox"))?;
    may_use(engine, &key, sandbox).await
}

/// The right of a key to run commands in a sandbox, refused in one way if it may not know of it.
async fn may_use(engine: &Engine, key: &VerifiedKey, sandbox: &SandboxId) -> Result<(EngineCaller, Grant)> {
    let caller = EngineCaller::of(key);
    match engine.authorize(&caller, Needs::EXEC, Target::Sandbox(sandbox.as_str())).await {
        Ok(grant) => Ok((caller, grant)),
        Err(error) if matches!(error.code, Code::Unauthorized | Code::SandboxNotFound) => {
            Err(refused("the preview token is not valid for this sandbox"))
        }
        Err(error) => Err(Failure::of(&error)),
    }
}

/// The right of a client to use the ports of a sandbox, by an API key or a preview token. `None` when it shows neither.
///
/// # Errors
/// 401, 403 when the key or the token does not suffice.
pub(crate) async fn of_port(
    app: &App,
    headers: &HeaderMap,
    token: Option<&str>,
    sandbox: &SandboxId,
) -> Result<Option<Grant>> {
    let engine = app.host.engine();
    if let Ok(key) = app.host.verify(headers) {
        return Ok(Some(may_use(engine, &key, sandbox).await?.1));
    }
    let Some(token) = token else { return Ok(None) };
    Ok(Some(by_token(engine, token, sandbox).await?.1))
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
/// 401 for a wrong or expired address; as [`may_use`].
pub(crate) async fn by_signed(engine: &Engine, signed: &Signed, port: u16) -> Result<Grant> {
    let refused = || refused("this preview URL has expired, or never was");
    let all = engine.accesses(&signed.sandbox).map_err(|_missing| refused())?;
    let access = all.into_iter().find(|access| access.id == signed.access).ok_or_else(refused)?;
    let key = access.created_by.clone().filter(|_| access.target.covers_port(port)).ok_or_else(refused)?;
    let code = code_of(engine, &key, &signed.sandbox, &signed.access, port);
    // In a time that does not depend on where the two differ.
    let same = code.bytes().zip(signed.code.bytes()).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0;
    if !same || code.len() != signed.code.len() {
        return Err(refused());
    }
    // What is open goes when the address does, however long its key stays.
    let access = engine.live_access(&signed.sandbox, &signed.access).map_err(|_over| refused())?;
    let key = engine.key_behind(&key).map_err(|_gone| refused())?;
    Ok(may_use(engine, &key, &signed.sandbox).await?.1.within(access))
}

/// The key with which a client signs addresses of files. It stands for its API key, until it is replaced.
pub(crate) fn signing_key(engine: &Engine, key: &KeyId, record: &SandboxRecord) -> String {
    engine.sandbox_token(&signing_purpose(record), key, &record.id).reveal().to_owned()
}

/// The purpose of the signing keys that are good now.
fn signing_purpose(record: &SandboxRecord) -> String {
    format!("{SIGNING} {}", Extras::of(record).signing)
}

/// The API key whose signing key made a signature, and its right. The server tries the keys that may know of the sandbox,
/// until `signed` is true for one.
pub(crate) async fn signer(
    engine: &Engine,
    sandbox: &SandboxId,
    signed: impl Fn(&str) -> bool,
) -> Result<(EngineCaller, Grant)> {
    let refused = || refused("the signature is not valid");
    let record = engine.sandbox(sandbox).map_err(|_missing| refused())?;
    let purpose = signing_purpose(&record);
    let is = |key: &KeyId| signed(engine.sandbox_token(&purpose, key, sandbox).reveal());
    let key = engine.signer(sandbox, is).map_err(|_missing| refused())?.ok_or_else(refused)?;
    let key = engine.key_behind(&key).map_err(|_gone| refused())?;
    may_use(engine, &key, sandbox).await
}

pub(crate) fn refused(message: &str) -> Failure {
    Failure::of(&Error::new(Code::Unauthorized, message)).from(Source::Proxy)
}
