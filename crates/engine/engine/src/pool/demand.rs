//! Pools that nobody set up: what is asked for again and again is kept ready.
//!
//! A creation that no pool serves leaves word of what it was. The same once more within a minute, and it gets a pool,
//! of one member at least and [`PoolConfig::by_demand_max`](super::PoolConfig::by_demand_max) at most. The pool goes when
//! nobody asked for five minutes, when it cannot be filled, and when what its members stand on is removed: it has no minimum,
//! so that the pools that somebody set up get their memory first, and keeps no image and no snapshot from being removed.
//!
//! Its members are just what was asked for. In a pool that somebody set up a member's limits, user and working directory
//! are changed at the claim; here that would show one caller the directory that was made for another. What a template
//! starts, or who may be reached and what may run, was decided by somebody: such a member waits only where a pool was set up.

use std::collections::VecDeque;

use atoll_core::id::SnapshotId;
use atoll_core::pool::{Mold, PoolSpec};
use atoll_isolation::DiskSource;

use super::{Pool, PoolName, PoolOrigin, Pools, Recipe, State, Wanted};
use crate::create::Planned;

/// What is asked for a second time within this is kept ready.
const AGAIN_WITHIN_MS: u64 = 60_000;
/// What nobody asked for so long is not kept ready any more.
const IDLE_MS: u64 = 5 * 60_000;
/// Kinds that are kept ready at the same time.
const POOLS_MAX_COUNT: usize = 16;
/// Kinds that are remembered as having been asked for once.
const ASKED_MAX_COUNT: usize = 64;

/// What was asked for lately and has no pool, the newest last, each with when that was.
#[derive(Debug, Default)]
pub(super) struct Asked {
    once: VecDeque<(Recipe, u64)>,
    pools: u64,
}

impl Asked {
    /// Whether it was asked for before, and not long ago. If not, it is remembered.
    fn again(&mut self, recipe: &Recipe, planned: &Planned) -> bool {
        let now_ms = planned.record.created_ms;
        self.once.retain(|(_, ms)| now_ms.saturating_sub(*ms) < AGAIN_WITHIN_MS);
        if let Some(at) = self.once.iter().position(|(asked, _)| asked.is_just(planned)) {
            self.once.remove(at);
            return true;
        }
        if self.once.len() >= ASKED_MAX_COUNT {
            self.once.pop_front();
        }
        self.once.push_back((recipe.clone(), now_ms));
        false
    }
}

impl Recipe {
    /// Whether a member is what was planned but for its name and what only the network and the commands know.
    pub(super) fn is_just(&self, planned: &Planned) -> bool {
        let spec = &planned.record.spec;
        self.can_become(planned)
            && self.spec.resources == spec.resources
            && (&self.spec.workdir, &self.spec.user) == (&spec.workdir, &spec.user)
            && self.spec.egress.looks_inside() == spec.egress.looks_inside()
    }
}

/// What members of a pool by demand are made of, if there may be one.
fn recipe(planned: &Planned) -> Option<Recipe> {
    let is_plain = match (&planned.mold.origin, &planned.plan.disk) {
        (None, DiskSource::Empty) => true,
        // Where more was decided than where the disk comes from, the origin is a digest.
        (Some(origin), DiskSource::Artifact(_)) => origin.parse::<SnapshotId>().is_ok(),
        _ => false,
    };
    if !is_plain || planned.mold.volumes > 0 {
        return None;
    }
    let mut recipe = Recipe::of(planned);
    // The first caller's own.
    recipe.spec.env.clear();
    Some(recipe)
}

impl State {
    /// Takes pools out; the manager removes their members.
    pub(super) fn drop_pools(&mut self, mut is_gone: impl FnMut(&PoolName, &Pool) -> bool) {
        let gone: Vec<Pool> =
            self.pools.extract_if(.., |name, pool| is_gone(name, pool)).map(|(_, pool)| pool).collect();
        self.orphans.extend(gone.into_iter().flat_map(|pool| pool.ready));
    }

    /// Takes out what nobody asks for any more.
    pub(super) fn drop_idle(&mut self, now_ms: u64) {
        self.drop_pools(|_, pool| {
            pool.origin == PoolOrigin::Demand && now_ms.saturating_sub(pool.asked_ms) >= IDLE_MS
        });
    }

    /// Enters a pool by demand; the one that was asked for longest ago makes room.
    fn enter(&mut self, recipe: Recipe, max: u32, now_ms: u64) {
        let by_demand = self.pools.iter().filter(|(_, pool)| pool.origin == PoolOrigin::Demand);
        if by_demand.clone().count() >= POOLS_MAX_COUNT {
            let oldest = by_demand.min_by_key(|(_, pool)| pool.asked_ms).map(|(name, _)| name.clone());
            self.drop_pools(|name, _| Some(name) == oldest.as_ref());
        }
        self.asked.pools += 1;
        let name = PoolName::Demand(Wanted {
            template: recipe.spec.template.clone(),
            is_of_snapshot: recipe.mold.origin.is_some(),
            image: recipe.spec.image.clone(),
            number: self.asked.pools,
        });
        let spec = PoolSpec { min: 0, max, max_age_ms: None };
        let mut pool = Pool::new(spec, PoolOrigin::Demand, now_ms);
        pool.recipe = Some(std::sync::Arc::new(recipe));
        pool.asked_ms = now_ms;
        self.pools.insert(name, pool);
    }
}

impl Pools {
    /// Remembers what was asked for and no member served. What is asked for again gets a pool.
    pub(crate) fn notice(&self, planned: &Planned) {
        let max = self.config.by_demand_max;
        if max == 0 || self.config.memory_bytes == 0 {
            return;
        }
        let Some(recipe) = recipe(planned) else { return };
        let mut state = self.lock();
        if state.closed || state.pool_for(planned).is_some() || !state.asked.again(&recipe, planned) {
            return;
        }
        state.enter(recipe, max, planned.record.created_ms);
        drop(state);
        self.nudge.notify_one();
    }

    /// Lets go of what is kept ready by demand and stands on what is about to be removed.
    pub(crate) fn let_go(&self, is_gone: impl Fn(&Mold) -> bool) {
        let mut state = self.lock();
        let is_gone = |recipe: &Recipe| is_gone(&recipe.mold);
        state.drop_pools(|_, pool| {
            pool.origin == PoolOrigin::Demand && pool.recipe.as_deref().is_some_and(is_gone)
        });
        state.asked.once.retain(|(recipe, _)| !is_gone(recipe));
        drop(state);
        self.nudge.notify_one();
    }
}
