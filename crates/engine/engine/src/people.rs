//! People who log in at an issuer of identities. Callers have verified who the person is before they call anything
//! here.
//!
//! A person is a row of the keys, and so is each of their logins: what is open ends with them as it does with keys, and every node
//! of a cluster knows of them. What a person may do is asked of the rules at every request ([`Engine::right_of_key`]).
//!
//! A person whom a rule moves to another project gets another account there ([`hash_of`]): they have nothing of what is
//! on the earlier account (sandboxes, roles, journals, usage, what an idempotency key answers), and all of it again
//! when they are moved back. Their logins of before work no more.

use std::sync::Arc;

use atoll_core::id::{KeyId, ProjectId};
use atoll_core::person::{LOGIN_MAX_MS, Person, Rules};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_store::{KeyKind, KeyRecord, Login, LoginBy, StoreError};
use atoll_vault::ApiKey;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::keys::{KeyFormat, NewKey};

/// How long a person stays logged in when the server's arguments say nothing else.
pub const LOGIN_MS: u64 = 12 * 60 * 60 * 1000;
/// Logins of one person; the oldest ends first.
const LOGINS_MAX_COUNT: u64 = 50;
/// Longest text that [`Engine::open_note`] looks at, bytes.
const NOTE_MAX_BYTES: usize = 8 << 10;

/// Who may log in.
#[derive(Debug, Clone)]
pub struct People {
    /// The rules that say who may log in, and with which right.
    pub rules: Rules,
    /// For how long, milliseconds.
    pub login_ms: u64,
}

impl Default for People {
    /// The rules let nobody in.
    fn default() -> Self {
        Self { rules: Rules::default(), login_ms: LOGIN_MS }
    }
}

/// The hash by which an issuer's person is found again in a project. No secret that a client could show has this hash.
fn hash_of(person: &Person, project: Option<&ProjectId>) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_derive_key("atoll 2026 person of an issuer");
    let project = project.map(ProjectId::as_str);
    for part in [person.issuer.as_str(), person.subject.as_str()].into_iter().chain(project) {
        // With its length, so that no two people read the same.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().as_bytes().to_vec()
}

impl Engine {
    /// Opens a login of a person whom the issuer has just named, if a rule names them. `exchange` is what no other login was
    /// opened by. The secret is not kept anywhere.
    ///
    /// # Errors
    /// [`Code::Forbidden`] when no rule names them; [`Code::Unauthorized`] when the exchange has opened a login before.
    #[boxed]
    pub async fn log_in(&self, person: Person, by: LoginBy, exchange: &[u8]) -> Result<NewKey> {
        let Some(right) = self.right_of_person(&person) else {
            tracing::warn!(subject = ?person.subject, email = ?person.email, "nobody may log in whom no rule names");
            let hint = match self.inner.config.people.rules.right_of(&person).and_then(|right| right.project)
            {
                Some(project) => format!("the rule names the project '{project}', which is not there"),
                None => "who runs the server can add one: 'atoll serve --oidc-allow'".to_owned(),
            };
            return Err(Error::new(Code::Forbidden, format!("no rule lets {} in", person.name())).hint(hint));
        };
        let created_ms = self.inner.now_ms();
        let expires_ms = created_ms.saturating_add(self.inner.config.people.login_ms.min(LOGIN_MAX_MS));
        let key = ApiKey::generate(KeyFormat::Atoll).map_err(|error| {
            tracing::error!(%error, "no randomness for a login");
            Error::new(Code::Internal, "the host's random generator failed")
        })?;
        let row = |id, hash, kind, project| KeyRecord {
            id,
            name: person.name().to_owned(),
            hash,
            scopes: Vec::new(),
            project,
            created_ms,
            expires_ms: Some(expires_ms),
            last_used_ms: None,
            kind,
        };
        let hash = hash_of(&person, right.project.as_ref());
        let account = KeyKind::Person(person.clone());
        let account = row(KeyId::from_parts(created_ms, random()?), hash, account, right.project);
        let login =
            Login { person: account.id.clone(), by, exchange: blake3::hash(exchange).as_bytes().to_vec() };
        let id = KeyId::from_parts(created_ms, random()?);
        let login = row(id, key.hash().to_vec(), KeyKind::Login(login), None);
        let stored = {
            let _turn = self.inner.keys.changing.lock().await;
            let stored = self.inner.store.log_in(&account, &login, LOGINS_MAX_COUNT).await;
            stored.map_err(|error| match error {
                StoreError::AlreadyExists => {
                    Error::new(Code::Unauthorized, "this login has been used before").hint("log in anew")
                }
                error => store_error(error),
            })?
        };
        tracing::info!(
            key = %stored.id, login = %login.id, subject = ?person.subject, email = ?person.email,
            scope = right.scope.as_str(), by = by.as_str(), "a person logged in"
        );
        // With it logins may have gone.
        self.reload_keys().await?;
        Ok(NewKey { record: login, secret: key.text().clone() })
    }

