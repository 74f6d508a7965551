//! Pools by demand, which no argument, template or call sets up: the kinds of sandboxes that callers ask for again and
//! again are kept ready.
//!
//! When no pool can serve a creation, the pools remember its *kind*. If the same kind is asked for again within a
//! minute, it gets a pool, of one member at least and [`PoolConfig::by_demand_max`](super::PoolConfig::by_demand_max)
//! at most. The pool goes when no caller got a sandbox of its kind for five minutes, when it cannot be filled, and when
//! the image or the snapshot that its members stand on is removed.
//!
//! Such a pool never gets in the way. Pools that were set up get their memory first; a pool by demand keeps no image
//! and no snapshot from being removed; and since members take what sandboxes take (ids, networks, disks), there are few
//! of them all together, and none on a server that is half full.
//!
//! No key is responsible for a member that waits here, so nothing runs in it but the guest agent, and it knows nothing
//! of the caller that asked first: a kind is what a sandbox is made of ([`bare`]), and a request gets a member of just
//! its kind. In pools that were set up, a claim changes limits, user and working directory; here these belong to the
//! kind, since another kind's working directory would still be there. A start command, volumes and rules for what may
//! run are the decision of an API key or an operator: a sandbox with these waits only in a pool that was set up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use atoll_core::execution::ExecutionPolicy;
use atoll_core::id::SnapshotId;
use atoll_core::idle::IdlePolicy;
use atoll_core::policy::EgressPolicy;
use atoll_core::pool::PoolSpec;
use atoll_core::profile::Profiles;
use atoll_core::service::Services;
use atoll_core::spec::SandboxSpec;
use atoll_core::usage::Budget;
use atoll_isolation::DiskSource;

use super::{Pool, PoolName, PoolOrigin, Pools, Recipe, State, Wanted};
use crate::create::Planned;

/// A kind that is asked for a second time within this is kept ready.
const AGAIN_WITHIN_MS: u64 = 60_000;
/// A kind that no caller asked for during this time is not kept ready any more.
const IDLE_MS: u64 = 5 * 60_000;
/// Kinds that are kept ready at the same time.
const POOLS_MAX_COUNT: usize = 16;
/// Members of all kinds together.
const MEMBERS_MAX_COUNT: u32 = 64;
/// Kinds that are remembered as having been asked for once.
const ASKED_MAX_COUNT: usize = 64;

/// The kinds that were asked for lately and have no pool, the newest last, each with the time of the request.
#[derive(Debug, Default)]
pub(super) struct Asked {
    once: VecDeque<(Recipe, u64)>,
    pools: u64,
}

impl Asked {
    /// Whether it was asked for before, and not long ago. If not, it is remembered.
    fn again(&mut self, kind: &Recipe, now_ms: u64) -> bool {
        self.once.retain(|(_, ms)| now_ms.saturating_sub(*ms) < AGAIN_WITHIN_MS);
        if let Some(at) = self.once.iter().position(|(asked, _)| asked == kind) {
            self.once.remove(at);
            return true;
        }
        if self.once.len() >= ASKED_MAX_COUNT {
            self.once.pop_front();
        }
        self.once.push_back((kind.clone(), now_ms));
        false
    }
}

/// The part of a sandbox that is made before a caller asks. Every field is named, so that a new one is thought of.
fn bare(spec: &SandboxSpec) -> SandboxSpec {
    SandboxSpec {
        image: spec.image.clone(),
        template: spec.template.clone(),
        snapshot: None,
        auto_checkpoints: None,
        durability: None,
        isolation: spec.isolation,
        accelerator: spec.accelerator,
        resources: spec.resources,
        env: BTreeMap::new(),
        user: spec.user.clone(),
        workdir: spec.workdir.clone(),
        idle_timeout_ms: None,
        egress: EgressPolicy::default(),
        volumes: Vec::new(),
        idle: IdlePolicy::default(),
        budget: Budget::default(),
        start: None,
        ready: None,
        restart: None,
        build: None,
        trace: None,
        trace_files: None,
        execution: ExecutionPolicy::default(),
        profiles: Profiles::default(),
        image_until_ms: spec.image_until_ms,
        ttl_ms: None,
        layers: BTreeMap::new(),
        services: Services::default(),
    }
}

impl State {
    /// Takes pools out; the manager removes their members.
    pub(super) fn drop_pools(&mut self, mut is_gone: impl FnMut(&PoolName, &Pool) -> bool) {
        let gone: Vec<Pool> =
            self.pools.extract_if(.., |name, pool| is_gone(name, pool)).map(|(_, pool)| pool).collect();
        self.orphans.extend(gone.into_iter().flat_map(|pool| pool.ready));
    }

