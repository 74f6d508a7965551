//! Taking a member out of a pool. In memory only: no waiting, no I/O.

use std::sync::Arc;

use atoll_core::id::SandboxId;

use super::{Member, Pool, PoolName, Pools, Recipe, State};
use crate::create::Planned;

impl State {
    /// The pool that a request counts for: its template's, else an image's of the same mold, else one by demand that
    /// is exactly of its kind.
    pub(super) fn pool_for(&mut self, planned: &Planned) -> Option<(&PoolName, &mut Pool)> {
        let own = planned.record.spec.template.as_deref().and_then(|text| text.split(':').next());
        let fits = |pool: &Pool, fits: fn(&Recipe, &Planned) -> bool| {
            pool.recipe.as_ref().is_some_and(|recipe| fits(recipe, planned))
        };
        let rank = |(name, pool): (&PoolName, &Pool)| match name {
            // Members kept for a template are left to its own requests.
            PoolName::Template(name) => {
                (Some(name.as_str()) == own && fits(pool, Recipe::can_become)).then_some(0)
            }
            PoolName::Image(_) => fits(pool, Recipe::can_become).then_some(1),
            PoolName::Demand(_) => fits(pool, Recipe::is_just).then_some(2),
        };
        let ranked = self.pools.iter_mut().filter_map(|(name, pool)| Some((rank((name, pool))?, name, pool)));
        ranked.min_by_key(|(rank, ..)| *rank).map(|(_, name, pool)| (name, pool))
    }
}

impl Pools {
    /// Takes the oldest member that serves a request, and remembers that it was asked for.
    pub(crate) fn claim(&self, planned: &Planned) -> Option<Member> {
        let now_ms = planned.record.created_ms;
        let mut state = self.lock();
        let (name, pool) = state.pool_for(planned)?;
        // Members of a recipe that was replaced are still there until the next round.
        let fit = |member: &Member| match name {
            PoolName::Demand(_) => member.recipe.is_just(planned),
            PoolName::Template(_) | PoolName::Image(_) => member.recipe.can_become(planned),
        };
        let member = pool.ready.iter().position(fit).and_then(|at| pool.ready.remove(at));
        pool.demand.arrived(now_ms, member.is_some());
        pool.asked_ms = now_ms;
        if member.is_some() {
            // The manager hears of it when the member is really gone.
            pool.hits += 1;
        } else {
            pool.misses += 1;
            self.nudge.notify_one();
        }
        member
    }

    /// Puts a member back that was not used.
    pub(crate) fn give_back(&self, member: Member) {
        let mut state = self.lock();
        let of = |pool: &Pool| pool.recipe.as_ref().is_some_and(|recipe| Arc::ptr_eq(recipe, &member.recipe));
        if let Some(pool) = state.pools.values_mut().find(|pool| of(pool)) {
            pool.ready.push_front(member);
        } else {
            // Its pool is gone: the manager removes what is in no pool.
            state.orphans.push(member);
        }
        drop(state);
        self.nudge.notify_one();
    }

    /// A member has become a sandbox: its id is no longer the pools' concern.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.lock().ids.remove(id);
        self.nudge.notify_one();
    }
}
