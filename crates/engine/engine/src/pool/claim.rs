//! Taking a member out of a pool. In memory only: no waiting, no I/O.

use std::sync::Arc;

use atoll_core::id::SandboxId;

use super::{Member, Pool, PoolName, Pools, Recipe, State};
use crate::create::Planned;

/// What the pools give to a request.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// The oldest member that serves it.
    pub(crate) member: Option<Member>,
    /// The kind to keep ready for the next request, if no pool that was set up counts this one ([`Pools::wanted`]).
    pub(crate) kind: Option<Recipe>,
}

impl State {
    /// Of the pools that were set up, the one that counts a request: its template's, else an image's of the same mold.
    fn pool_for(&mut self, planned: &Planned) -> Option<&mut Pool> {
        let own = planned.record.spec.template.as_deref().and_then(|text| text.split(':').next());
        let fits = |pool: &Pool| pool.recipe.as_ref().is_some_and(|recipe| recipe.can_become(planned));
        let rank = |name: &PoolName| match name {
            // Members kept for a template are left to its own requests.
            PoolName::Template(name) => (Some(name.as_str()) == own).then_some(0),
            PoolName::Image(_) => Some(1),
            PoolName::Demand(_) => None,
        };
        let fitting = self.pools.iter_mut().filter(|(_, pool)| fits(pool));
        let ranked = fitting.filter_map(|(name, pool)| Some((rank(name)?, pool)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, pool)| pool)
    }
}

impl Pool {
    /// Notes that a caller asked for a sandbox of this pool, and whether a member was ready for it.
    pub(super) fn asked(&mut self, is_hit: bool, now_ms: u64) {
        self.demand.arrived(now_ms, is_hit);
        self.apart_ms = now_ms.saturating_sub(self.asked_ms);
        self.asked_ms = now_ms;
        *(if is_hit { &mut self.hits } else { &mut self.misses }) += 1;
    }
}

impl Pools {
    /// Takes the oldest member that serves a request, and remembers that it was asked for.
    pub(crate) fn claim(&self, planned: &Planned) -> Claim {
        let now_ms = planned.record.created_ms;
        let kind = self.kind(planned);
        let mut state = self.lock();
        let pool = state.pool_for(planned);
        let is_set_up = pool.is_some();
        let mut member = pool.and_then(|pool| {
            // Members of a recipe that was replaced are still there until the next round.
            let at = pool.ready.iter().position(|member| member.recipe.can_become(planned));
            let member = at.and_then(|at| pool.ready.remove(at));
            pool.asked(member.is_some(), now_ms);
            member
        });
        if is_set_up && member.is_none() {
            self.nudge.notify_one();
        }
        // The manager hears of a member that is taken when it is really gone.
        let by_demand = kind.as_ref().filter(|_| member.is_none()).and_then(|kind| state.by_demand(kind));
        member = member.or_else(|| by_demand?.ready.pop_front());
        Claim { member, kind: kind.filter(|_| !is_set_up) }
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
