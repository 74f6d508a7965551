//! Taking a member out of a pool. In memory only: no waiting, no I/O.

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::pool::Mold;

use super::{Member, Pool, PoolName, Pools, State};

impl State {
    /// The pool that a request counts for: its template's, else one of the same mold.
    fn pool_for(&mut self, mold: &Mold, template: Option<&str>) -> Option<&mut Pool> {
        let fits = |pool: &Pool| pool.recipe.as_ref().is_some_and(|recipe| recipe.mold.serves(mold).is_ok());
        let own = template.map(|name| PoolName::Template(name.to_owned()));
        let own = own.filter(|name| self.pools.get(name).is_some_and(fits));
        let name = own.or_else(|| {
            // Members kept for a template are left to its own requests.
            let images = self.pools.iter().filter(|(name, _)| matches!(name, PoolName::Image(_)));
            images.into_iter().find(|(_, pool)| fits(pool)).map(|(name, _)| name.clone())
        })?;
        self.pools.get_mut(&name)
    }
}

impl Pools {
    /// Takes the oldest member that serves a request, and remembers that it was asked for.
    pub(crate) fn claim(&self, mold: &Mold, template: Option<&str>, now_ms: u64) -> Option<Member> {
        let mut state = self.lock();
        let pool = state.pool_for(mold, template)?;
        // Members of a recipe that was replaced are still there until the next round.
        let fit = |member: &Member| member.recipe.mold.serves(mold).is_ok();
        let member = pool.ready.iter().position(fit).and_then(|at| pool.ready.remove(at));
        pool.demand.arrived(now_ms, member.is_some());
        pool.claimed_ms = now_ms;
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
