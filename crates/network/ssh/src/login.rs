//! Decides which client may log in, and to which sandbox.

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::secret::Secret;
use atoll_core::sharing::Needs;
use atoll_core::spec::SandboxDraft;
use atoll_core::{Code, Result, spec};
use atoll_engine::{Asked, Caller, Engine, Grant, Target, VerifiedAccess, VerifiedKey};
use russh::keys::HashAlg;
use serde::{Deserialize, Serialize};

use crate::host_key;

/// Longest claim that goes to another node, bytes.
const CLAIM_MAX_BYTES: usize = 4 << 10;

/// The login name that asks for a sandbox instead of naming one.
const NEW: &str = "new";
/// How long a sandbox that a login made without a name is kept after its last use.
const UNNAMED_IDLE_MS: u64 = 10 * 60 * 1000;

/// The credentials of a login: a name, and the password or key that the client has shown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    name: String,
    /// A password that it sent.
    password: Option<Secret>,
    /// The fingerprint of a key that it has proven to have.
    key: Option<String>,
}

impl Claim {
    pub(crate) fn by_name(name: &str) -> Self {
        Self { name: name.to_owned(), password: None, key: None }
    }

    pub(crate) fn by_password(name: &str, password: &str) -> Self {
        Self { password: Some(Secret::new(password)), ..Self::by_name(name) }
    }

    pub(crate) fn by_key(name: &str, fingerprint: String) -> Self {
        Self { key: Some(fingerprint), ..Self::by_name(name) }
    }

    /// Text for another node; `None` when it is longer than any claim that could be let in.
    pub(crate) fn to_text(&self) -> Option<Secret> {
        #[derive(Serialize)]
        struct Text<'a> {
            name: &'a str,
            password: Option<&'a str>,
            key: Option<&'a str>,
        }
        let password = self.password.as_ref().map(Secret::reveal);
        let text = Text { name: &self.name, password, key: self.key.as_deref() };
        let text = serde_json::to_string(&text).ok()?;
        (text.len() <= CLAIM_MAX_BYTES).then(|| Secret::new(text))
    }

    /// Reads the text that another node sent.
    pub(crate) fn of_text(text: &Secret) -> Option<Self> {
        serde_json::from_str(text.reveal()).ok()
    }

    /// The caller by whose key it would be let in, wherever the sandbox is. `None` for a token, and for what is not valid.
    pub(crate) async fn caller(&self, engine: &Engine) -> Option<Caller> {
        match (&self.key, &self.password) {
            (Some(fingerprint), _) => {
                let (key, _) = engine.verify_ssh_key(fingerprint).await.ok()?;
                Some(caller(&key, Some(fingerprint.as_str())))
            }
            (None, Some(password)) => Some(caller(&engine.verify_key(password.reveal()).ok()?, None)),
            (None, None) => None,
        }
    }

    /// The login that it gives here, if any. Objects that are not here are noted by the engine.
    async fn admit(&self, engine: &Engine) -> Option<Login> {
        match (&self.key, &self.password) {
            (Some(fingerprint), _) => match engine.verify_ssh_key(fingerprint).await {
                Ok((key, _)) => admit(engine, &self.name, &key, Some(fingerprint.clone())).await,
                Err(_) => admit_made_key(engine, &self.name, fingerprint).await,
            },
            (None, Some(password)) => match engine.verify_key(password.reveal()) {
                Ok(key) => admit(engine, &self.name, &key, None).await,
                // For clients that must send a password.
                Err(_) => admit_token(engine, &self.name).await,
            },
            // The first that clients try: a token is the name, and needs nothing else.
            (None, None) => admit_token(engine, &self.name).await,
        }
    }

    /// The same; tried once more when an object that it names has just come here.
    pub(crate) async fn admit_here(&self, engine: &Engine, asked: &Arc<Asked>) -> Option<Login> {
        let login = Arc::clone(asked).scope(self.admit(engine)).await;
        if login.is_some() || !engine.has_arrived(asked).await {
            return login;
        }
        Arc::clone(asked).scope(self.admit(engine)).await
    }

    /// Makes the sandbox that it asks for, once it is clear that no node has it, and lets the client in.
    pub(crate) async fn make_here(&self, engine: &Engine) -> Option<Login> {
        let wanted = Wanted::of(&self.name).ok().filter(|wanted| wanted.may_make)?;
        let (key, ssh_key) = match (&self.key, &self.password) {
            (Some(fingerprint), _) => {
                (engine.verify_ssh_key(fingerprint).await.ok()?.0, Some(fingerprint.clone()))
            }
            (None, Some(password)) => (engine.verify_key(password.reveal()).ok()?, None),
            (None, None) => return None,
        };
        match make(engine, &wanted, &caller(&key, ssh_key.as_deref())).await {
            Ok(id) => {
                let name = wanted.user.map_or_else(|| id.to_string(), |user| format!("{id}+{user}"));
                admit(engine, &name, &key, ssh_key).await
            }
            // Another login with the same name was faster.
            Err(error) if error.code == Code::NameTaken => admit(engine, &self.name, &key, ssh_key).await,
            Err(error) => {
                tracing::info!(key = %key.id, %error, "an SSH login could not make a sandbox");
                None
            }
        }
    }
}

/// A client that was let in.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) sandbox: SandboxId,
    /// The user inside, if one was named.
    pub(crate) user: Option<String>,
    /// The caller, by the API key that the login stands for.
    pub(crate) caller: Caller,
    /// The right by which it is here.
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