    /// The login that a cookie of the dashboard stands for, if that is good. One for the server's own machine is none elsewhere,
    /// nor the other way round: its cookie may have been shown to other servers there.
    #[must_use]
    pub fn dashboard_login(&self, cookie: &str, local: bool) -> Option<KeyId> {
        let wanted = if local { LoginBy::DashboardHere } else { LoginBy::Dashboard };
        let record = self.inner.keys.find(&ApiKey::parse(cookie).ok()?.hash())?;
        matches!(&record.kind, KeyKind::Login(login) if login.by == wanted).then_some(())?;
        self.verified(&record)?.login
    }

    /// The person that a key stands for, if it stands for one.
    #[must_use]
    pub fn person(&self, key: &KeyId) -> Option<Person> {
        match &self.inner.keys.find_id(key)?.kind {
            KeyKind::Person(person) => Some(person.clone()),
            KeyKind::Key | KeyKind::Login(_) => None,
        }
    }

    /// Ends one login.
    ///
    /// # Errors
    /// [`Code::KeyNotFound`].
    #[boxed]
    pub async fn end_login(&self, login: &KeyId) -> Result<()> {
        let record = self.inner.keys.find_id(login).ok_or_else(|| KeyId::not_found(login.as_str()))?;
        let KeyKind::Login(Login { person, .. }) = &record.kind else {
            return Err(KeyId::not_found(login.as_str()));
        };
        self.end_logins(person, Some(login)).await
    }

    /// Ends all logins of a person, by its key's id. A person whom a rule still lets in may log in again.
    ///
    /// # Errors
    /// [`Code::KeyNotFound`]; [`Code::InvalidState`] for a key that is no person.
    #[boxed]
    pub async fn end_logins_of(&self, id: &str) -> Result<()> {
        let parsed: KeyId = id.parse()?;
        let record: Arc<KeyRecord> = self.inner.keys.find_id(&parsed).ok_or_else(|| KeyId::not_found(id))?;
        match &record.kind {
            KeyKind::Person(_) => self.end_logins(&parsed, None).await,
            KeyKind::Key => Err(Error::new(Code::InvalidState, "the key is no person's: it has no logins")
                .hint("'atoll key rm' makes a key stop working")),
            KeyKind::Login(_) => Err(KeyId::not_found(id)),
        }
    }

    async fn end_logins(&self, person: &KeyId, login: Option<&KeyId>) -> Result<()> {
        {
            let _turn = self.inner.keys.changing.lock().await;
            self.inner.store.end_logins(person, login, self.inner.now_ms()).await.map_err(store_error)?;
        }
        self.reload_keys().await
    }

    /// What a client keeps for this server, of which it can neither read nor change anything.
    ///
    /// # Errors
    /// [`Code::Internal`].
    pub fn seal_note(&self, purpose: &str, note: &Secret) -> Result<Secret> {
        let sealed = self.inner.vault.seal(&format!("note:{purpose}"), note).map_err(|error| {
            tracing::error!(%error, "a note cannot be sealed");
            Error::new(Code::Internal, "a note cannot be sealed")
        })?;
        Ok(Secret::new(URL_SAFE_NO_PAD.encode(sealed)))
    }

    /// What [`Self::seal_note`] sealed for the same purpose; `None` for everything else.
    #[must_use]
    pub fn open_note(&self, purpose: &str, sealed: &str) -> Option<Secret> {
        if sealed.len() > NOTE_MAX_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        self.inner.vault.unseal(&format!("note:{purpose}"), &bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_two_people_have_one_number() {
        let of = |issuer: &str, subject: &str, project: Option<&ProjectId>| {
            let (issuer, subject) = (issuer.to_owned(), subject.to_owned());
            hash_of(&Person { issuer, subject, email: None, claims: BTreeMap::new() }, project)
        };
        let (one, other) = (ProjectId::from_parts(1, 1), ProjectId::from_parts(1, 2));
        assert_eq!(of("https://a", "1", None), of("https://a", "1", None));
        assert_ne!(of("https://a", "1", None), of("https://a1", "", None));
        assert_ne!(of("https://a", "1", None), of("https://b", "1", None));
        assert_eq!(of("https://a", "1", Some(&one)), of("https://a", "1", Some(&one)));
        assert_ne!(of("https://a", "1", Some(&one)), of("https://a", "1", Some(&other)));
        assert_ne!(of("https://a", "1", Some(&one)), of("https://a", "1", None));
    }
}
