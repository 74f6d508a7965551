//! Removes objects that no copy refers to: what a crash left of an upload, what only an older copy had, what belonged
//! to sandboxes that are gone.
//!
//! Objects are listed first, and the row of their sandbox is read afterwards. What is listed and belongs to nothing then will never
//! belong to anything again: a later copy refers to objects of the one that is in the row, and to such that are sent after it was read.
//! So nothing here needs a clock, a lock, or to know which other nodes collect.

use std::collections::BTreeSet;
use std::time::Duration;

use atoll_core::Result;
use atoll_core::id::SandboxId;
use futures::TryStreamExt as _;

use super::Travel;
use super::index::INDEX;
use crate::engine::Engine;
use crate::errors::{chain, store_error};
use crate::snapshot::objects_error;

/// How often it is looked for them, after once at the start.
const EVERY: Duration = Duration::from_secs(3600);
/// Names of one sandbox that are looked at in one go.
const NAMES_MAX_COUNT: usize = 10_000;

pub(super) async fn keep(engine: Engine) {
    let Some(travel) = engine.inner.travel.clone() else { return };
    loop {
        match travel.collect(&engine).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "objects that nobody referred to are removed"),
            Err(error) => tracing::warn!(%error, "objects that nobody refers to cannot be looked for"),
        }
        engine.collect_shared().await;
        engine.inner.clock.sleep(EVERY).await;
    }
}

impl Travel {
    /// Looks at everything; gives how many objects were removed.
    async fn collect(&self, engine: &Engine) -> Result<u64> {
        self.collect_below(engine, &self.place.clone()).await
    }

    /// The same, for a sandbox that is gone.
    pub(crate) async fn collect_of(&self, engine: &Engine, id: &SandboxId) {
        if let Err(error) = self.collect_below(engine, &format!("{}/{id}", self.place)).await {
            tracing::debug!(sandbox = %id, %error, "what a sandbox had in the object store is collected later");
        }
    }

    async fn collect_below(&self, engine: &Engine, below: &str) -> Result<u64> {
        let mut names = self.objects.list(below);
        let (mut removed, mut group) = (0, Group::default());
        while let Some(name) = names.try_next().await.map_err(|error| objects_error(&error))? {
            let Some((id, upload, object)) = self.parse(&name) else { continue };
            if group.id.as_ref() != Some(&id) || group.objects.len() >= NAMES_MAX_COUNT {
                removed += self.tidy(engine, std::mem::take(&mut group)).await?;
                group.id = Some(id);
            }
            group.objects.insert((upload, object));
        }
        Ok(removed + self.tidy(engine, group).await?)
    }

    /// Sandbox, upload and name. What has another form is not ours.
    fn parse(&self, name: &str) -> Option<(SandboxId, String, String)> {
        let mut parts = name.strip_prefix(&self.place)?.strip_prefix('/')?.split('/');
        let found = (parts.next()?.parse().ok()?, parts.next()?.to_owned(), parts.next()?.to_owned());
        parts.next().is_none().then_some(found)
    }

    async fn tidy(&self, engine: &Engine, group: Group) -> Result<u64> {
        let Some(id) = &group.id else { return Ok(0) };
        let kept = engine.inner.store.kept(id).await.map_err(store_error)?;
        let mut left = group.objects;
        left.retain(|(upload, _)| kept.upload.as_ref() != Some(upload));
        if let Some(copy) = &kept.copy {
            left.remove(&(copy.upload.clone(), INDEX.to_owned()));
            if !left.is_empty() {
                let used = match self.index(id, copy).await {
                    Ok(index) => index.objects(),
                    // What it refers to is not known: nothing is removed.
                    Err(error) => {
                        tracing::warn!(sandbox = %id, %error, "its copy cannot be read");
                        return Ok(0);
                    }
                };
                left.retain(|object| !used.contains(object));
            }
        }
        let mut removed = 0;
        for (upload, object) in left {
            match self.objects.remove(&self.object(id, &upload, &object)).await {
                Ok(()) => removed += 1,
                Err(error) => {
                    tracing::warn!(sandbox = %id, error = chain(&error), "an object cannot be removed");
                    break;
                }
            }
        }
        Ok(removed)
    }
}

/// Objects of one sandbox.
#[derive(Default)]
struct Group {
    id: Option<SandboxId>,
    objects: BTreeSet<(String, String)>,
}
