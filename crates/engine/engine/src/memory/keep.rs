//! The keeper: one task that sees to it that the newest version of each template that wants it has a copy, and nothing
//! else has one. A reconciler: it keeps no plan between two rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Result;
use atoll_core::snapshot::{Purpose, SnapshotState};
use atoll_store::SnapshotRecord;

use super::{About, HOLDER, Saved, State, fits, make, versioned};
use crate::engine::Engine;
use crate::pool::{PoolName, Recipe};

/// Templates and images are looked at again after this, nudge or not.
const ROUND_EVERY: Duration = Duration::from_secs(30);
/// The shortest time between two looks.
const ROUND_MIN: Duration = Duration::from_millis(100);

/// Starts the keeper.
pub(crate) fn start(engine: &Engine) {
    engine.inner.tracker.spawn(keep(engine.clone()));
}

async fn keep(engine: Engine) {
    let inner = Arc::clone(&engine.inner);
    while !inner.shutdown.is_cancelled() {
        if let Err(error) = engine.round_of_memories().await {
            tracing::warn!(%error, "the memories of templates could not be looked after");
        }
        let now = inner.clock.instant();
        let next = now + inner.memories.lock().until_next(inner.now_ms());
        tokio::select! {
            () = inner.memories.nudge.notified() => {}
            () = inner.clock.sleep_until(Some(next)) => {}
            () = inner.shutdown.cancelled() => {}
        }
    }
}

impl State {
    /// How long the next round can wait: something may be tried again before.
    fn until_next(&self, now: u64) -> Duration {
        let rests = self.entries.values().map(|entry| entry.rests_until_ms).filter(|until| *until > now);
        let next = rests.min().map_or(ROUND_EVERY, |until| Duration::from_millis(until - now));
        next.clamp(ROUND_MIN, ROUND_EVERY)
    }

    /// Puts away what is not wanted; gives what is to be made now, one at a time.
    fn compare(&mut self, wanted: BTreeMap<String, Option<Recipe>>, now: u64) -> Option<(String, Recipe)> {
        let gone: Vec<String> =
            self.entries.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in gone {
            // One that is being made comes to nothing, and is not forgotten before.
            if self.entries.get(&name).is_some_and(|entry| !entry.making) {
                self.retired.extend(self.entries.remove(&name).and_then(|entry| entry.saved));
            }
        }
        let mut next = None;
        for (name, recipe) in wanted {
            let entry = self.entries.entry(name.clone()).or_default();
            // What cannot be planned now may be good again later.
            let Some(recipe) = recipe else { continue };
            let fit = |saved: &Arc<Saved>| {
                fits(&recipe.spec, &recipe.mold).is_ok_and(|fits| fits == saved.about.fits)
            };
            if !entry.saved.as_ref().is_some_and(fit) {
                self.retired.extend(entry.saved.take());
                if now >= entry.rests_until_ms {
                    next.get_or_insert((name, recipe));
                }
            }
        }
        if self.entries.values().any(|entry| entry.making) {
            return None;
        }
        if let Some(entry) = next.as_ref().and_then(|(name, _)| self.entries.get_mut(name)) {
            entry.making = true;
        }
        next
    }
}

impl Engine {
    async fn round_of_memories(&self) -> Result<()> {
        let mut wanted = BTreeMap::new();
        for template in self.templates().await? {
            if !template.spec.memory {
                continue;
            }
            let name = versioned(&template);
            let recipe = self.pool_recipe(&PoolName::Template(template.name)).await;
            // A newer version may have come meanwhile: the next round knows it.
            let recipe = recipe
                .map(|recipe| Some(recipe).filter(|recipe| recipe.spec.template.as_ref() == Some(&name)));
            let recipe = recipe.unwrap_or_else(|error| {
                tracing::warn!(template = name, %error, "a template cannot be planned");
                None
            });
            wanted.insert(name, recipe);
        }
        let next = self.inner.memories.lock().compare(wanted, self.inner.now_ms());
        if let Some((name, recipe)) = next {
            self.inner.tracker.spawn(make_one(self.clone(), name, Arc::new(recipe)));
        }
        self.remove_retired_memories().await;
        Ok(())
    }

