//! Who logs in, to where.

use atoll_core::id::SandboxId;
use atoll_core::sharing::Needs;
use atoll_core::{Result, spec};
use atoll_engine::{Caller, Engine, Grant, Target, VerifiedAccess, VerifiedKey};
use russh::keys::HashAlg;

use crate::host_key;

/// A client that was let in.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) sandbox: SandboxId,
    /// The user inside, if one was named.
    pub(crate) user: Option<String>,
    /// Who it is, by the API key that the login stands for.
    pub(crate) caller: Caller,
    /// By what right it is here.
    pub(crate) grant: Grant,
    /// Of a login by token: the right ends with this at the latest.
    pub(crate) token: Option<Grant>,
}

impl Login {
    /// Whether it may run commands now. Asked for everything that begins: a role may be taken away, and a lease
    /// be taken, while the connection is open.
    pub(crate) fn check(&self, engine: &Engine) -> Result<()> {
        engine.recheck(&self.grant, Needs::EXEC)
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

/// Lets in who logs in under a token as its name, `TOKEN` or `TOKEN+USER`, as the API key that it stands for.
pub(crate) async fn admit_token(engine: &Engine, name: &str) -> Option<Login> {
    let (token, user) = split(name).ok()?;
    let (key, access) = engine.verify_ssh_token(token).ok()?;
    admit_access(engine, user, key, access).await
}

/// Whether a public key is the one that was made for the access that a login names.
pub(crate) fn is_made_for(engine: &Engine, name: &str, fingerprint: &str) -> bool {
    made_for(engine, name, fingerprint).is_some()
}

fn made_for(engine: &Engine, name: &str, fingerprint: &str) -> Option<(VerifiedKey, VerifiedAccess)> {
    let (login, _) = split(name).ok()?;
    let (seed, key, access) = engine.ssh_key_for(login).ok()?;
    let made = host_key::of_seed(seed.reveal()).public_key().fingerprint(HashAlg::Sha256).to_string();
    (made == fingerprint).then_some((key, access))
}

/// Lets in who has proven to have the key that was made for the access that it names.
pub(crate) async fn admit_made_key(engine: &Engine, name: &str, fingerprint: &str) -> Option<Login> {
    let (key, access) = made_for(engine, name, fingerprint)?;
    admit_access(engine, split(name).ok()?.1, key, access).await
}

async fn admit_access(
    engine: &Engine,
    user: Option<&str>,
    key: VerifiedKey,
    access: VerifiedAccess,
) -> Option<Login> {
    let sandbox = access.sandbox().as_str();
    let name = user.map_or_else(|| sandbox.to_owned(), |user| format!("{sandbox}+{user}"));
    let login = admit(engine, &name, &key, None).await?;
    let grant = login.grant.ending_with(access.revoked());
    Some(Login { grant, token: Some(Grant::of_link(access)), ..login })
}

/// Lets the holder of a key in, if it has the role for it on that sandbox. A lease does not keep it out: it may
/// end while the connection is open. What is wrong is logged, not told: it is not known yet who asks.
pub(crate) async fn admit(
    engine: &Engine,
    name: &str,
    key: &VerifiedKey,
    ssh_key: Option<String>,
) -> Option<Login> {
    let (sandbox, user) = split(name).ok()?;
    let caller = Caller::of(key);
    let caller = match ssh_key {
        Some(fingerprint) => caller.by_ssh_key(fingerprint),
        None => caller,
    };
    match engine.authorize(&caller, Needs::EXEC.despite_lease(), Target::Sandbox(sandbox)).await {
        Ok(grant) => {
            let sandbox = grant.sandbox()?.clone();
            Some(Login { sandbox, user: user.map(str::to_owned), caller, grant, token: None })
        }
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
