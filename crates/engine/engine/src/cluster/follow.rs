//! What other nodes change is read again here.
//!
//! The database counts the changes of what servers keep in memory. A node asks for the counts several times a second:
//! it reads anew what has changed, and then it knows everything that was committed before it asked. A node misses
//! nothing, even if a connection breaks; and a node that cannot ask knows that it does not know ([`super::KNOWN_FOR`]).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_core::Result;
use atoll_store::boot_ns;

use crate::engine::Engine;
use crate::errors::store_error;

/// How often a node looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn follow(engine: Engine) {
    // Also what changed between its reading at the start and the first look.
    let mut known = BTreeMap::new();
    loop {
        if let Err(error) = engine.look(&mut known).await {
            tracing::warn!(%error, "what other nodes changed is not known");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Engine {
    async fn look(&self, known: &mut BTreeMap<String, i64>) -> Result<()> {
        let Some(cluster) = &self.inner.cluster else { return Ok(()) };
        let asked_ns = boot_ns();
        let now = self.inner.store.changes().await.map_err(store_error)?;
        for (what, number) in now {
            if known.get(&what) == Some(&number) {
                continue;
            }
            match what.as_str() {
                "projects" => self.reload_projects().await?,
                "keys" => self.reload_keys().await?,
                "secrets" => self.inner.reload_secrets().await?,
                "ssh_keys" => self.inner.acl.ssh_key_changed(),
                "pools" => self.inner.pools.changed(),
                "images" => {
                    if let Some(shared) = &self.inner.shared_images {
                        shared.changed.notify_one();
                    }
                }
                "arrivals" => {
                    if let Some(travel) = &self.inner.travel {
                        travel.arrivals.notify_one();
                    }
                }
                // Of a newer version.
                _ => {}
            }
            known.insert(what, number);
        }
        cluster.known_ns.store(asked_ns, Ordering::Release);
        cluster.looked.send_replace(());
        Ok(())
    }
}
