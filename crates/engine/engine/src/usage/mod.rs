//! What sandboxes use: measured ([`meter`]), recorded and asked for ([`record`]), and what is done when the host's
//! memory runs low ([`pressure`]).

mod meter;
mod pressure;
mod record;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::engine::Inner;

pub(crate) use meter::Meter;
pub use record::{UsageGroup, UsageItem, UsageQuery};
pub(crate) use record::{begin, begin_claimed, load, measure, settle};

/// How often every sandbox is measured. CPU time is exact however seldom; memory × time is as exact as this.
pub(crate) const MEASURE_EVERY: Duration = Duration::from_secs(30);
/// How often the host's memory is looked at.
const PRESSURE_EVERY: Duration = Duration::from_secs(5);
/// How often rows beyond their time are removed.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// Starts the tasks that run as long as the server.
pub(crate) fn start(inner: &Arc<Inner>) {
    every(inner, MEASURE_EVERY, |inner| Box::pin(async move { record::settle_all(&inner).await }));
    every(inner, PRUNE_EVERY, |inner| Box::pin(async move { record::prune(&inner).await }));
    if inner.config.reclaim_below_bytes > 0 {
        every(inner, PRESSURE_EVERY, |inner| Box::pin(async move { pressure::relieve(&inner).await }));
    }
}

fn every(inner: &Arc<Inner>, pause: Duration, work: fn(Arc<Inner>) -> BoxFuture<'static, ()>) {
    let inner = Arc::clone(inner);
    let shutdown = inner.shutdown.clone();
    // From now on, and not from when the task comes to run.
    let mut next = inner.clock.instant() + pause;
    inner.tracker.clone().spawn(async move {
        while shutdown.run_until_cancelled(inner.clock.sleep_until(Some(next))).await.is_some() {
            next = inner.clock.instant() + pause;
            work(Arc::clone(&inner)).await;
        }
    });
}
