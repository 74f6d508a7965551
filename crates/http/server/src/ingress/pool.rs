//! Connections to servers inside that wait to be used again.
//!
//! A waiting connection holds no lease: it does not keep a sandbox awake, and when the sandbox sleeps, dies or
//! its server closes it, it is found closed and dropped. Waiting is short: servers inside close idle
//! connections after a few seconds, and a request on a connection that is just being closed costs an attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use axum::body::Body;
use hyper::client::conn::{http1, http2};

/// Waiting connections to one port.
const IDLE_MAX_COUNT: usize = 64;
/// How long one waits.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// How often those that waited too long are looked for, while there are any.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// A port of a sandbox, and how it is spoken to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) sandbox: SandboxId,
    pub(super) port: u16,
    /// The server inside speaks TLS on this port.
    pub(super) tls: bool,
}
/// Sends requests over one connection, one after the other.
pub(super) type Sender = http1::SendRequest<Body>;
/// Sends requests over one connection, at the same time.
pub(super) type SharedSender = http2::SendRequest<Body>;

#[derive(Debug)]
struct Idle<T> {
    sender: T,
    since: Instant,
}

#[derive(Debug, Default)]
struct Waiting {
    one: HashMap<Key, Vec<Idle<Sender>>>,
    shared: HashMap<Key, Idle<SharedSender>>,
    sweeping: bool,
}

/// The waiting connections of all ports.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pool {
    waiting: Arc<Mutex<Waiting>>,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last, if one waits.
    pub(super) fn take(&self, key: &Key) -> Option<Sender> {
        let mut waiting = self.lock();
        let idle = waiting.one.get_mut(key)?;
        // Not ready: its last request is not quite over. It stays for the next.
        idle.retain(|one| !one.sender.is_closed() && one.since.elapsed() < IDLE_MAX);
        let at = idle.iter().rposition(|one| one.sender.is_ready())?;
        Some(idle.swap_remove(at).sender)
    }

    /// Keeps a connection whose request is over.
    pub(super) fn put(&self, key: &Key, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut waiting = self.lock();
        let idle = waiting.one.entry(key.clone()).or_default();
        if idle.len() < IDLE_MAX_COUNT {
            idle.push(Idle { sender, since: Instant::now() });
            self.sweep_later(&mut waiting);
        }
    }

    /// The connection that all HTTP/2 requests to a port share.
    pub(super) fn shared(&self, key: &Key) -> Option<SharedSender> {
        let mut waiting = self.lock();
        let shared = waiting.shared.get_mut(key).filter(|shared| !shared.sender.is_closed())?;
        shared.since = Instant::now();
        Some(shared.sender.clone())
    }

    pub(super) fn share(&self, key: &Key, sender: SharedSender) {
        let mut waiting = self.lock();
        waiting.shared.insert(key.clone(), Idle { sender, since: Instant::now() });
        self.sweep_later(&mut waiting);
    }

    fn sweep_later(&self, waiting: &mut Waiting) {
        if waiting.sweeping {
            return;
        }
        waiting.sweeping = true;
        let pool = self.clone();
        // Ends by itself when nothing waits.
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                if !pool.sweep() {
                    return;
                }
            }
        });
    }

    /// Drops connections that waited too long or were closed; says whether any are left.
    fn sweep(&self) -> bool {
        let mut waiting = self.lock();
        waiting.one.retain(|_, idle| {
            idle.retain(|one| !one.sender.is_closed() && one.since.elapsed() < IDLE_MAX);
            !idle.is_empty()
        });
        // Requests under way on a shared connection go on; only no new one is sent there.
        waiting.shared.retain(|_, shared| !shared.sender.is_closed() && shared.since.elapsed() < IDLE_MAX);
        waiting.sweeping = !waiting.one.is_empty() || !waiting.shared.is_empty();
        waiting.sweeping
    }
}
