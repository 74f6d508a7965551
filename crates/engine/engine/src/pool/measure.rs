//! What members take as long as they wait. What a template started in them goes on, and may take far more than it did when
//! it was ready.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::spec::IsolationLevel;
use futures::StreamExt as _;

use super::{Member, Pool, PoolName, State};
use crate::engine::Inner;

/// How often members are measured.
pub(super) const EVERY_MS: u64 = 30_000;
/// Members that are measured at the same time.
const AT_ONCE_MAX_COUNT: usize = 8;
/// How long that may take. Those that were not measured by then count as the others of their pool.
const MEASURING_MAX: Duration = Duration::from_secs(5);

/// Measures the members that wait. From now on each one of a pool counts as what these take on average.
pub(super) async fn measure(inner: &Inner) {
    let waiting = inner.pools.lock().waiting();
    let looks: Vec<_> = waiting
        .into_iter()
        .map(|(name, id, level)| async move {
            let usage = inner.driver(level).ok()?.usage(&id).await.ok()?;
            Some((name, usage.memory_bytes))
        })
        .collect();
    let looks = futures::stream::iter(looks).buffer_unordered(AT_ONCE_MAX_COUNT);
    let measured: Vec<_> = looks.take_until(tokio::time::sleep(MEASURING_MAX)).collect().await;
    let mut taken: BTreeMap<PoolName, (u64, u64)> = BTreeMap::new();
    for (name, bytes) in measured.into_iter().flatten() {
        let (sum, count) = taken.entry(name).or_default();
        (*sum, *count) = (sum.saturating_add(bytes), *count + 1);
    }
    let mut state = inner.pools.lock();
    for (name, (sum, count)) in taken {
        if let Some(pool) = state.pools.get_mut(&name) {
            pool.member_bytes = sum.div_ceil(count);
        }
    }
}

impl State {
    /// The members that wait, each with its pool.
    fn waiting(&self) -> Vec<(PoolName, SandboxId, IsolationLevel)> {
        let of = |(name, pool): (&PoolName, &Pool)| {
            let member = |member: &Member| (name.clone(), member.id.clone(), member.recipe.spec.isolation);
            pool.ready.iter().map(member).collect::<Vec<_>>()
        };
        self.pools.iter().flat_map(of).collect()
    }
}