/// The sandbox and user that a login name asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    /// A sandbox by its id or name; `None` for a new one that has no name yet.
    sandbox: Option<&'a str>,
    /// The user inside.
    user: Option<&'a str>,
    /// Whether it is made when there is none.
    may_make: bool,
}

impl<'a> Wanted<'a> {
    /// Reads `SANDBOX`, `SANDBOX+USER`, `new`, `new+NAME` or `new+NAME+USER`.
    fn of(name: &'a str) -> Result<Self> {
        let rest = match name.strip_prefix(NEW) {
            Some("") => return Ok(Self { sandbox: None, user: None, may_make: true }),
            Some(rest) => rest.strip_prefix('+'),
            None => None,
        };
        let (sandbox, user) = split(rest.unwrap_or(name))?;
        Ok(Self { sandbox: Some(sandbox), user, may_make: rest.is_some() })
    }
}

async fn make(engine: &Engine, wanted: &Wanted<'_>, caller: &Caller) -> Result<SandboxId> {
    engine.authorize(caller, Needs::MANAGE, Target::Installation).await?;
    let draft = SandboxDraft {
        name: wanted.sandbox.map(str::to_owned),
        idle_timeout_ms: wanted.sandbox.is_none().then_some(UNNAMED_IDLE_MS),
        ..SandboxDraft::default()
    };
    // A login is for this node: it is not passed on to another that had more room.
    Ok(Arc::new(Asked::part()).scope(engine.create_sandbox(draft, caller)).await?.id)
}

fn caller(key: &VerifiedKey, ssh_key: Option<&str>) -> Caller {
    let caller = Caller::of(key);
    match ssh_key {
        Some(fingerprint) => caller.by_ssh_key(fingerprint.to_owned()),
        None => caller,
    }
}

/// Lets in a client whose login name is a token, `TOKEN` or `TOKEN+USER`, as the API key that the token stands for.
async fn admit_token(engine: &Engine, name: &str) -> Option<Login> {
    let (token, user) = split(name).ok()?;
    let (key, access) = engine.verify_ssh_token(token).ok()?;
    admit_access(engine, user, key, access).await
}

/// Whether a public key may be the one that was made for the access that a login names. For an access of another node,
/// that node is asked only once the client has proven to have the key.
pub(crate) fn may_be_made_for(engine: &Engine, name: &str, fingerprint: &str) -> bool {
    let names_other =
        || split(name).is_ok_and(|(login, _)| engine.is_node() && engine.names_other_ssh_key(login));
    made_for(engine, name, fingerprint).is_some() || names_other()
}

fn made_for(engine: &Engine, name: &str, fingerprint: &str) -> Option<(VerifiedKey, VerifiedAccess)> {
    let (login, _) = split(name).ok()?;
    let (seed, key, access) = engine.ssh_key_for(login).ok()?;
    let made = host_key::of_seed(seed.reveal()).public_key().fingerprint(HashAlg::Sha256).to_string();
    (made == fingerprint).then_some((key, access))
}

/// Lets in a client that has proven to have the key that was made for the access that its login names.
async fn admit_made_key(engine: &Engine, name: &str, fingerprint: &str) -> Option<Login> {
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

/// Lets the holder of a key in, if it has the role for it on that sandbox. A lease does not keep it out: it may end
/// while the connection is open. Errors are logged, not told to the client, which is not known yet.
async fn admit(engine: &Engine, name: &str, key: &VerifiedKey, ssh_key: Option<String>) -> Option<Login> {
    let Wanted { sandbox: Some(sandbox), user, .. } = Wanted::of(name).ok()? else { return None };
    let caller = caller(key, ssh_key.as_deref());
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

    #[test]
    fn login_names_that_make() {
        let of = |name| Wanted::of(name).unwrap();
        assert_eq!(of("new"), Wanted { sandbox: None, user: None, may_make: true });
        assert_eq!(of("new+web"), Wanted { sandbox: Some("web"), user: None, may_make: true });
        assert_eq!(of("new+web+root"), Wanted { sandbox: Some("web"), user: Some("root"), may_make: true });
        assert_eq!(of("news+root"), Wanted { sandbox: Some("news"), user: Some("root"), may_make: false });
        assert_eq!(of("web+new"), Wanted { sandbox: Some("web"), user: Some("new"), may_make: false });
        assert!(Wanted::of("new+web+").is_err());
    }

    #[test]
    fn claims_travel_whole_and_do_not_print() {
        let claim = Claim::by_password("web+a\u{7f}\n", "hunter2");
        assert!(!format!("{claim:?}").contains("hunter2"));
        let back = Claim::of_text(&claim.to_text().unwrap()).unwrap();
        assert_eq!((back.name.as_str(), back.password, back.key), ("web+a\u{7f}\n", claim.password, None));
        let back = Claim::of_text(&Claim::by_key("web", "SHA256:x".to_owned()).to_text().unwrap()).unwrap();
        assert_eq!((back.password, back.key.as_deref()), (None, Some("SHA256:x")));
        assert!(Claim::by_name(&"x".repeat(CLAIM_MAX_BYTES)).to_text().is_none());
        assert!(Claim::of_text(&Secret::new("{\"name\":\"a\",\"more\":1}")).is_none());
    }
}
