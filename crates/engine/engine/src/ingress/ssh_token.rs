//! SSH logins without a key: a text that is the name to log in with, for one sandbox and a time.
//!
//! Each is an access to the port of SSH, which gives it its end and can be taken back, and a code over the two ids that
//! only this installation can make. So the token of another access to that port logs nobody in. It stands for the API
//! key that asked for it, and allows what that may do at the moment.
//!
//! Or with a key that the installation makes for one sandbox and a time: the login names such an access, and the private key
//! follows from it, so that nothing more is stored.

use atoll_core::access::{AccessDraft, Target};
use atoll_core::id::{AccessId, SandboxId};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_store::Whereabouts;
use zeroize::Zeroizing;

use crate::authorize::Caller;
use crate::boxed;
use crate::cluster::missing;
use crate::engine::Engine;
use crate::keys::VerifiedKey;

use super::{Access, VerifiedAccess};

/// The port that it is an access to.
const SSH_PORT: u16 = 22;
/// What tokens begin with: with it they are longer than any name of a sandbox.
const MARK: &str = "t";
/// What names of accesses with a key begin with.
const KEY_MARK: &str = "k";
/// Characters of an id behind its prefix.
const ID_CHARS: usize = 20;
/// Characters of the code: hexadecimal digits, 128 bits.
const CODE_CHARS: usize = 32;

/// A new token.
#[derive(Debug)]
pub struct NewSshToken {
    /// What gives it its end.
    pub access: Access,
    /// The name to log in with.
    pub token: Secret,
}

/// A new key for one sandbox.
#[derive(Debug)]
pub struct NewSshKey {
    /// What gives it its end.
    pub access: Access,
    /// The name to log in with.
    pub login: String,
    /// What the private key is made of: an Ed25519 key's seed.
    pub seed: SshSeed,
}

/// 32 secret bytes, which do not show themselves and are overwritten when they go.
pub struct SshSeed(Zeroizing<[u8; 32]>);

impl SshSeed {
    /// The bytes themselves. Each call is a place to review.
    #[must_use]
    pub fn reveal(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for SshSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("****")
    }
}

/// A token, in its parts.
struct Parts<'a> {
    sandbox: SandboxId,
    access: AccessId,
    code: &'a str,
}

fn parse(text: &str) -> Option<Parts<'_>> {
    parse_with(text.strip_prefix(MARK)?, CODE_CHARS)
}

/// Two ids, and a code of so many characters.
fn parse_with(rest: &str, code_chars: usize) -> Option<Parts<'_>> {
    if rest.len() != 2 * ID_CHARS + code_chars || !rest.is_ascii() {
        return None;
    }
    let (sandbox, rest) = rest.split_at(ID_CHARS);
    let (access, code) = rest.split_at(ID_CHARS);
    let sandbox = format!("{}{sandbox}", SandboxId::PREFIX).parse().ok()?;
    let access = format!("{}{access}", AccessId::PREFIX).parse().ok()?;
    Some(Parts { sandbox, access, code })
}

impl Engine {
    /// Makes a token for SSH logins to a sandbox, which ends so long from now.
    ///
    /// # Errors
    /// As [`Engine::create_access`]; [`Code::Forbidden`] for the server itself, for which nothing can stand.
    #[boxed]
    pub async fn create_ssh_token(
        &self,
        sandbox: &SandboxId,
        name: &str,
        ttl_ms: u64,
        caller: &Caller,
    ) -> Result<NewSshToken> {
        let access = self.ssh_access(sandbox, name, ttl_ms, caller).await?;
        let token = self.ssh_token_of(&access).ok_or_else(refused)?;
        Ok(NewSshToken { access, token })
    }

    /// Makes a key for SSH logins to a sandbox, which ends so long from now.
    ///
    /// # Errors
    /// As [`Engine::create_ssh_token`].
    #[boxed]
    pub async fn create_ssh_key_for(
        &self,
        sandbox: &SandboxId,
        name: &str,
        ttl_ms: u64,
        caller: &Caller,
    ) -> Result<NewSshKey> {
        let access = self.ssh_access(sandbox, name, ttl_ms, caller).await?;
        let seed = self.ssh_seed_of(&access).ok_or_else(refused)?;
        let login = ids_of(&access).map(|ids| format!("{KEY_MARK}{ids}")).ok_or_else(refused)?;
        Ok(NewSshKey { access, login, seed })
    }

    async fn ssh_access(
        &self,
        sandbox: &SandboxId,
        name: &str,
        ttl_ms: u64,
        caller: &Caller,
    ) -> Result<Access> {
        if caller.key().is_none() {
            return Err(Error::new(Code::Forbidden, "an SSH login must stand for an API key"));
        }
        let draft = AccessDraft {
            target: Target::Port(SSH_PORT),
            public: false,
            name: Some(name.to_owned()),
            ttl_ms: Some(ttl_ms),
        };
        Ok(self.create_access(sandbox, draft, caller).await?.record)
    }

