//! What the engine is told at start.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_core::sharing::Visibility;
use atoll_core::spec::{Caps, Defaults};
use atoll_isolation::volumes::Volumes;
use atoll_isolation::{Check, HostDisk};
use atoll_objects::Objects;

use crate::clock::Clock;
use crate::egress::EgressConfig;
use crate::people::People;
use crate::pool::PoolConfig;
use crate::trace::TraceConfig;

/// What the engine is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// What time it is.
    pub clock: Clock,
    /// Where output logs live: `<data_dir>/logs`.
    pub data_dir: PathBuf,
    /// Upper bounds for one sandbox.
    pub caps: Caps,
    /// What a sandbox is when neither the caller nor a template says.
    pub defaults: Defaults,
    /// Where snapshots can be sent to and fetched from.
    pub objects: Option<Objects>,
    /// Most sandboxes at once, in any state.
    pub sandboxes_max: usize,
    /// Sandboxes that stand still give memory back when less than so many bytes of the host's are available. 0:
    /// never.
    pub reclaim_below_bytes: u64,
    /// Most sandboxes being made at once; more wait. About twice the number of cores.
    pub creates_max: usize,
    /// Whom sandboxes must trust whose connections the gateway looks into.
    pub trust: Trust,
    /// Warm pools.
    pub pools: PoolConfig,
    /// The network of sandboxes.
    pub egress: EgressConfig,
    /// Who may log in.
    pub people: People,
    /// Whether keys see each other's sandboxes, where nothing else is said.
    pub visibility: Visibility,
    /// Where volumes lie; there are none without.
    pub volumes: Option<Arc<dyn Volumes>>,
    /// The flight recorder.
    pub trace: TraceConfig,
    /// Output of execs that is kept altogether, bytes.
    pub logs_max_bytes: u64,
    /// Images that every node of a cluster can have and nothing on this one stands on, bytes.
    pub images_max_bytes: u64,
    /// Levels that this host does not have, and what they lack.
    pub missing: Vec<Check>,
    /// What stops sandboxes when the host's disk is full; without it, they are not stopped.
    pub disk: Option<Arc<dyn HostDisk>>,
}

/// Whom sandboxes must trust whose connections the gateway looks into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// The certificate of the gateway's authority, PEM; when empty, there is none to trust.
    pub ca_pem: String,
    /// Public authorities, PEM, for images that have none.
    pub roots_pem: String,
    /// Authorities of servers outside that the operator added, PEM.
    pub upstream_pem: String,
}
