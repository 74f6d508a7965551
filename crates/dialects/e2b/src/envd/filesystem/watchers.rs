//! Watching by asking: `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher`.
//!
//! A task of its own reads each watcher's events into a bounded buffer. Before an answer the guest puts a mark behind
//! all events so far, so that a client that wrote a file finds the event of it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_engine::guest_error;
use atoll_guest_protocol::messages::ChangeKind;
use prost::Message;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::share::{Share, Taken};
use super::watch::Watching;
use crate::connect::{Fault, Kind};
use crate::envd::Envd;
use crate::wire::filesystem::{
    CreateWatcherResponse, Empty, FilesystemEvent, GetWatcherEventsResponse, WatchRequest, WatcherRequest,
};

/// Most watchers of all sandboxes together; a key leaves some to others.
const WATCHERS_MAX: usize = 4096;
/// Memory of the events that wait for clients of all watchers, bytes. A key leaves some to others: where it has none left, the
/// oldest events of the watcher go.
const WAITING_MAX_BYTES: usize = 256 << 20;
/// Most watchers of one sandbox: no sandbox uses up the room that all share.
const OF_SANDBOX_MAX: usize = 64;
/// Events of a watcher that wait for the client, at most, and the memory that they take, bytes; the oldest go first.
const EVENTS_MAX: usize = 10_000;
const EVENTS_MAX_BYTES: usize = 4 << 20;
/// Memory of an event beside its texts, bytes.
const EVENT_BYTES: usize = 64;
/// How long a watcher lives that no client asks.
const UNASKED: Duration = Duration::from_secs(3600);
/// How long a mark may take to come.
const MARK_WAIT: Duration = Duration::from_secs(5);

/// The watchers of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watchers {
    by_id: Arc<Mutex<HashMap<String, Arc<Watcher>>>>,
    places: Taken,
    waiting: Taken,
}

#[derive(Debug)]
struct Watcher {
    sandbox: SandboxId,
    _place: Share,
    events: Mutex<Waiting>,
    /// The last mark that was passed; `None` when no more events will come.
    passed: watch::Sender<Option<u64>>,
    /// Fires each time a client asks.
    asked: tokio::sync::Notify,
    /// Fires when the watcher is removed.
    removed: CancellationToken,
}

/// Events that wait for the client. A guest may report texts of any length, so their bytes are counted.
#[derive(Debug)]
struct Waiting {
    events: VecDeque<FilesystemEvent>,
    memory: Share,
}

impl Waiting {
    /// The oldest make room. An event for which there is none at all is lost.
    fn push(&mut self, event: FilesystemEvent) {
        let size = Self::size(&event);
        loop {
            let fits = self.events.len() < EVENTS_MAX
                && self.memory.count().saturating_add(size) <= EVENTS_MAX_BYTES;
            if fits && self.memory.grow(size) {
                return self.events.push_back(event);
            }
            let Some(oldest) = self.events.pop_front() else { return };
            self.memory.shrink(Self::size(&oldest));
        }
    }

    fn size(event: &FilesystemEvent) -> usize {
        EVENT_BYTES + event.name.len() + event.entry.as_ref().map_or(0, Message::encoded_len)
    }

    fn take(&mut self) -> Vec<FilesystemEvent> {
        self.memory.shrink(self.memory.count());
        std::mem::take(&mut self.events).into()
    }
}

/// Numbers the marks of all watchers.
static MARK: AtomicU64 = AtomicU64::new(1);

