//! Links that sign in, and the sessions that they open. Both live in the server's memory: a server that is started
//! anew knows none of them.
//!
//! Of a link's or a session's token only the hash is kept, so that looking one up tells nothing by the time it takes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::KeyId;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a link works.
pub const LINK_AGE: Duration = Duration::from_secs(60);
/// How long a session lasts, used or not.
pub const SESSION_AGE: Duration = Duration::from_secs(12 * 60 * 60);
/// Links of one key that wait to be opened; the oldest goes first.
const LINKS_MAX: usize = 8;
/// Sessions of one key; the oldest ends first.
const SESSIONS_MAX: usize = 20;
/// Links, and sessions, of all keys.
const ALL_MAX: usize = 1000;
/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 32;

/// What a session's cookie stands for.
#[derive(Debug, Clone)]
pub struct Session {
    key: KeyId,
    csrf: Secret,
    /// Whether it is for the server's own machine: its cookie may have been shown to other servers there.
    local: bool,
    ended: CancellationToken,
    is_login: bool,
}

impl Session {
    /// That of a person's login, which every node knows by its cookie: it ends with the login, and its CSRF token is made of the
    /// cookie, which no page can read.
    #[must_use]
    pub fn of_login(login: KeyId, cookie: &str, local: bool) -> Self {
        let csrf = blake3::derive_key("atoll 2026 CSRF token of a login", cookie.as_bytes());
        let csrf = Secret::new(blake3::Hash::from_bytes(csrf).to_hex().as_str());
        Self { key: login, csrf, local, ended: CancellationToken::new(), is_login: true }
    }

    /// The session of another node of a cluster, for a request that that node has checked.
    #[must_use]
    pub fn of_node(key: KeyId) -> Self {
        Self { key, csrf: Secret::new(""), local: false, ended: CancellationToken::new(), is_login: false }
    }

    /// Whether it is that of a person's login.
    #[must_use]
    pub const fn is_login(&self) -> bool {
        self.is_login
    }

    /// The key whose rights it has, or the login.
    #[must_use]
    pub const fn key(&self) -> &KeyId {
        &self.key
    }

    /// Shown to its own page, which sends it with everything that changes something.
    #[must_use]
    pub const fn csrf(&self) -> &Secret {
        &self.csrf
    }

    /// Fires when the session ends. To fire it ends the session, and what was opened by it.
    #[must_use]
    pub const fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

/// All links and sessions.
#[derive(Debug, Default)]
pub struct Sessions {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    links: HashMap<blake3::Hash, Link>,
    sessions: HashMap<blake3::Hash, Held>,
}

#[derive(Debug)]
struct Link {
    key: KeyId,
    made: Instant,
}

#[derive(Debug)]
struct Held {
    session: Session,
    made: Instant,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The maps are usable even if a task panicked while it held the lock.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.links.retain(|_, link| link.made.elapsed() < LINK_AGE);
        inner.sessions.retain(|_, held| !held.session.ended.is_cancelled());
        inner
    }

    /// Makes a link's token for a key: good for [`LINK_AGE`], once.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`]; [`Code::Internal`] without randomness.
    pub fn link(&self, key: &KeyId) -> Result<Secret> {
        let token = token()?;
        let mut inner = self.lock();
        let own = inner.links.iter().filter(|(_, link)| link.key == *key);
        let own: Vec<_> = own.map(|(hash, link)| (link.made, *hash)).collect();
        if let Some(oldest) = oldest_of(own, LINKS_MAX) {
            inner.links.remove(&oldest);
        }
        room(inner.links.len())?;
        inner.links.insert(hash(token.reveal()), Link { key: key.clone(), made: Instant::now() });
        Ok(token)
    }

    /// Opens a session by a link, which does not work again, for the server's own machine or for all. `None` for a link that
    /// does not work. Gives the token for the cookie.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`]; [`Code::Internal`] without randomness.
    pub fn open(&self, link: &str, local: bool) -> Result<Option<Secret>> {
        let (token, csrf) = (token()?, token()?);
        let mut inner = self.lock();
        let Some(Link { key, .. }) = inner.links.remove(&hash(link)) else { return Ok(None) };
        let ended = inner.hold(token.reveal(), key, csrf, local)?.ended;
        drop(inner);
        // Ends with the session, however that does.
        tokio::spawn(async move {
            if tokio::time::timeout(SESSION_AGE, ended.cancelled()).await.is_err() {
                ended.cancel();
            }
        });
        Ok(Some(token))
    }

    /// Takes over the session that another node has under this token, for as long as that node says that it goes on:
    /// until `ended` fires. `None` when that was done already.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`]
    pub fn take_over(&self, token: &str, key: KeyId, csrf: Secret, local: bool) -> Result<Option<Session>> {
        let mut inner = self.lock();
        if inner.sessions.contains_key(&hash(token)) {
            return Ok(None);
        }
        inner.hold(token, key, csrf, local).map(Some)
    }

    /// The session of a cookie. One for the server's own machine is none elsewhere, nor the other way round.
    #[must_use]
    pub fn find(&self, token: &str, local: bool) -> Option<Session> {
        let inner = self.lock();
        inner.sessions.get(&hash(token)).map(|held| held.session.clone()).filter(|found| found.local == local)
    }

    /// Ends the session of a cookie, and what is open by it.
    pub fn end(&self, token: &str) {
        if let Some(held) = self.lock().sessions.remove(&hash(token)) {
            held.session.ended.cancel();
        }
    }
}

