//! [`Gateway`]: takes up the networks of sandboxes and lets go of them.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::SandboxId;
use atoll_core::policy::EgressPolicy;
use atoll_isolation::Gate;
use tokio::sync::Semaphore;

use crate::accept;
use crate::borders::Borders;
use crate::budget::{Budget, Common};
use crate::config::GatewayConfig;
use crate::dns::Resolver;
use crate::limits::{CONNECTION_DESCRIPTORS_COUNT, SHARE_OF_ONE};
use crate::sandbox::SandboxNet;
use atoll_core::network::{NetworkView, Transferred};

/// The state that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) resolver: Resolver,
    pub(crate) borders: Borders,
    /// Places for connections, of all sandboxes together.
    pub(crate) places: Arc<Semaphore>,
    /// How many there are for one sandbox.
    pub(crate) places_of_one: usize,
    /// Bytes on their way, of all sandboxes together.
    buffered: Common,
}

/// Counts over all sandboxes, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Open connections.
    pub connections: u64,
    /// Bytes that left sandboxes, since the start of the server.
    pub sent_bytes: u64,
    /// Bytes that came into sandboxes, since the start of the server.
    pub received_bytes: u64,
    /// Refusals since the start of the server.
    pub denied: u64,
}

#[derive(Debug, Default)]
struct Table {
    nets: HashMap<SandboxId, Arc<SandboxNet>>,
    /// The counts of sandboxes that are gone.
    past: Stats,
}

/// The gateway. Clones share it.
#[derive(Debug, Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
    table: Arc<Mutex<Table>>,
}

/// Connections that this process has descriptors for, when half of them are for other things.
fn by_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    limit / 2 / CONNECTION_DESCRIPTORS_COUNT
}

impl Gateway {
    /// A gateway without sandboxes.
    #[must_use]
    pub fn new(config: GatewayConfig) -> Self {
        let resolver = Resolver::new(config.hosts_file.clone(), config.resolvers.clone());
        let borders = Borders::new(config.closed.clone(), &config.own_hosts);
        let places = config.connections_max.unwrap_or_else(by_descriptors).clamp(1, Semaphore::MAX_PERMITS);
        let places_of_one = (places / SHARE_OF_ONE).max(1);
        let places = Arc::new(Semaphore::new(places));
        let buffered = config.buffered_max_bytes.map_or_else(Common::of_host, Common::new);
        let shared = Arc::new(Shared { config, resolver, borders, places, places_of_one, buffered });
        Self { shared, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing in it is left half changed by a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up the network of a sandbox: from now on connections and lookups at its gate are served. An earlier gate
    /// of the same sandbox is let go of; the bytes that it carried stay counted.
    ///
    /// Must be called on a runtime, which serves it.
    ///
    /// # Errors
    /// When the runtime does not take the sockets.
    pub fn attach(&self, id: &SandboxId, policy: EgressPolicy, gate: Gate) -> io::Result<()> {
        let earlier = self.take(id).map(|net| net.total.read()).unwrap_or_default();
        let recorder = self.shared.config.recorder.clone();
        let budget = Budget::new(&self.shared.buffered);
        let net = Arc::new(SandboxNet::new(id.clone(), policy, earlier, budget).told_to(recorder));
        Borders::watch(&self.shared);
        accept::spawn(&self.shared, &net, gate)?;
        self.table().nets.insert(id.clone(), net);
        Ok(())
    }

    /// Changes what a sandbox may reach, at once: connections that are no longer allowed are cut.
    pub fn update(&self, id: &SandboxId, policy: EgressPolicy) {
        if let Some(net) = self.find(id) {
            net.set_policy(policy);
        }
    }

    /// Lets go of a sandbox: its connections are cut and its gate is closed.
    pub fn detach(&self, id: &SandboxId) {
        let Some(net) = self.take(id) else { return };
        let carried = net.total.read();
        let past = &mut self.table().past;
        past.sent_bytes = past.sent_bytes.saturating_add(carried.sent_bytes);
        past.received_bytes = past.received_bytes.saturating_add(carried.received_bytes);
        past.denied = past.denied.saturating_add(net.denied.load(Ordering::Relaxed));
    }

    fn take(&self, id: &SandboxId) -> Option<Arc<SandboxNet>> {
        let net = self.table().nets.remove(id)?;
        net.closed.cancel();
        Some(net)
    }

    fn find(&self, id: &SandboxId) -> Option<Arc<SandboxNet>> {
        self.table().nets.get(id).cloned()
    }

    /// A view of a sandbox's network; `None` when it is not taken up.
    #[must_use]
    pub fn network(&self, id: &SandboxId) -> Option<NetworkView> {
        self.find(id).map(|net| net.view())
    }

    /// Bytes that a sandbox has moved since its network was taken up by this server.
    #[must_use]
    pub fn transferred(&self, id: &SandboxId) -> Option<Transferred> {
        self.find(id).map(|net| net.total.read())
    }

    /// Counts over all sandboxes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let table = self.table();
        let mut stats = table.past;
        for net in table.nets.values() {
            let carried = net.total.read();
            stats.connections += net.open_count() as u64;
            stats.sent_bytes += carried.sent_bytes;
            stats.received_bytes += carried.received_bytes;
            stats.denied += net.denied.load(Ordering::Relaxed);
        }
        stats
    }
}
