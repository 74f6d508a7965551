//! The manager: one task that looks at what pools should be and what they are, and lets fillers make the
//! difference. A reconciler: it keeps no plan between two rounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_core::limits::POOL_MEMBER_MIN_BYTES;
use atoll_core::pool::{Ask, PoolSpec, share};
use atoll_core::spec::SandboxDraft;
use atoll_core::{Code, Error, Result};
use futures::StreamExt as _;

use super::calls::not_found;
use super::fill::{fill, remove};
use super::measure::{self, measure};
use super::{Member, Pool, PoolName, PoolOrigin, Pools, Recipe, State};
use crate::authorize::Caller;
use crate::engine::{Engine, Inner};
use crate::errors::store_error;

/// Without a nudge there is a round this often: demand decays and members age.
const ROUND_EVERY: Duration = Duration::from_secs(1);
/// Templates and images are looked at again after this, nudge or not.
const REFRESH_EVERY_MS: u64 = 30_000;
/// How long the look at one pool may take.
const RECIPE_MAX: Duration = Duration::from_secs(5);
/// Pools that are looked at at the same time: what one stands on may have to be fetched, and the others do not wait for that.
const RECIPES_AT_ONCE: usize = 32;
/// Members destroyed at the same time.
const REMOVALS_MAX_COUNT: usize = 4;

/// Starts the manager, if pools may have anything.
pub(crate) fn start(engine: &Engine) {
    if engine.inner.pools.config.memory_bytes > 0 {
        engine.inner.tracker.spawn(manage(engine.clone()));
    }
}

async fn manage(engine: Engine) {
    let inner = Arc::clone(&engine.inner);
    let pools = &inner.pools;
    let (mut refreshed_ms, mut measured_ms) = (0, 0);
    while !inner.shutdown.is_cancelled() {
        let next = inner.clock.instant() + ROUND_EVERY;
        let stale = inner.now_ms().saturating_sub(refreshed_ms) >= REFRESH_EVERY_MS;
        if pools.dirty.swap(false, Ordering::Relaxed) || stale {
            let refreshed = tokio::select! {
                refreshed = engine.refresh_pools() => refreshed,
                () = inner.shutdown.cancelled() => break,
            };
            match refreshed {
                Ok(()) => refreshed_ms = inner.now_ms(),
                Err(error) => tracing::warn!(%error, "pools could not be looked up"),
            }
        }
        if inner.now_ms().saturating_sub(measured_ms) >= measure::EVERY_MS {
            measure(&inner).await;
            measured_ms = inner.now_ms();
        }
        let may = May {
            memory_bytes: pools.config.memory_bytes,
            by_demand: Pools::room_by_demand(inner.count_sandboxes(), inner.config.sandboxes_max),
            fillers: pools.fillers.available_permits(),
        };
        let round = pools.lock().round(inner.now_ms(), &may);
        for (name, recipe) in round.make {
            match Arc::clone(&pools.fillers).try_acquire_owned() {
                Ok(permit) => drop(inner.tracker.spawn(fill(Arc::clone(&inner), name, recipe, permit))),
                // A round counts no more than there are.
                Err(_) => pools.unmade(&name),
            }
        }
        if !round.gone.is_empty() {
            let engine = engine.clone();
            inner.tracker.spawn(async move { remove_all(&engine.inner, round.gone).await });
        }
        tokio::select! {
            () = pools.nudge.notified() => {}
            () = inner.clock.sleep_until(Some(next)) => {}
            () = inner.shutdown.cancelled() => {}
        }
    }
    let members = pools.lock().close();
    remove_all(&inner, members).await;
}

async fn remove_all(inner: &Inner, members: Vec<Member>) {
    let removals = members.into_iter().map(|member| remove(inner, member));
    futures::stream::iter(removals).buffer_unordered(REMOVALS_MAX_COUNT).collect::<()>().await;
}

/// What there may be.
#[derive(Debug)]
struct May {
    /// Memory of all members together.
    memory_bytes: u64,
    /// Members by demand.
    by_demand: u32,
    /// Members that are made at once.
    fillers: usize,
}

