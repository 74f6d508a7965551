//! Who was let in, and until when: whatever stays open ends with the right by which it was opened.
//!
//! Everything that may take rights away (a key or access is removed, a role, a sandbox's visibility) is told to
//! one watch channel; what runs out by itself is waited for. There is no list of what is open: each open thing
//! waits for [`Engine::until_unwelcome`].

use std::time::Duration;

use atoll_core::Code;
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::sharing::Requester;

use crate::clock::now_ms;
use crate::engine::Engine;
use crate::ingress::VerifiedAccess;

/// Long enough; a timer cannot take much more.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);
/// When a database that was away is asked again.
const RETRY: Duration = Duration::from_secs(5);

/// By what right somebody is in.
#[derive(Debug, Clone)]
pub enum Pass {
    /// An API key with at least a scope: on the sandbox, if it is about one, else anywhere.
    Key {
        /// The key.
        key: KeyId,
        /// What was needed to be let in.
        needed: Scope,
        /// Where.
        sandbox: Option<SandboxId>,
    },
    /// An SSH key, which stands for an API key, to run commands.
    SshKey {
        /// The SSH key.
        fingerprint: String,
        /// Where.
        sandbox: SandboxId,
    },
    /// An access to ports or a file.
    Access(VerifiedAccess),
}

impl Engine {
    /// Resolves when a right ends: the key or access was deleted or has run out, or the key has no role on the
    /// sandbox any more that is enough. Leases do not count: what began before one goes on.
    pub async fn until_unwelcome(&self, pass: &Pass) {
        if let Pass::Access(access) = pass {
            return until_over(access).await;
        }
        let mut changes = self.inner.access.changed();
        loop {
            let welcome = match pass {
                Pass::Key { key, needed, sandbox } => self.welcome(key, *needed, sandbox.as_ref()),
                Pass::SshKey { fingerprint, sandbox } => self.welcome_by_ssh(fingerprint, sandbox).await,
                Pass::Access(_) => None,
            };
            let Some(end) = welcome else { return };
            tokio::select! {
                // The sender lives as long as the engine.
                _ = changes.changed() => {}
                () = tokio::time::sleep(end) => {}
            }
        }
    }

    /// For how long a key is welcome if nothing changes.
    fn welcome(&self, key: &KeyId, needed: Scope, sandbox: Option<&SandboxId>) -> Option<Duration> {
        let good = self.verified_by_id(key)?;
        let scope = match sandbox {
            // What is open on a sandbox that is gone ends with that, and may have to tell it first.
            Some(sandbox) if self.inner.find(sandbox).is_none() => return Some(FOREVER),
            Some(sandbox) => {
                let who = Requester { key: &good.id, scope: good.scope, holder: None };
                self.standing(&who, sandbox.as_str()).ok()?.scope
            }
            None => good.scope,
        };
        (scope >= needed).then(|| left(self.inner.keys.expires_ms(key)))
    }

    async fn welcome_by_ssh(&self, fingerprint: &str, sandbox: &SandboxId) -> Option<Duration> {
        match self.verify_ssh_key(fingerprint).await {
            Ok((key, expires_ms)) => {
                Some(self.welcome(&key.id, Scope::Exec, Some(sandbox))?.min(left(expires_ms)))
            }
            // A database that is away takes nobody's rights.
            Err(error) if error.code == Code::StoreUnavailable => Some(RETRY),
            Err(_) => None,
        }
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
