//! Fillers: make members in the background, behind all callers that wait for a sandbox.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::messages::Exited;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::member::{make, unmake};
use super::{Member, PoolName, Recipe};
use crate::engine::Inner;
use crate::exec::Ahead;

/// Longest that a filler waits for creations to go first. If it waited longer, pools of a busy server would run dry for
/// good.
const STAND_BACK_MAX: Duration = Duration::from_secs(1);
/// After a claim its client is about to run something: a pool that is at least half full waits this long, and so does one
/// for which the next request is not to be expected before.
const CLAIM_PAUSE_MS: u64 = 25;
/// Requests that are so far apart come seldom: the next one is expected after the pause, and after a member was made.
const SELDOM_MS: u64 = 4 * CLAIM_PAUSE_MS;
/// Pause after a failure: doubles from the first to the last.
const REST_FIRST_MS: u64 = 1000;
const REST_LAST_MS: u64 = 60_000;
/// The newest measurement of the memory that a member takes has a weight of one part in so many.
const MEMORY_WEIGHT: u64 = 4;

/// Makes one member for a pool.
pub(super) async fn fill(
    inner: Arc<Inner>,
    name: PoolName,
    recipe: Arc<Recipe>,
    permit: OwnedSemaphorePermit,
) {
    let waits = async {
        inner.disk.wait_for(false).await;
        stand_back(&inner, &name).await;
    };
    tokio::select! {
        () = waits => {}
        () = inner.shutdown.cancelled() => {}
    }
    let outcome = fill_one(&inner, &name, &recipe, permit).await;
    let pools = &inner.pools;
    let mut state = pools.lock();
    if let Some(pool) = state.pools.get_mut(&name) {
        pool.making = pool.making.saturating_sub(1);
        if pool.is_by_demand() {
            // No user set this pool up, so no user is told why it cannot be filled. It comes again when its kind is
            // asked for again.
            if let Err(error) = outcome {
                tracing::debug!(pool = %name, %error, "a pool by demand cannot be filled, and goes");
                state.drop_pools(|other, _| *other == name);
            }
        } else if let Err(error) = outcome {
            pool.failed += 1;
            // There can be disk space again at any moment, and then no caller shall wait for the pool.
            let before = if error.code == Code::HostDiskFull { 0 } else { pool.rest_ms };
            pool.rest_ms = (before * 2).clamp(REST_FIRST_MS, REST_LAST_MS);
            pool.rests_until_ms = inner.now_ms().saturating_add(pool.rest_ms);
            if !inner.shutdown.is_cancelled() {
                tracing::warn!(pool = %name, %error, "a pool cannot be filled");
                pool.problem = Some(error.message);
            }
        }
    }
    drop(state);
    pools.nudge.notify_one();
}

async fn fill_one(
    inner: &Arc<Inner>,
    name: &PoolName,
    recipe: &Arc<Recipe>,
    permit: OwnedSemaphorePermit,
) -> Result<()> {
    let started = inner.clock.instant();
    let (member, watch) = make_known(inner, recipe, permit).await?;
    let id = member.id.clone();
    let took_ms = u64::try_from(inner.clock.since(started).as_millis()).unwrap_or(u64::MAX);
    let usage = inner.driver(recipe.spec.isolation)?.usage(&id).await;
    let bytes = usage.map(|usage| usage.memory_bytes).unwrap_or_default();
    let watched = watch_over(inner, name, &member, watch);
    if let Some(member) = put(inner, name, member, took_ms, bytes) {
        remove(inner, member).await;
    } else {
        inner.tracker.spawn(watched);
    }
    Ok(())
}

/// Makes a member. Its id is entered before anything of it is made: whatever is on the host belongs to a pool or a
/// sandbox at every moment.
async fn make_known(
    inner: &Inner,
    recipe: &Arc<Recipe>,
    permit: OwnedSemaphorePermit,
) -> Result<(Member, CancellationToken)> {
    let id = Inner::new_sandbox_id(inner.now_ms())?;
    inner.pools.lock().ids.insert(id.clone());
    let made = make(inner, recipe, &id, permit).await;
    if made.is_err() {
        inner.pools.forget(&id);
    }
    made
}

