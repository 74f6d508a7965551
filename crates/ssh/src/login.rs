//! Who logs in, to where.

use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::{Result, spec};
use atoll_engine::{Caller, Engine, VerifiedKey};

/// A client that was let in.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) sandbox: SandboxId,
    /// The user inside, if one was named.
    pub(crate) user: Option<String>,
    pub(crate) caller: Caller,
}

/// Splits a login name: `SANDBOX` or `SANDBOX+USER`.
pub(crate) fn split(name: &str) -> Result<(&str, Option<&str>)> {
    match name.split_once('+') {
        None => Ok((name, None)),
        Some((sandbox, user)) => {
            spec::user("user", user)?;
            Ok((sandbox, Some(user)))
        }
    }
}

/// Lets the holder of a key in. What is wrong is logged, not told: it is not known yet who asks.
pub(crate) fn admit(engine: &Engine, name: &str, key: &VerifiedKey) -> Option<Login> {
    if key.scope < Scope::Exec {
        tracing::info!(key = %key.id, "an SSH login was refused: the API key lacks the scope 'exec'");
        return None;
    }
    let (sandbox, user) = split(name).ok()?;
    match engine.sandbox_id(sandbox) {
        Ok(sandbox) => Some(Login {
            sandbox,
            user: user.map(str::to_owned),
            caller: Caller { key: Some(key.id.clone()) },
        }),
        Err(error) => {
            tracing::info!(key = %key.id, %error, "an SSH login was refused");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_names() {
        assert_eq!(split("web").unwrap(), ("web", None));
        assert_eq!(split("web+postgres").unwrap(), ("web", Some("postgres")));
        assert!(split("web+").is_err());
        assert!(split("web+a b").is_err());
    }
}