    /// Removes copies that no creation is about to go on from. If that fails, it is tried again in the next round.
    async fn remove_retired_memories(&self) {
        let (unused, used): (Vec<_>, Vec<_>) = std::mem::take(&mut self.inner.memories.lock().retired)
            .into_iter()
            .partition(|saved| Arc::strong_count(saved) == 1);
        let mut again = used;
        for saved in unused {
            if let Err(error) = self.remove_memory(&saved.record).await {
                tracing::error!(snapshot = %saved.record.id, %error, "the memory of a template could not be removed");
                again.push(saved);
            }
        }
        self.inner.memories.lock().retired.extend(again);
    }

    async fn remove_memory(&self, record: &SnapshotRecord) -> Result<()> {
        self.delete_unused_snapshot(record).await?;
        make::remove_dir(&self.inner.memory_dir(&record.id)).await
    }

    /// Finds the copies that an earlier process left, and removes what belongs to none.
    pub(crate) async fn recover_memories(&self) -> Result<()> {
        let mut kept = BTreeSet::new();
        for record in self.all_snapshots().await? {
            let Purpose::Held(by) = &record.purpose else { continue };
            let Some(template) = by.strip_prefix(HOLDER).map(str::to_owned) else { continue };
            if record.state != SnapshotState::Ready {
                continue;
            }
            let dir = self.inner.memory_dir(&record.id);
            let about = match tokio::fs::read(dir.join(make::ABOUT)).await {
                Ok(text) => serde_json::from_slice::<About>(&text).ok(),
                Err(_) => None,
            };
            let Some(about) = about else {
                tracing::warn!(snapshot = %record.id, template, "the memory of a template is not whole");
                self.delete_unused_snapshot(&record).await?;
                continue;
            };
            kept.insert(record.id.to_string());
            let saved = Arc::new(Saved { record, about, dir });
            let mut state = self.inner.memories.lock();
            let entry = state.entries.entry(template).or_default();
            // The newest comes first.
            let older = if entry.saved.is_none() { entry.saved.replace(saved) } else { Some(saved) };
            state.retired.extend(older);
        }
        // What belongs to a row that cannot be read belongs to a row. Where not each of these is known, any may be one's.
        let unreadable = self.inner.store.unreadable_of("snapshots");
        let Some(unreadable) = unreadable.all() else { return Ok(()) };
        kept.extend(unreadable.iter().map(|row| row.id.clone()));
        let mut entries = match tokio::fs::read_dir(self.inner.memories_dir()).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(make::host_error(&error)),
        };
        while let Ok(Some(entry)) = entries.next_entry().await {
            if !entry.file_name().to_str().is_some_and(|name| kept.contains(name)) {
                make::remove_dir(&entry.path()).await?;
            }
        }
        Ok(())
    }
}

/// Makes a copy, and tells the others.
async fn make_one(engine: Engine, name: String, recipe: Arc<Recipe>) {
    let made = make::make(&engine, &name, &recipe).await;
    let memories = &engine.inner.memories;
    {
        let mut state = memories.lock();
        let entry = state.entries.entry(name.clone()).or_default();
        entry.making = false;
        match made {
            Ok(saved) => {
                tracing::info!(template = name, snapshot = %saved.record.id, "the memory of a template is saved");
                let before = entry.saved.replace(Arc::new(saved));
                state.retired.extend(before);
            }
            Err(_) if engine.inner.shutdown.is_cancelled() => {}
            Err(error) => {
                tracing::warn!(template = name, %error, "the memory of a template could not be saved");
                entry.failed(&error, engine.now_ms());
            }
        }
    }
    memories.changed();
}