/// Makes a member that is for no pool. The caller removes it ([`remove`]).
pub(crate) async fn make_alone(inner: &Inner, recipe: &Arc<Recipe>) -> Result<Member> {
    let permit = Arc::clone(&inner.pools.fillers).acquire_owned().await;
    let permit = permit.or(Err(Error::new(Code::ShuttingDown, "the server is shutting down")))?;
    make_known(inner, recipe, permit).await.map(|(member, _watch)| member)
}

/// Puts a member into its pool; gives it back when it is not wanted any more.
fn put(inner: &Inner, name: &PoolName, member: Member, took_ms: u64, bytes: u64) -> Option<Member> {
    let mut state = inner.pools.lock();
    if state.closed {
        return Some(member);
    }
    let Some(pool) = state.pools.get_mut(name) else { return Some(member) };
    if pool.recipe.as_deref() != Some(&*member.recipe) {
        return Some(member);
    }
    pool.made += 1;
    pool.demand.made(took_ms);
    pool.problem = None;
    pool.rest_ms = 0;
    pool.member_bytes = match pool.member_bytes {
        0 => bytes,
        before => (before / MEMORY_WEIGHT * (MEMORY_WEIGHT - 1)).saturating_add(bytes / MEMORY_WEIGHT),
    };
    pool.ready.push_back(member);
    None
}

/// Takes a member out as soon as its guest is gone, or what was started in it has failed.
fn watch_over(
    inner: &Arc<Inner>,
    name: &PoolName,
    member: &Member,
    watch: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let (inner, name, id) = (Arc::clone(inner), name.clone(), member.id.clone());
    let closed = member.client.closed();
    let exited = member.ahead.as_ref().map(Ahead::exited);
    async move {
        tokio::select! {
            () = closed => {}
            () = failed(exited) => {}
            () = watch.cancelled() => return,
            () = inner.shutdown.cancelled() => return,
        }
        let dead = take(&inner, &name, &id);
        if let Some(member) = dead {
            tracing::warn!(pool = %name, sandbox = %id, "a member of a pool died");
            remove(&inner, member).await;
            inner.pools.nudge.notify_one();
        }
    }
}

/// Waits until a start command has ended in failure: for ever when there is none.
async fn failed(exited: Option<watch::Receiver<Option<Exited>>>) {
    if let Some(mut exited) = exited
        && exited
            .wait_for(|exited| exited.as_ref().is_some_and(|exited| exited.code != Some(0)))
            .await
            .is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

fn take(inner: &Inner, name: &PoolName, id: &SandboxId) -> Option<Member> {
    let mut state = inner.pools.lock();
    let pool = state.pools.get_mut(name)?;
    let at = pool.ready.iter().position(|member| member.id == *id)?;
    pool.ready.remove(at)
}

/// Destroys a member that is in no pool any more.
pub(crate) async fn remove(inner: &Inner, member: Member) {
    member.client.close();
    if let Some(ahead) = member.ahead {
        drop(ahead.hand_over().await);
    }
    unmake(inner, member.recipe.spec.isolation, &member.id).await;
    atoll_failpoint::fail_point!("engine.pool.removed");
    inner.pools.forget(&member.id);
}

/// Waits while callers wait for creations, and during the pause after a claim, in which its client begins its first
/// command.
async fn stand_back(inner: &Inner, name: &PoolName) {
    let pools = &inner.pools;
    let until = inner.clock.instant() + STAND_BACK_MAX;
    while inner.clock.instant() < until {
        let ended = pools.foreground_ended.notified();
        if pools.foreground.load(Ordering::Relaxed) > 0 {
            tokio::select! {
                () = ended => {}
                () = inner.clock.sleep_until(Some(until)) => {}
            }
            continue;
        }
        let again_ms = {
            let state = pools.lock();
            let Some(pool) = state.pools.get(name) else { return };
            let full = u32::try_from(pool.ready.len()).unwrap_or(u32::MAX).saturating_mul(2) >= pool.target;
            let seldom = pool.apart_ms >= SELDOM_MS;
            if full || seldom { pool.asked_ms.saturating_add(CLAIM_PAUSE_MS) } else { 0 }
        };
        if again_ms <= inner.now_ms() {
            return;
        }
        inner.clock.sleep_until_ms(again_ms).await;
    }
}
