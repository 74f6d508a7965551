//! Who logs in, to where.

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::sharing::Requester;
use atoll_core::{Result, spec};
use atoll_engine::{Caller, Engine, Pass, VerifiedKey};

/// A client that was let in.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) sandbox: SandboxId,
    /// The user inside, if one was named.
    pub(crate) user: Option<String>,
    /// The API key that the login stands for.
    pub(crate) key: KeyId,
    /// The SSH key by which it came, unless it was by the API key itself.
    ssh_key: Option<String>,
}

impl Login {
    /// Whether it may run commands now. Asked for everything that begins: a role may be taken away, and a lease
    /// be taken, while the connection is open.
    pub(crate) fn check(&self, engine: &Engine) -> Result<()> {
        engine.may_exec(&self.key, self.sandbox.as_str())
    }

    /// By what right it is here.
    pub(crate) fn pass(&self) -> Pass {
        let sandbox = self.sandbox.clone();
        match self.ssh_key.clone() {
            Some(fingerprint) => Pass::SshKey { fingerprint, sandbox },
            None => Pass::Key { key: self.key.clone(), needed: Scope::Exec, sandbox: Some(sandbox) },
        }
    }

    /// For the engine's records.
    pub(crate) fn caller(&self) -> Caller {
        Caller { key: Some(self.key.clone()) }
    }
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

/// Lets the holder of a key in, if it has the role for it on that sandbox. A lease does not keep it out: it may
/// end while the connection is open. What is wrong is logged, not told: it is not known yet who asks.
pub(crate) fn admit(
    engine: &Engine,
    name: &str,
    key: &VerifiedKey,
    ssh_key: Option<String>,
) -> Option<Login> {
    let (sandbox, user) = split(name).ok()?;
    let who = Requester { key: &key.id, scope: key.scope, holder: None };
    let standing = engine.standing(&who, sandbox).and_then(|standing| standing.allow(Scope::Exec, true));
    match standing.and_then(|_| engine.sandbox_id(sandbox)) {
        Ok(sandbox) => Some(Login { sandbox, user: user.map(str::to_owned), key: key.id.clone(), ssh_key }),
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
