//! Whatever stays open ends with the right by which it was opened.
//!
//! Everything that may take rights away (a key or access is removed, a role, a sandbox's visibility) is told to
//! one watch channel; what runs out by itself is waited for. There is no list of what is open: each open thing
//! waits for [`Engine::until_revoked`].

use std::time::Duration;

use atoll_core::Code;

use crate::authorize::{Caller, Grant, Resource};
use crate::clock::now_ms;
use crate::engine::Engine;
use crate::ingress::VerifiedAccess;

/// Long enough; a timer cannot take much more.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);
/// When a database that was away is asked again.
const RETRY: Duration = Duration::from_secs(5);

impl Engine {
    /// Resolves when a right ends: the key or access was deleted or has run out, the key may not do any more what
    /// was needed, or the session by which it came is over. Leases do not count: what began before one goes on.
    pub async fn until_revoked(&self, grant: &Grant) {
        match grant.ended() {
            None => self.until_credential_ends(grant).await,
            Some(ended) => tokio::select! {
                () = ended.cancelled() => {}
                () = self.until_credential_ends(grant) => {}
            },
        }
    }

    async fn until_credential_ends(&self, grant: &Grant) {
        let Some(caller) = grant.caller() else {
            if let Some(link) = grant.link() {
                until_over(link).await;
            }
            return;
        };
        let mut changes = self.inner.acl.changed();
        loop {
            let Some(left) = self.left_by(caller, grant).await else { return };
            tokio::select! {
                // The sender lives as long as the engine.
                _ = changes.changed() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// For how long a right holds if nothing changes.
    async fn left_by(&self, caller: &Caller, grant: &Grant) -> Option<Duration> {
        let Some(fingerprint) = caller.ssh_key() else { return self.left_of(caller, grant) };
        match self.verify_ssh_key(fingerprint).await {
            Ok((key, expires_ms)) if Some(&key.id) == caller.key() => {
                Some(self.left_of(caller, grant)?.min(left(expires_ms)))
            }
            // A database that is away takes nobody's rights.
            Err(error) if error.code == Code::StoreUnavailable => Some(RETRY),
            Ok(_) | Err(_) => None,
        }
    }

    fn left_of(&self, caller: &Caller, grant: &Grant) -> Option<Duration> {
        let now = self.caller_now(caller)?;
        let lasts_with = caller.login.as_ref().or(caller.key());
        let expires_ms = lasts_with.and_then(|key| self.inner.keys.expires_ms(key));
        let gone = match grant.resource() {
            Resource::Sandbox(id) => self.inner.find(id).is_none(),
            Resource::Agent(agent) => self.inner.find(&agent.sandbox).is_none(),
            _ => false,
        };
        // What is open on a sandbox that is gone ends with that, and may have to tell it first.
        let scope = if gone { now.scope() } else { self.on_resource(&now, grant.resource())?.scope };
        (scope >= grant.needs().scope).then(|| left(expires_ms))
    }
}

/// How long it is until a moment that may not be set.
fn left(end_ms: Option<u64>) -> Duration {
    end_ms.map_or(FOREVER, |end| Duration::from_millis(end.saturating_sub(now_ms())).min(FOREVER))
}

async fn until_over(access: &VerifiedAccess) {
    let revoked = access.revoked();
    let ended = async {
        while access.expires_ms().is_none_or(|end| end > now_ms()) {
            tokio::time::sleep(left(access.expires_ms())).await;
        }
    };
    tokio::select! {
        () = revoked.cancelled() => {}
        () = ended => {}
    }
}