impl Inner {
    /// Keeps a session. The oldest of the same key ends where it has too many.
    fn hold(&mut self, token: &str, key: KeyId, csrf: Secret, local: bool) -> Result<Session> {
        let own = self.sessions.iter().filter(|(_, held)| *held.session.key() == key);
        let own: Vec<_> = own.map(|(hash, held)| (held.made, *hash)).collect();
        if let Some(oldest) = oldest_of(own, SESSIONS_MAX)
            && let Some(held) = self.sessions.remove(&oldest)
        {
            held.session.ended.cancel();
        }
        room(self.sessions.len())?;
        let session = Session { key, csrf, local, ended: CancellationToken::new(), is_login: false };
        let held = Held { session: session.clone(), made: Instant::now() };
        self.sessions.insert(hash(token), held);
        Ok(session)
    }
}

/// The oldest, when there are as many as there may be.
fn oldest_of(mut own: Vec<(Instant, blake3::Hash)>, max: usize) -> Option<blake3::Hash> {
    if own.len() < max {
        return None;
    }
    own.sort_by_key(|(made, _)| *made);
    own.first().map(|(_, hash)| *hash)
}

fn room(taken: usize) -> Result<()> {
    if taken < ALL_MAX {
        return Ok(());
    }
    Err(Error::new(Code::LimitExceeded, format!("there are {ALL_MAX} sessions of the dashboard"))
        .hint("sign out of some; they end after twelve hours"))
}

fn token() -> Result<Secret> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(Code::Internal, format!("the host's random generator failed: {error}"))
    })?;
    Ok(Secret::new(blake3::Hash::from_bytes(bytes).to_hex().as_str()))
}

fn hash(token: &str) -> blake3::Hash {
    blake3::hash(token.as_bytes())
}

/// Compares in a time that tells nothing: hashes are compared in constant time.
pub(crate) fn matches(shown: &str, secret: &Secret) -> bool {
    hash(shown) == hash(secret.reveal())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> KeyId {
        KeyId::from_parts(1, number)
    }

    async fn session(sessions: &Sessions, key: &KeyId) -> Secret {
        // Time goes on, so that there is an oldest.
        tokio::time::advance(Duration::from_millis(1)).await;
        let link = sessions.link(key).unwrap();
        sessions.open(link.reveal(), true).unwrap().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_works_once_and_for_a_minute() {
        let sessions = Sessions::default();
        let link = sessions.link(&key(1)).unwrap();
        let token = sessions.open(link.reveal(), true).unwrap().unwrap();
        assert!(sessions.open(link.reveal(), true).unwrap().is_none());
        assert_eq!(sessions.find(token.reveal(), true).unwrap().key(), &key(1));
        assert!(sessions.find(link.reveal(), true).is_none() && sessions.find("", true).is_none());
        let late = sessions.link(&key(1)).unwrap();
        tokio::time::advance(LINK_AGE).await;
        assert!(sessions.open(late.reveal(), true).unwrap().is_none());
        assert!(sessions.open("", true).unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_by_its_age_or_at_once() {
        let sessions = Sessions::default();
        let (one, two) = (session(&sessions, &key(1)).await, session(&sessions, &key(1)).await);
        let open = sessions.find(one.reveal(), true).unwrap();
        assert_ne!(open.csrf().reveal(), sessions.find(two.reveal(), true).unwrap().csrf().reveal());
        sessions.end(one.reveal());
        assert!(open.ended().is_cancelled() && sessions.find(one.reveal(), true).is_none());
        let open = sessions.find(two.reveal(), true).unwrap();
        tokio::time::advance(SESSION_AGE + Duration::from_secs(1)).await;
        open.ended().cancelled().await;
        assert!(sessions.find(two.reveal(), true).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_for_this_machine_is_of_no_use_elsewhere() {
        let sessions = Sessions::default();
        let opened = |local| sessions.open(sessions.link(&key(1)).unwrap().reveal(), local).unwrap().unwrap();
        for local in [true, false] {
            let token = opened(local);
            assert!(sessions.find(token.reveal(), local).is_some());
            assert!(sessions.find(token.reveal(), !local).is_none());
        }
        let session = sessions.take_over("theirs", key(2), Secret::new("c"), false).unwrap().unwrap();
        assert!(sessions.take_over("theirs", key(2), Secret::new("c"), false).unwrap().is_none(), "once");
        assert!(sessions.find("theirs", true).is_none() && sessions.find("theirs", false).is_some());
        session.ended().cancel();
        assert!(sessions.find("theirs", false).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_only_so_many() {
        let sessions = Sessions::default();
        let first = session(&sessions, &key(1)).await;
        let other = session(&sessions, &key(2)).await;
        let open = sessions.find(first.reveal(), true).unwrap();
        for _ in 0..SESSIONS_MAX {
            session(&sessions, &key(1)).await;
        }
        assert!(open.ended().is_cancelled(), "the oldest of this key made room");
        assert!(sessions.find(other.reveal(), true).is_some(), "and no other key's");
        let oldest = sessions.link(&key(3)).unwrap();
        for _ in 0..LINKS_MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
            sessions.link(&key(3)).unwrap();
        }
        assert!(sessions.open(oldest.reveal(), true).unwrap().is_none());
        let full = (10..).find_map(|number| sessions.link(&key(number)).err()).unwrap();
        assert_eq!(full.code, Code::LimitExceeded);
    }

    #[test]
    fn nothing_secret_is_printed() {
        let secret = token().unwrap();
        assert_eq!(secret.reveal().len(), 2 * TOKEN_BYTES);
        let session = Session { csrf: Secret::new(secret.reveal()), ..Session::of_node(key(1)) };
        assert!(!format!("{session:?}").contains(secret.reveal()));
    }
}