/// What one round decides.
#[derive(Debug, Default)]
struct Round {
    gone: Vec<Member>,
    make: Vec<(PoolName, Arc<Recipe>)>,
}

impl State {
    /// Takes out what should not be there and says what to make.
    fn round(&mut self, now: u64, may: &May) -> Round {
        self.drop_idle(now);
        let mut round = Round { gone: std::mem::take(&mut self.orphans), ..Round::default() };
        self.share(now, may);
        for pool in self.pools.values_mut() {
            pool.sort_out(now, &mut round.gone);
        }
        // Pools that were set up come first, and of those the emptiest, one member for each in turn.
        while round.make.len() < may.fillers {
            let needy = self.pools.iter_mut().filter(|(_, pool)| pool.lacks(now) > 0);
            let first = needy.max_by_key(|(_, pool)| (!pool.is_by_demand(), pool.lacks(now)));
            let Some((name, pool)) = first else { break };
            let Some(recipe) = &pool.recipe else { break };
            round.make.push((name.clone(), Arc::clone(recipe)));
            pool.making += 1;
        }
        round
    }

    /// Decides how many each pool may have: those by demand share what the others leave.
    fn share(&mut self, now: u64, may: &May) {
        let mut left = may.memory_bytes;
        for is_by_demand in [false, true] {
            let pools = self.pools.values_mut().filter(|pool| pool.is_by_demand() == is_by_demand);
            let mut pools: Vec<&mut Pool> = pools.collect();
            let count = u32::try_from(pools.len()).unwrap_or(u32::MAX).max(1);
            let each = if is_by_demand { may.by_demand / count } else { u32::MAX };
            let asks: Vec<Ask> = pools
                .iter()
                .map(|pool| {
                    let target = if pool.recipe.is_some() { pool.wants(now).min(each) } else { 0 };
                    Ask { min: pool.spec.min, target, member_bytes: pool.member_bytes }
                })
                .collect();
            for (pool, given) in pools.iter_mut().zip(share(&asks, left)) {
                pool.target = given;
                let bytes = pool.member_bytes.max(POOL_MEMBER_MIN_BYTES);
                left = left.saturating_sub(bytes.saturating_mul(given.into()));
            }
        }
    }

    /// Takes everything out for good.
    fn close(&mut self) -> Vec<Member> {
        self.closed = true;
        let mut all = std::mem::take(&mut self.orphans);
        all.extend(self.pools.values_mut().flat_map(|pool| pool.ready.drain(..)));
        all
    }
}

impl Pool {
    /// How many should wait, memory aside.
    fn wants(&self, now_ms: u64) -> u32 {
        let target = self.demand.target(&self.spec, now_ms);
        // As long as a pool by demand is there, a caller has asked lately.
        if self.is_by_demand() { target.max(1) } else { target }
    }

    /// Members that count: the old ones are as good as gone.
    fn young(&self, now_ms: u64) -> u32 {
        let young = |member: &&Member| now_ms.saturating_sub(member.born_ms) < self.spec.age_ms();
        u32::try_from(self.ready.iter().filter(young).count()).unwrap_or(u32::MAX)
    }

    fn lacks(&self, now_ms: u64) -> u32 {
        if self.recipe.is_none() || now_ms < self.rests_until_ms {
            return 0;
        }
        self.target.saturating_sub(self.young(now_ms)).saturating_sub(self.making)
    }

    /// Members of another recipe go at once; the oldest go when there are more than enough. One that is too
    /// old stays until its successor is there.
    fn sort_out(&mut self, now_ms: u64, gone: &mut Vec<Member>) {
        let recipe = self.recipe.as_deref();
        let (kept, stale): (Vec<_>, Vec<_>) =
            self.ready.drain(..).partition(|member| recipe == Some(&*member.recipe));
        gone.extend(stale);
        self.ready.extend(kept);
        let target = usize::try_from(self.target).unwrap_or(usize::MAX);
        while self.ready.len() > target {
            gone.extend(self.ready.pop_front());
        }
        debug_assert!(self.young(now_ms) <= self.target, "no more than allowed");
    }
}

