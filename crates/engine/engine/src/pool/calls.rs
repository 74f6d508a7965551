//! What callers can do with pools: look, set, remove.

use atoll_core::limits::POOLS_MAX_COUNT;
use atoll_core::pool::PoolSpec;
use atoll_core::spec::IsolationLevel;
use atoll_core::{Code, Error, Result};
use atoll_store::PoolRecord;

use super::{Pool, PoolName, Pools};
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;

/// What sets the size of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolOrigin {
    /// The server's arguments.
    Server,
    /// The template.
    Template,
    /// A call ([`Engine::put_pool`]).
    Call,
    /// Demand: callers ask for its kind again and again.
    Demand,
}

/// A pool as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    /// What it is of.
    pub name: PoolName,
    /// The template version that members are made of, as `name:version`.
    pub template: Option<String>,
    /// The isolation level of members, where they can be made.
    pub isolation: Option<IsolationLevel>,
    /// Its size.
    pub spec: PoolSpec,
    /// What set that size.
    pub origin: PoolOrigin,
    /// Members that wait.
    pub ready: u32,
    /// Members being made.
    pub making: u32,
    /// Members that should wait now.
    pub target: u32,
    /// Requests that got a member.
    pub hits: u64,
    /// Requests that a member would have served, had there been one.
    pub misses: u64,
    /// Members made since the server started.
    pub made: u64,
    /// Attempts at making one that failed.
    pub failed: u64,
    /// Ages of the members that wait, the oldest first, milliseconds.
    pub ages_ms: Vec<u64>,
    /// How long making one takes on average, milliseconds.
    pub make_ms: u64,
    /// Memory that one takes, bytes; 0 when none was made yet.
    pub member_bytes: u64,
    /// Why it cannot be filled.
    pub problem: Option<String>,
}

/// All pools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolsView {
    /// By name.
    pub pools: Vec<PoolView>,
    /// Memory that members take now, bytes.
    pub memory_bytes: u64,
    /// Memory that members may take, bytes.
    pub memory_max_bytes: u64,
}

impl Pool {
    fn view(&self, name: &PoolName, now_ms: u64) -> PoolView {
        PoolView {
            name: name.clone(),
            template: self.recipe.as_ref().and_then(|recipe| recipe.spec.template.clone()),
            isolation: self.recipe.as_ref().map(|recipe| recipe.spec.isolation),
            spec: self.spec,
            origin: self.origin,
            ready: u32::try_from(self.ready.len()).unwrap_or(u32::MAX),
            making: self.making,
            target: self.target,
            hits: self.hits,
            misses: self.misses,
            made: self.made,
            failed: self.failed,
            ages_ms: self.ready.iter().map(|member| now_ms.saturating_sub(member.born_ms)).collect(),
            make_ms: self.demand.make_ms(),
            member_bytes: self.member_bytes,
            problem: self.problem.clone(),
        }
    }

    /// What its minimum takes.
    fn reserved_bytes(&self) -> u64 {
        let each = self.member_bytes.max(atoll_core::limits::POOL_MEMBER_MIN_BYTES);
        each.saturating_mul(self.spec.min.into())
    }
}

impl Pools {
    /// Whether a pool of this size fits beside the others.
    ///
    /// # Errors
    /// [`Code::PoolTooLarge`].
    pub(crate) fn admit(&self, name: &PoolName, spec: &PoolSpec) -> Result<()> {
        let state = self.lock();
        let others = state.pools.iter().filter(|(other, _)| *other != name);
        let others = others.map(|(_, pool)| pool.reserved_bytes()).fold(0, u64::saturating_add);
        let member_bytes = state.pools.get(name).map_or(0, |pool| pool.member_bytes);
        spec.fits(member_bytes, others, self.config.memory_bytes)
    }
}

pub(super) fn not_found(name: &PoolName) -> Error {
    Error::new(Code::PoolNotFound, format!("no pool was set up for '{name}'"))
        .hint("'atoll pool ls' shows what there is; a template's own pool goes with its template")
}

impl Engine {
    /// Every pool as it is now.
    #[must_use]
    pub fn pools(&self) -> PoolsView {
        let pools = &self.inner.pools;
        let (state, now) = (pools.lock(), self.inner.now_ms());
        let views: Vec<_> = state.pools.iter().map(|(name, pool)| pool.view(name, now)).collect();
        PoolsView {
            memory_bytes: views.iter().map(|view| u64::from(view.ready) * view.member_bytes).sum(),
            pools: views,
            memory_max_bytes: pools.config.memory_bytes,
        }
    }

    /// Sets a pool up, or changes its size. It goes before what its template or the server's arguments say,
    /// until it is removed.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field; [`Code::TemplateNotFound`] or [`Code::ImageNotFound`];
    /// [`Code::PoolTooLarge`]; [`Code::LimitExceeded`] when there are too many pools.
    #[boxed]
    pub async fn put_pool(&self, name: PoolName, spec: PoolSpec) -> Result<PoolView> {
        spec.validate("pool")?;
        let recipe = self.pool_recipe(&name).await?;
        self.inner.pools.admit(&name, &spec)?;
        let known = self.inner.store.list_pools().await.map_err(store_error)?;
        let text = name.to_string();
        if known.len() >= POOLS_MAX_COUNT && known.iter().all(|record| record.name != text) {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("{POOLS_MAX_COUNT} pools are set up already"),
            )
            .hint("remove one with 'atoll pool rm'"));
        }
        let now = self.inner.now_ms();
        let record = PoolRecord { name: text, spec, updated_ms: now };
        self.inner.store.put_pool(&record).await.map_err(store_error)?;
        let view = {
            let mut state = self.inner.pools.lock();
            let pool =
                state.pools.entry(name.clone()).or_insert_with(|| Pool::new(spec, PoolOrigin::Call, now));
            (pool.spec, pool.origin) = (spec, PoolOrigin::Call);
            pool.recipe.get_or_insert_with(|| std::sync::Arc::new(recipe));
            pool.view(&name, now)
        };
        self.inner.pools.changed();
        Ok(view)
    }

    /// The pools that calls set up ([`Self::put_pool`]), each with when that was.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn set_pools(&self) -> Result<Vec<(PoolView, u64)>> {
        let records = self.inner.store.list_pools().await.map_err(store_error)?;
        let mut set_ms: std::collections::BTreeMap<String, u64> =
            records.into_iter().map(|record| (record.name, record.updated_ms)).collect();
        let views = self.pools().pools.into_iter();
        Ok(views.filter_map(|view| set_ms.remove(&view.name.to_string()).map(|ms| (view, ms))).collect())
    }

    /// Forgets what [`Self::put_pool`] set: what the template or the server's arguments say holds again, or
    /// the pool is gone.
    ///
    /// # Errors
    /// [`Code::PoolNotFound`].
    #[boxed]
    pub async fn delete_pool(&self, name: &PoolName) -> Result<()> {
        let there = self.inner.store.delete_pool(&name.to_string()).await.map_err(store_error)?;
        self.inner.pools.changed();
        if there { Ok(()) } else { Err(not_found(name)) }
    }
}