    /// What the private key of an access is made of.
    fn ssh_seed_of(&self, access: &Access) -> Option<SshSeed> {
        let key = access.created_by.as_ref()?;
        let made = self.sandbox_token(&format!("ssh key {}", access.id), key, &access.sandbox);
        let bytes = blake3::derive_key("atoll ssh key of an access", made.reveal().as_bytes());
        Some(SshSeed(Zeroizing::new(bytes)))
    }

    /// The token of an access.
    fn ssh_token_of(&self, access: &Access) -> Option<Secret> {
        let key = access.created_by.as_ref()?;
        let made = self.sandbox_token(&format!("ssh login {}", access.id), key, &access.sandbox);
        let code: String = made.reveal().rsplit('_').next()?.chars().take(CODE_CHARS).collect();
        Some(Secret::new(format!("{MARK}{}{code}", ids_of(access)?)))
    }

    /// The key that a token stands for, and what ends the token. What the key may do in the sandbox is asked for with
    /// [`Engine::authorize`].
    ///
    /// # Errors
    /// [`Code::Unauthorized`], which does not say in which way it is wrong.
    pub fn verify_ssh_token(&self, presented: &str) -> Result<(VerifiedKey, VerifiedAccess)> {
        let parts = parse(presented).ok_or_else(refused)?;
        let access = self.ssh_access_of(&parts)?;
        let token = self.ssh_token_of(&access.entry.record).ok_or_else(refused)?;
        let code = token.reveal().get(token.reveal().len() - CODE_CHARS..).unwrap_or_default();
        // In a time that does not depend on where they differ.
        let differ = code.bytes().zip(parts.code.bytes()).fold(0, |acc, (a, b)| acc | (a ^ b));
        if differ != 0 {
            return Err(refused());
        }
        self.behind(access)
    }

    /// What the private key is made of that a login by such a name has to prove; the API key that it stands for then, and
    /// what ends it.
    ///
    /// # Errors
    /// [`Code::Unauthorized`]
    pub fn ssh_key_for(&self, login: &str) -> Result<(SshSeed, VerifiedKey, VerifiedAccess)> {
        let parts = login.strip_prefix(KEY_MARK).and_then(|ids| parse_with(ids, 0)).ok_or_else(refused)?;
        let access = self.ssh_access_of(&parts)?;
        let seed = self.ssh_seed_of(&access.entry.record).ok_or_else(refused)?;
        let (key, access) = self.behind(access)?;
        Ok((seed, key, access))
    }

    /// Whether a login names a key that was made for a sandbox which is not here.
    #[must_use]
    pub fn names_other_ssh_key(&self, login: &str) -> bool {
        let parts = login.strip_prefix(KEY_MARK).and_then(|ids| parse_with(ids, 0));
        parts.is_some_and(|parts| self.inner.find(&parts.sandbox).is_none())
    }

    /// The access that a login names, if it is good for SSH now.
    fn ssh_access_of(&self, parts: &Parts<'_>) -> Result<VerifiedAccess> {
        if self.inner.find(&parts.sandbox).is_none() {
            missing(Whereabouts::Sandbox(parts.sandbox.to_string()));
            return Err(refused());
        }
        let entry = self.inner.share_links.by_id(&parts.sandbox, &parts.access).ok_or_else(refused)?;
        if entry.is_over(self.inner.now_ms()) || entry.record.target != Target::Port(SSH_PORT) {
            return Err(refused());
        }
        Ok(VerifiedAccess { entry })
    }

    fn behind(&self, access: VerifiedAccess) -> Result<(VerifiedKey, VerifiedAccess)> {
        let key = access.entry.record.created_by.as_ref().and_then(|key| self.verified_by_id(key));
        Ok((key.ok_or_else(refused)?, access))
    }
}

/// The ids of an access and its sandbox, without what they begin with.
fn ids_of(access: &Access) -> Option<String> {
    let sandbox = access.sandbox.as_str().strip_prefix(SandboxId::PREFIX)?;
    let id = access.id.as_str().strip_prefix(AccessId::PREFIX)?;
    Some(format!("{sandbox}{id}"))
}

fn refused() -> Error {
    Error::new(Code::Unauthorized, "the token is not valid, or no longer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_do_not_print() {
        let seed = SshSeed(Zeroizing::new([7; 32]));
        assert_eq!((format!("{seed:?}").as_str(), seed.reveal()), ("****", &[7; 32]));
    }

    #[test]
    fn forms() {
        let (sandbox, access) = (SandboxId::from_parts(1, 1), AccessId::from_parts(2, 2));
        let short = |text: &str, prefix: &str| text.strip_prefix(prefix).unwrap_or_default().to_owned();
        let text = format!(
            "{MARK}{}{}{}",
            short(sandbox.as_str(), SandboxId::PREFIX),
            short(access.as_str(), AccessId::PREFIX),
            "0a".repeat(CODE_CHARS / 2)
        );
        let parts = parse(&text).unwrap();
        assert_eq!((parts.sandbox, parts.access, parts.code.len()), (sandbox, access, CODE_CHARS));
        let long = format!("{text}0");
        for bad in ["", "t", "web", &text[1..], &text[..text.len() - 1], &long] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
