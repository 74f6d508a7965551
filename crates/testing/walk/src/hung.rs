//! Clients that hang up in the middle of a request. A change that has begun runs to its end, so memory, store and host say
//! the same; and a sandbox of which no client was told, and that none can ask for again, is deleted.
//!
//! hyper drops the future that answers a request when its client goes. So does this walk, after each number of polls.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::sandbox::SandboxState;
use atoll_isolation::{Artifacts as _, Isolation as _};
use atoll_store::{SandboxFilter, SnapshotFilter};
use axum::body::Body;
use axum::http::Request;
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt as _;

use crate::world::DEADLINE;
use crate::{Call, Protocol, Route, World};

/// A request that is not polled again for this long waits for something that does not come: its client goes.
const PATIENCE: Duration = Duration::from_millis(500);
/// Nothing is polled so often before it is answered.
const POLLS_MAX: u32 = 1000;

/// How a request ended whose client hung up, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// It was answered before that.
    Answered,
    HungUp,
    /// It would have waited longer: there are no more points to hang up at.
    Waits,
}

/// Hangs up at every point of every request that may change something. Gives how often a client hung up.
pub async fn hung_up<P: Protocol>(world: &World, protocol: &P) -> usize {
    let owner = world.key(Scope::Admin).await;
    let mut count = 0;
    let changes = |route: &Route| !["GET", "HEAD", "OPTIONS"].contains(&route.method);
    for (number, route) in protocol.routes().into_iter().filter(changes).enumerate() {
        for polls in 1.. {
            assert!(polls < POLLS_MAX, "{route:?} is never answered");
            let on = world.objects(&owner, &format!("hung-{number}-{polls}")).await;
            let shown = protocol.shown(world, &owner, &on);
            let cut = cut(world, protocol.call(&route, &on, Some(&shown)), polls).await;
            let what = format!("{route:?}, {cut:?} after {polls} polls");
            let untold = |id: &SandboxId| cut != Cut::Answered && *id != on.sandbox;
            eventually(&what, async || agrees(world, &untold).await).await;
            if cut == Cut::HungUp {
                // The fake lacks what some routes need: only that it is answered counts.
                world.ask(protocol, &route, &on, Some(&shown)).await;
                eventually(&what, async || agrees(world, &|_: &SandboxId| false).await).await;
            }
            remove_all(world).await;
            if cut != Cut::HungUp {
                break;
            }
            count += 1;
        }
    }
    count
}

/// Sends a request and hangs up after `polls`.
async fn cut(world: &World, call: Call, polls: u32) -> Cut {
    let mut request =
        Request::builder().method(call.method.as_str()).uri(&call.path).header("host", &world.address);
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    let request = request.body(Body::from(call.body)).expect("a request");
    let mut answer = Box::pin(world.router.clone().oneshot(request));
    let mut left = polls;
    let answered = poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(Cut::HungUp);
        }
        left -= 1;
        answer.as_mut().poll(cx).map(|answer| {
            drop(answer);
            Cut::Answered
        })
    });
    timeout(PATIENCE, answered).await.unwrap_or(Cut::Waits)
}

/// Whether memory, store and host say the same, every sandbox is at rest, and none is there that should not be.
async fn agrees(world: &World, untold: &impl Fn(&SandboxId) -> bool) -> bool {
    let rows =
        world.store.list_sandboxes(&SandboxFilter::default(), None, 1000).await.expect("sandboxes").items;
    let same = rows.iter().all(|row| {
        world.engine.sandbox(&row.id).is_ok_and(|seen| {
            let settled = matches!(row.state, SandboxState::Running | SandboxState::Paused);
            settled && (seen.state, &seen.name, &seen.labels) == (row.state, &row.name, &row.labels)
        })
    });
    let known: u64 = world.engine.stats().sandboxes.values().sum();
    let driver = world.host.driver();
    let on_host: BTreeSet<_> =
        driver.scan().await.expect("a host").into_iter().map(|found| found.sandbox).collect();
    let stored: BTreeSet<_> = rows.iter().map(|row| row.id.clone()).collect();
    let snapshots =
        world.store.list_snapshots(&SnapshotFilter::default(), None, 1000).await.expect("snapshots");
    let snapshots: BTreeSet<_> = snapshots.items.into_iter().map(|one| one.id).collect();
    let artifacts: BTreeSet<_> = driver.artifacts().await.expect("artifacts").into_iter().collect();
    // Members of pools have no rows; the results of steps and the disks of templates are not listed.
    let leaks = world.engine.leaks().await.expect("leaks").is_empty()
        && world.engine.leaked_artifacts().await.expect("leaks").is_empty();
    let there = stored.is_subset(&on_host) && snapshots.is_subset(&artifacts) && leaks;
    same && known == rows.len() as u64 && there && !stored.iter().any(untold)
}

/// Removes every sandbox and snapshot.
async fn remove_all(world: &World) {
    for (id, _) in world.engine.owners() {
        drop(world.engine.delete_sandbox(&id).await);
    }
    let snapshots =
        world.store.list_snapshots(&SnapshotFilter::default(), None, 1000).await.expect("snapshots");
    for snapshot in snapshots.items {
        // A template may have it.
        drop(world.engine.delete_snapshot(&snapshot.id, None, &atoll_engine::Caller::system()).await);
    }
}

async fn eventually(what: &str, mut attempt: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !attempt().await {
        assert!(Instant::now() < until, "memory, store and host do not come to agree: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