    /// Takes out pools by demand that no caller asks for any more.
    pub(super) fn drop_idle(&mut self, now_ms: u64) {
        self.drop_pools(|_, pool| pool.is_by_demand() && now_ms.saturating_sub(pool.asked_ms) >= IDLE_MS);
    }

    /// The pool of a kind.
    pub(super) fn by_demand(&mut self, kind: &Recipe) -> Option<&mut Pool> {
        let is_it = |pool: &Pool| pool.is_by_demand() && pool.recipe.as_deref() == Some(kind);
        self.pools.values_mut().find(|pool| is_it(pool))
    }

    /// Enters a pool; the one that was asked for longest ago makes room.
    fn enter(&mut self, kind: Recipe, max: u32, now_ms: u64) {
        let by_demand = self.pools.iter().filter(|(_, pool)| pool.is_by_demand());
        if by_demand.clone().count() >= POOLS_MAX_COUNT {
            let oldest = by_demand.min_by_key(|(_, pool)| pool.asked_ms).map(|(name, _)| name.clone());
            self.drop_pools(|name, _| Some(name) == oldest.as_ref());
        }
        self.asked.pools += 1;
        let name = PoolName::Demand(Wanted {
            template: kind.spec.template.clone(),
            image: kind.spec.image.clone(),
            number: self.asked.pools,
        });
        let spec = PoolSpec { min: 0, max, max_age_ms: None };
        let mut pool = Pool::new(spec, PoolOrigin::Demand, now_ms);
        pool.recipe = Some(Arc::new(kind));
        pool.asked_ms = now_ms;
        self.pools.insert(name, pool);
    }
}

impl Pool {
    pub(super) fn is_by_demand(&self) -> bool {
        self.origin == PoolOrigin::Demand
    }
}

impl Pools {
    /// The kind of what was planned, where it may be kept ready.
    pub(super) fn kind(&self, planned: &Planned) -> Option<Recipe> {
        let is_plain = match (&planned.mold.origin, &planned.plan.disk) {
            (None, DiskSource::Empty) => true,
            // Where more was decided than where the disk comes from, the origin is a digest.
            (Some(origin), DiskSource::Artifact(_)) => origin.parse::<SnapshotId>().is_ok(),
            _ => false,
        };
        let spec = &planned.record.spec;
        let is_kept = is_plain && planned.mold.volumes == 0 && spec.build.is_none();
        if !is_kept || self.config.by_demand_max == 0 || self.config.memory_bytes == 0 {
            return None;
        }
        Some(Recipe::of(planned, bare(spec), false))
    }

    /// Remembers that a caller got a sandbox of a kind, and whether it had waited. A kind that is asked for again gets
    /// a pool.
    pub(crate) fn wanted(&self, kind: Recipe, has_waited: bool, now_ms: u64) {
        let mut state = self.lock();
        if let Some(pool) = state.by_demand(&kind) {
            pool.asked(has_waited, now_ms);
        } else if !state.closed && state.asked.again(&kind, now_ms) {
            state.enter(kind, self.config.by_demand_max, now_ms);
        }
        drop(state);
        if !has_waited {
            self.nudge.notify_one();
        }
    }

    /// Drops the pools by demand whose members stand on what is about to be removed. Says whether there was any.
    pub(crate) fn let_go(&self, is_gone: impl Fn(&Recipe) -> bool) -> bool {
        let mut state = self.lock();
        let before = state.pools.len();
        state.drop_pools(|_, pool| pool.is_by_demand() && pool.recipe.as_deref().is_some_and(&is_gone));
        state.asked.once.retain(|(kind, _)| !is_gone(kind));
        let has_gone = state.pools.len() < before;
        drop(state);
        self.nudge.notify_one();
        has_gone
    }

    /// The same, of a snapshot.
    pub(crate) fn let_go_of_snapshot(&self, id: &SnapshotId) {
        self.let_go(|kind| {
            kind.mold.origin.as_deref() == Some(id.as_str())
                || matches!(&kind.plan.disk, DiskSource::Artifact(disk) if disk == id)
        });
    }

    /// Members that there may be by demand, where so many of at most so many sandboxes are there.
    pub(super) fn room_by_demand(sandboxes: u64, sandboxes_max: usize) -> u32 {
        let half = (sandboxes_max as u64 / 2).saturating_sub(sandboxes);
        u32::try_from(half).unwrap_or(u32::MAX).min(MEMBERS_MAX_COUNT)
    }
}