impl Pools {
    /// A member that was counted as being made is not.
    fn unmade(&self, name: &PoolName) {
        if let Some(pool) = self.lock().pools.get_mut(name) {
            pool.making = pool.making.saturating_sub(1);
        }
    }
}

impl Engine {
    /// Finds out which pools there should be, and how their members are made.
    async fn refresh_pools(&self) -> Result<()> {
        let wanted = self.wanted_pools().await?;
        let look_ups: Vec<_> = wanted
            .into_iter()
            .map(|(name, (spec, origin))| async move {
                let recipe = self.recipe_soon(&name).await;
                (name, spec, origin, recipe)
            })
            .collect();
        let resolved: Vec<_> =
            futures::stream::iter(look_ups).buffer_unordered(RECIPES_AT_ONCE).collect().await;
        let mut state = self.inner.pools.lock();
        let mut before = std::mem::take(&mut state.pools);
        for (name, spec, origin, recipe) in resolved {
            let mut pool =
                before.remove(&name).unwrap_or_else(|| Pool::new(spec, origin, self.inner.now_ms()));
            (pool.spec, pool.origin) = (spec, origin);
            match recipe {
                Ok(recipe) if pool.recipe.as_deref() == Some(&recipe) => {}
                Ok(recipe) => {
                    pool.recipe = Some(Arc::new(recipe));
                    (pool.problem, pool.rests_until_ms, pool.member_bytes) = (None, 0, 0);
                }
                Err(error) => (pool.recipe, pool.problem) = (None, Some(error.message)),
            }
            state.pools.insert(name, pool);
        }
        state.pools.extend(before.extract_if(.., |name, _| matches!(name, PoolName::Demand(_))));
        let orphans: Vec<Member> = before.into_values().flat_map(|pool| pool.ready).collect();
        state.orphans.extend(orphans);
        Ok(())
    }

    /// The recipe of a pool, or an error when that takes long: what is fetched for it goes on.
    async fn recipe_soon(&self, name: &PoolName) -> Result<Recipe> {
        let recipe = tokio::time::timeout(RECIPE_MAX, Box::pin(self.pool_recipe(name))).await;
        recipe.unwrap_or_else(|_late| {
            Err(Error::new(Code::Timeout, "what its members are made of is being fetched"))
        })
    }

    /// What was set by a call goes before what a template says, and that before the server's arguments.
    async fn wanted_pools(&self) -> Result<BTreeMap<PoolName, (PoolSpec, PoolOrigin)>> {
        let inner = &self.inner;
        let mut wanted: BTreeMap<PoolName, (PoolSpec, PoolOrigin)> = inner
            .pools
            .config
            .images
            .iter()
            .map(|(image, spec)| (PoolName::Image(image.clone()), (*spec, PoolOrigin::Server)))
            .collect();
        for template in self.templates().await? {
            if let Some(spec) = template.spec.pool {
                wanted.insert(PoolName::Template(template.name), (spec, PoolOrigin::Template));
            }
        }
        for record in inner.store.list_pools().await.map_err(store_error)? {
            if let Some(name) = PoolName::parse(&record.name) {
                wanted.insert(name, (record.spec, PoolOrigin::Call));
            }
        }
        Ok(wanted)
    }

    /// The recipe of an ordinary creation that asks for nothing but this template or image.
    pub(crate) async fn pool_recipe(&self, name: &PoolName) -> Result<Recipe> {
        let draft = match name {
            PoolName::Template(name) => {
                let newest = self.template(name, None).await?;
                let template = Some(format!("{}:{}", newest.name, newest.version));
                SandboxDraft { template, ..SandboxDraft::default() }
            }
            PoolName::Image(image) => SandboxDraft { image: Some(image.clone()), ..SandboxDraft::default() },
            PoolName::Demand(_) => return Err(not_found(name)),
        };
        let planned = self.plan(&draft, &Caller::system()).await?;
        let mut spec = planned.record.spec.clone();
        for placeholder in spec.egress.inject.iter_mut().flat_map(|rule| &mut rule.placeholders) {
            placeholder.value = None;
        }
        Ok(Recipe::of(&planned, spec, true))
    }
}