impl Watchers {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Watcher>>> {
        // The map stays usable when a task panics while it holds the lock.
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watcher with this id, if it is one of the caller's sandbox.
    fn find(&self, envd: &Envd, id: &str) -> Result<Arc<Watcher>, Fault> {
        let found = self.table().get(id).cloned();
        found.filter(|watcher| watcher.sandbox == envd.sandbox).ok_or_else(|| {
            let id: String = id.chars().take(64).collect();
            Fault::new(Kind::NotFound, format!("watcher with id {id} not found"))
        })
    }
}

impl Watcher {
    fn events(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads events until the watcher is removed, no client has asked for [`UNASKED`], or the sandbox is gone.
    async fn run(self: &Arc<Self>, mut watching: Watching) {
        loop {
            let event = tokio::select! {
                event = watching.next() => event,
                () = self.asked.notified() => continue,
                () = self.removed.cancelled() => return,
                () = tokio::time::sleep(UNASKED) => return,
            };
            match event {
                Ok(Some(event)) if event.kind() == ChangeKind::Mark => {
                    self.passed.send_replace(Some(event.mark));
                }
                Ok(Some(event)) => {
                    let told = watching.events(&event).await;
                    let mut events = self.events();
                    told.into_iter().for_each(|event| events.push(event));
                }
                Ok(None) => {
                    // The directory is gone; a client can still ask for the events seen before.
                    self.passed.send_replace(None);
                    tokio::select! {
                        () = self.removed.cancelled() => {}
                        () = watching.guest().dead() => {}
                        () = tokio::time::sleep(UNASKED) => {}
                    }
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a watcher ended");
                    return;
                }
            }
        }
    }
}

/// Refuses a new watcher when its sandbox has too many.
fn room(table: &HashMap<String, Arc<Watcher>>, sandbox: &SandboxId) -> Result<(), Fault> {
    if table.values().filter(|other| other.sandbox == *sandbox).count() >= OF_SANDBOX_MAX {
        let why = format!("the sandbox has {OF_SANDBOX_MAX} watchers already: stop some of them");
        return Err(Fault::new(Kind::ResourceExhausted, why));
    }
    Ok(())
}

/// `CreateWatcher`.
pub(super) async fn create(envd: &Envd, request: &WatchRequest) -> Result<CreateWatcherResponse, Fault> {
    let watchers = envd.app.watchers.clone();
    room(&watchers.table(), &envd.sandbox)?;
    let (key, project) = (envd.recorded().key(), envd.recorded().project());
    let mut place = watchers.places.begin(key, project, &envd.sandbox, WATCHERS_MAX);
    if !place.grow(1) {
        return Err(Fault::new(Kind::ResourceExhausted, "there are too many watchers already"));
    }
    let memory = watchers.waiting.begin(key, project, &envd.sandbox, WAITING_MAX_BYTES);
    let watching = Watching::begin(envd, request).await?;
    let random = getrandom::u64().map_err(|error| {
        tracing::error!(%error, "no randomness for a watcher");
        Fault::new(Kind::Internal, "the host's random generator failed")
    })?;
    let id = format!("w{random:016x}");
    let watcher = Arc::new(Watcher {
        sandbox: envd.sandbox.clone(),
        _place: place,
        events: Mutex::new(Waiting { events: VecDeque::new(), memory }),
        passed: watch::Sender::new(Some(0)),
        asked: tokio::sync::Notify::new(),
        removed: CancellationToken::new(),
    });
    {
        let mut table = watchers.table();
        room(&table, &envd.sandbox)?;
        table.insert(id.clone(), Arc::clone(&watcher));
    }
    let (of_task, draining) = (id.clone(), envd.app.host.draining_token());
    let grant = envd.caller.grant.clone();
    let engine = envd.engine().clone();
    tokio::spawn(async move {
        tokio::select! {
            () = watcher.run(watching) => {}
            () = draining.cancelled() => {}
            () = engine.until_revoked(&grant) => {}
        }
        watcher.passed.send_replace(None);
        watchers.table().remove(&of_task);
    });
    Ok(CreateWatcherResponse { watcher_id: id })
}

/// `GetWatcherEvents`.
pub(super) async fn events(envd: &Envd, request: WatcherRequest) -> Result<GetWatcherEventsResponse, Fault> {
    let watcher = envd.app.watchers.find(envd, &request.watcher_id)?;
    watcher.asked.notify_one();
    let mark = MARK.fetch_add(1, Ordering::Relaxed);
    let guest = super::guest(envd).await?;
    let mut passed = watcher.passed.subscribe();
    guest.mark_watches(mark).await.map_err(|error| Fault::of(&guest_error(error)))?;
    let behind = passed.wait_for(|passed| passed.is_none_or(|passed| passed >= mark));
    if tokio::time::timeout(MARK_WAIT, behind).await.is_err() {
        tracing::warn!(sandbox = %envd.id(), "a guest does not report a mark; telling what there is");
    }
    Ok(GetWatcherEventsResponse { events: watcher.events().take() })
}

/// `RemoveWatcher`.
pub(super) fn remove(envd: &Envd, request: &WatcherRequest) -> Result<Empty, Fault> {
    let watcher = envd.app.watchers.find(envd, &request.watcher_id)?;
    envd.app.watchers.table().remove(&request.watcher_id);
    watcher.removed.cancel();
    Ok(Empty {})
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::KeyId;

    fn event(name: &str) -> FilesystemEvent {
        FilesystemEvent { name: name.to_owned(), ..FilesystemEvent::default() }
    }

    /// What waits for the only watcher of a key.
    fn waiting(of: &Taken, key: u64, sandbox: u64, max_bytes: usize) -> Waiting {
        let (key, sandbox) = (KeyId::from_parts(1, key), SandboxId::from_parts(1, sandbox));
        let memory = of.begin(Some(&key), None, &sandbox, max_bytes);
        Waiting { events: VecDeque::new(), memory }
    }

    #[test]
    fn what_waits_for_all_is_bounded_and_a_key_leaves_some_to_others() {
        const MAX_BYTES: usize = 64 << 10;
        let of = Taken::default();
        let mut one: Vec<Waiting> = (0..100).map(|sandbox| waiting(&of, 1, sandbox, MAX_BYTES)).collect();
        for number in 0..100 {
            for waiting in &mut one {
                waiting.push(event(&number.to_string()));
            }
        }
        let has: usize = one.iter().map(|waiting| waiting.memory.count()).sum();
        assert!((MAX_BYTES / 4..=MAX_BYTES / 2).contains(&has), "{has}");
        let mut other = waiting(&of, 2, 1000, MAX_BYTES);
        for number in 0..50 {
            other.push(event(&number.to_string()));
        }
        assert_eq!(other.events.len(), 50);
        drop(one);
        assert_eq!(other.take().len(), 50);
        assert!(other.memory.grow(MAX_BYTES / 2), "all is given back");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut waiting = waiting(&Taken::default(), 1, 1, WAITING_MAX_BYTES);
        for number in 0..EVENTS_MAX + 5 {
            waiting.push(event(&number.to_string()));
        }
        let taken = waiting.take();
        assert_eq!((taken.len(), taken[0].name.as_str()), (EVENTS_MAX, "5"));
        assert_eq!((waiting.memory.count(), waiting.take().len()), (0, 0));
        let long = "x".repeat(1 << 20);
        for _ in 0..10 {
            waiting.push(event(&long));
            assert!(waiting.memory.count() <= EVENTS_MAX_BYTES);
        }
        assert_eq!(waiting.events.len(), 3);
        waiting.push(event(&"x".repeat(EVENTS_MAX_BYTES)));
        assert_eq!((waiting.memory.count(), waiting.events.len()), (0, 0));
    }
}
