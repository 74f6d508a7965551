//! The callers of envd. A client shows the access token that a creation or a connect gave out. The token stands for the
//! API key that got it, and allows what that key may do with the sandbox now.

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine, Grant, GuestLease, Target, VerifiedKey};
use axum::extract::FromRequestParts;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::sandbox_of;
use crate::App;
use crate::connect::{Fault, Kind};
use crate::error::Failure;

/// The purpose of the tokens.
const PURPOSE: &str = "e2b envd";
/// The tokens begin with it.
const PREFIX: &str = "ea_";
/// Header that carries the token.
const TOKEN: &str = "x-access-token";
const REFUSED: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// The sandbox that a request of the data plane is for.
#[derive(Debug, Clone)]
pub(crate) struct Sandboxed(pub(crate) SandboxId);

/// The access token of a key for a sandbox.
pub(crate) fn token(engine: &Engine, key: &KeyId, sandbox: &SandboxId) -> String {
    format!("{PREFIX}{}", engine.sandbox_token(PURPOSE, key, sandbox).reveal())
}

/// The purpose of the tokens for ports that are not public.
const TRAFFIC: &str = "e2b traffic";

/// The token of a key for the ports of a sandbox.
pub(crate) fn traffic_token(engine: &Engine, key: &KeyId, sandbox: &SandboxId) -> String {
    engine.sandbox_token(TRAFFIC, key, sandbox).reveal().to_owned()
}

/// The right by which a client with this token reaches ports.
pub(crate) async fn traffic_grant(engine: &Engine, shown: &str, sandbox: &SandboxId) -> Option<Grant> {
    let key = engine.verify_sandbox_token(TRAFFIC, shown, sandbox).ok()?;
    let caller = EngineCaller::of(&key);
    engine.authorize(&caller, Needs::EXEC, Target::Sandbox(sandbox.as_str())).await.ok()
}

/// A caller that may use the sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The caller, for the engine.
    pub(crate) engine: EngineCaller,
    /// The right by which it is here.
    pub(crate) grant: Grant,
}

impl Caller {
    /// The caller with this token.
    ///
    /// # Errors
    /// [`Code::Unauthorized`]; as [`Engine::authorize`].
    pub(crate) async fn of(
        engine: &Engine,
        headers: &HeaderMap,
        sandbox: &SandboxId,
    ) -> Result<Self, Failure> {
        let refused = || Failure::new(StatusCode::UNAUTHORIZED, REFUSED);
        let shown = headers.get(TOKEN).and_then(|value| value.to_str().ok()).ok_or_else(refused)?;
        let shown = shown.strip_prefix(PREFIX).ok_or_else(refused)?;
        let key = engine.verify_sandbox_token(PURPOSE, shown, sandbox).map_err(|_wrong| refused())?;
        Self::with_key(engine, &key, sandbox).await
    }

    pub(crate) async fn with_key(
        engine: &Engine,
        key: &VerifiedKey,
        sandbox: &SandboxId,
    ) -> Result<Self, Failure> {
        let caller = EngineCaller::of(key);
        match engine.authorize(&caller, Needs::EXEC, Target::Sandbox(sandbox.as_str())).await {
            Ok(grant) => Ok(Self { engine: caller, grant }),
            // The key sees the sandbox no longer.
            Err(error) if matches!(error.code, Code::Unauthorized | Code::SandboxNotFound) => {
                Err(Failure::new(StatusCode::UNAUTHORIZED, REFUSED))
            }
            Err(error) => Err(Failure::of(&error)),
        }
    }
}

/// A caller of envd, its sandbox, and the user inside that it wants to act as.
#[derive(Debug, Clone)]
pub(crate) struct Envd {
    pub(crate) app: App,
    pub(crate) sandbox: SandboxId,
    pub(crate) caller: Caller,
    /// The user inside; the sandbox's own when the caller names none.
    pub(crate) user: Option<String>,
    /// It came by an address that a key signed.
    pub(crate) is_signed: bool,
}

impl FromRequestParts<App> for Envd {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let sandbox = sandbox_of(parts).ok_or_else(|| Failure::not_found("no sandbox is named"))?;
        let caller = Caller::of(app.host.engine(), &parts.headers, &sandbox).await?;
        app.host.fill(&parts.extensions, caller.grant.clone())?;
        Ok(Self { app: app.clone(), sandbox, caller, user: user(&parts.headers), is_signed: false })
    }
}

/// `Authorization: Basic` with a user and no password.
fn user(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let decoded = String::from_utf8(STANDARD.decode(text.trim()).ok()?).ok()?;
    let user = decoded.split_once(':').map_or(decoded.as_str(), |(user, _)| user);
    (!user.is_empty()).then(|| user.to_owned())
}

impl Envd {
    pub(crate) fn engine(&self) -> &Engine {
        self.app.host.engine()
    }

    pub(crate) const fn id(&self) -> &SandboxId {
        &self.sandbox
    }

    /// The caller, for the engine.
    pub(crate) const fn recorded(&self) -> &EngineCaller {
        &self.caller.engine
    }

    /// Checks that the caller still has the right by which it was let in.
    pub(crate) fn recheck(&self) -> Result<(), Error> {
        self.engine().recheck(&self.caller.grant, Needs::EXEC)
    }

    pub(crate) async fn guest(&self) -> Result<GuestLease, Error> {
        let guest = self.engine().guest(self.id()).await?;
        Ok(if self.is_signed { guest.of_anybody() } else { guest })
    }

    /// The user that owns new files when the request names no other.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub(crate) fn owner(&self) -> Result<String, Error> {
        match &self.user {
            Some(user) => Ok(user.clone()),
            None => Ok(self.engine().sandbox(self.id())?.spec.user),
        }
    }

    /// The engine's error, with the text that the clients know for a user that the sandbox does not have.
    pub(crate) fn fault(&self, error: &Error) -> Fault {
        if error.code == Code::UserNotFound {
            return unknown_user(self.user.as_deref().unwrap_or("user"));
        }
        Fault::of(error)
    }
}

pub(crate) fn unknown_user(user: &str) -> Fault {
    let user: String = user.chars().take(64).collect();
    Fault::new(Kind::Unauthenticated, format!("invalid username: '{user}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn users_in_the_header() {
        let of = |text: &'static str| {
            user(&HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(text))]))
        };
        assert_eq!(of("Basic cm9vdDo=").as_deref(), Some("root"));
        assert_eq!(of("Basic Og=="), None);
        assert_eq!(of("Bearer x"), None);
        assert_eq!(of("Basic !"), None);
    }
}
