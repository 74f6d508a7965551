//! A connection that stays open ends with the right by which it was opened.
//!
//! Everything that may take rights away (a key or access is removed, a role, a sandbox's visibility) is told to
//! one watch channel; what runs out by itself is waited for. There is no list of what is open: each open thing
//! waits for [`Engine::until_revoked`].

use std::time::Duration;

use atoll_core::Code;

use crate::authorize::{Caller, Grant, Resource};
use crate::boxed;
use crate::engine::Engine;
use crate::ingress::VerifiedAccess;

/// When a database that was away is asked again.
const RETRY: Duration = Duration::from_secs(5);

impl Engine {
    /// Resolves when a right ends: the key or access was deleted or has run out, the key may not do any more what
    /// was needed, or the session by which it came is over. Leases do not count: what began before one goes on.
    #[boxed]
    pub async fn until_revoked(&self, grant: &Grant) {
        let told = async {
            match grant.ended() {
                None => std::future::pending().await,
                Some(ended) => ended.cancelled().await,
            }
        };
        let within = async {
            match grant.access() {
                None => std::future::pending().await,
                Some(access) => self.until_access_ends(access).await,
            }
        };
        tokio::select! {
            () = told => {}
            () = within => {}
            () = self.until_credential_ends(grant) => {}
        }
    }

    async fn until_access_ends(&self, access: &VerifiedAccess) {
        let revoked = access.revoked();
        tokio::select! {
            () = revoked.cancelled() => {}
            () = self.inner.clock.sleep_until_ms(access.expires_ms().unwrap_or(u64::MAX)) => {}
        }
    }

    async fn until_credential_ends(&self, grant: &Grant) {
        let Some(caller) = grant.caller() else {
            if let Some(link) = grant.link() {
                self.until_access_ends(link).await;
            }
            return;
        };
        let mut changes = self.inner.acl.changed();
        loop {
            let Some(holds) = self.holds(caller, grant).await else { return };
            let over = async {
                match holds {
                    Holds::Until(end) => self.inner.clock.sleep_until_ms(end).await,
                    Holds::ForNow => tokio::time::sleep(RETRY).await,
                }
            };
            tokio::select! {
                // The sender lives as long as the engine.
                _ = changes.changed() => {}
                () = over => {}
            }
        }
    }

    /// For how long a right holds if nothing changes.
    async fn holds(&self, caller: &Caller, grant: &Grant) -> Option<Holds> {
        let Some(fingerprint) = caller.ssh_key() else {
            return self.holds_until(caller, grant).map(Holds::Until);
        };
        match self.verify_ssh_key(fingerprint).await {
            Ok((key, expires_ms)) if Some(&key.id) == caller.key() => {
                let end = self.holds_until(caller, grant)?;
                Some(Holds::Until(expires_ms.map_or(end, |expires| expires.min(end))))
            }
            // A database that is away takes no rights away.
            Err(error) if error.code == Code::StoreUnavailable => Some(Holds::ForNow),
            Ok(_) | Err(_) => None,
        }
    }

    /// When a right ends by itself, milliseconds since the epoch.
    fn holds_until(&self, caller: &Caller, grant: &Grant) -> Option<u64> {
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
        (scope >= grant.needs().scope).then(|| expires_ms.unwrap_or(u64::MAX))
    }
}

/// For how long a right holds.
enum Holds {
    /// Milliseconds since the epoch.
    Until(u64),
    /// It is not known: the database is away.
    ForNow,
}
