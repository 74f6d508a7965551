//! When the host's memory runs low, sandboxes that stand still give theirs back.

use atoll_core::usage::{Frozen, reclaim_order};

use crate::engine::Inner;
use crate::errors::chain;
use crate::sandbox::SandboxShared;

use super::measure;

/// Looks once, and reclaims what is to be.
pub(super) async fn relieve(inner: &Inner) {
    for driver in inner.drivers.values() {
        let Some(available) = driver.memory_available().await else { continue };
        let threshold = inner.config.reclaim_below_bytes;
        if available >= threshold {
            continue;
        }
        let mut frozen = Vec::new();
        for sandbox in inner.all_sandboxes() {
            if sandbox.driver().level() == driver.level() {
                frozen.extend(frozen_one(inner, &sandbox).await);
            }
        }
        for id in reclaim_order(available, threshold, frozen) {
            let Some(sandbox) = inner.find(&id) else { continue };
            match driver.reclaim(&id).await {
                Ok(bytes) => {
                    sandbox.freezer.set_reclaimed();
                    tracing::info!(sandbox = %id, bytes, "took memory from a frozen sandbox");
                }
                Err(error) => tracing::debug!(sandbox = %id, error = chain(&error), "no memory to take"),
            }
        }
    }
}

async fn frozen_one(inner: &Inner, sandbox: &SandboxShared) -> Option<Frozen> {
    let still = sandbox.freezer.now();
    still.since?;
    measure(inner, sandbox).await;
    Some(Frozen {
        id: sandbox.id.clone(),
        since_ms: still.since_ms,
        memory_bytes: sandbox.meter.memory_bytes(),
        reclaimed: still.reclaimed,
    })
}
