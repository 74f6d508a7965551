//! Data that a client sends on its channels, until a session or forwarding takes it.
//!
//! The SSH library offers a client new window when data arrives, not when it was taken, and its own queue between
//! connection and channel makes the connection wait when one channel's is full. Then the client's messages about the
//! other direction are not read, and both sides wait for each other for ever: it happens to every forwarded connection
//! that moves much both ways. So its queue is not used: the connection puts incoming data into the queues here and
//! never waits. These queues are bounded by the window that the client is offered: when they hold much, or those of all the
//! key's connections together do ([`crate::backlog`]), it is next to nothing, until half of the data was taken.
//!
//! The same holds for data of another node's server, where a client's session is on that node.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_engine::Caller;
use bytes::Bytes;
use russh::{ChannelId, Sig};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backlog::{Backlog, Part};

/// Window of a channel: bytes that a client may send at once.
pub(crate) const WINDOW_BYTES: u32 = 1 << 20;
/// Channels of one connection at once that the client opens.
pub(crate) const CHANNELS_MAX_COUNT: usize = 128;
/// Channels of one connection at once that programs inside open, to ports of the client.
pub(crate) const REVERSED_MAX_COUNT: usize = 64;
/// Window that a client is offered while the queues are full, bytes: each arrival is the occasion to offer more again.
const TRICKLE_BYTES: u32 = 2;
/// Pause after each of these, at most: few enough of them to cost nothing.
const TRICKLE_PAUSE: Duration = Duration::from_millis(10);
/// The queues of one connection are full when they hold so much, bytes.
const FULL_BYTES: usize = 4 << 20;
/// More than a client can have sent that keeps to its windows, bytes.
const FLOOD_BYTES: usize = FULL_BYTES + (CHANNELS_MAX_COUNT + REVERSED_MAX_COUNT) * (WINDOW_BYTES as usize);
/// Size that an event counts beside its data, bytes.
const EVENT_BYTES: usize = 64;

/// An event that the other side sent on a channel.
#[derive(Debug)]
pub(crate) enum Event {
    Data(Bytes),
    Eof,
    Resize {
        cols: u32,
        rows: u32,
    },
    Signal(Sig),
    /// Of a server: data of the second stream, standard error.
    Stderr(Bytes),
    /// Of a server: how the command ended.
    Exited(u32),
    /// Of a server: the command was ended by a signal, for a reason.
    Killed(Sig, String),
}

impl Event {
    fn size(&self) -> usize {
        match self {
            Self::Data(bytes) | Self::Stderr(bytes) => EVENT_BYTES + bytes.len(),
            Self::Signal(signal) => EVENT_BYTES + name_bytes(signal),
            Self::Killed(signal, reason) => EVENT_BYTES + name_bytes(signal) + reason.len(),
            Self::Eof | Self::Resize { .. } | Self::Exited(_) => EVENT_BYTES,
        }
    }
}

/// Bytes of the name of a signal that the protocol has no word for.
fn name_bytes(signal: &Sig) -> usize {
    match signal {
        Sig::Custom(name) => name.len(),
        _ => 0,
    }
}

/// Why a client is let go that sends too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMuch {
    /// More than it was offered.
    #[error("the client sent more than its windows allow")]
    Flood,
    /// The key's connections leave no room for it.
    #[error("what waits of the key's connections is too much together")]
    Backlog,
}

/// The queues of one connection. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Inboxes {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    by_channel: Mutex<HashMap<ChannelId, Arc<Queue>>>,
    /// The memory of what is in them.
    part: Part,
    full: AtomicBool,
    /// Told when they are not full any more.
    relieved: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    more: Notify,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// A task reads this queue, or will.
    opened: bool,
    /// No task reads this queue any more: further data is dropped.
    abandoned: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Plain collections: a panic leaves them usable as they are.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inboxes {
    /// Those of a connection whose caller is not known yet.
    pub(crate) fn new(backlog: &Backlog) -> Self {
        let (by_channel, full, relieved) = (Mutex::default(), AtomicBool::new(false), Notify::new());
        Self { shared: Arc::new(Shared { by_channel, part: backlog.part(), full, relieved }) }
    }

    /// What waits counts as this caller's from now on. To be called before anything comes.
    pub(crate) fn belong_to(&self, caller: Option<&Caller>) {
        self.shared.part.belongs_to(caller);
    }

    /// The queue of a channel, made when first asked for: data may come before the task that reads it.
    fn queue(&self, channel: ChannelId) -> Arc<Queue> {
        Arc::clone(lock(&self.shared.by_channel).entry(channel).or_default())
    }

    /// Gives the inbox of a channel. To be called once for each channel.
    pub(crate) fn open(&self, channel: ChannelId) -> Inbox {
        let queue = self.queue(channel);
        lock(&queue.state).opened = true;
        Inbox { shared: Arc::clone(&self.shared), queue }
    }

    /// Puts an event into its channel's queue.
    ///
    /// # Errors
    /// [`TooMuch`]: the client is to be let go.
    pub(crate) fn put(&self, channel: ChannelId, event: Event) -> Result<(), TooMuch> {
        let queue = self.queue(channel);
        let mut state = lock(&queue.state);
        if state.abandoned {
            return Ok(());
        }
        if !self.shared.part.take(event.size()) {
            return Err(TooMuch::Backlog);
        }
        let held = self.shared.part.held();
        state.events.push_back(event);
        drop(state);
        queue.more.notify_one();
        if held > FULL_BYTES {
            self.shared.full.store(true, Ordering::Relaxed);
        }
        if held > FLOOD_BYTES { Err(TooMuch::Flood) } else { Ok(()) }
    }

    /// The channel is closed; events in its queue can still be read, by the task that has its inbox.
    pub(crate) fn close(&self, channel: ChannelId) {
        let Some(queue) = lock(&self.shared.by_channel).remove(&channel) else { return };
        queue.closed.cancel();
        if !lock(&queue.state).opened {
            self.shared.abandon(&queue);
        }
    }

    /// The connection is gone.
    pub(crate) fn close_all(&self) {
        for (_, queue) in lock(&self.shared.by_channel).drain() {
            queue.closed.cancel();
        }
    }

    /// The window that a client is to be offered now.
    pub(crate) fn window(&self) -> u32 {
        if self.shared.is_full() { TRICKLE_BYTES } else { WINDOW_BYTES }
    }

    /// Slows down a client that sends `len` bytes at a time because it was offered no more.
    pub(crate) async fn pace(&self, len: usize) {
        let relieved = self.shared.relieved.notified();
        if len <= TRICKLE_BYTES as usize && self.shared.is_full() {
            // Either will do.
            tokio::time::timeout(TRICKLE_PAUSE, relieved).await.unwrap_or_default();
        }
    }
}

/// Reads the queue of one channel. Data that comes after this is dropped is thrown away.
#[derive(Debug)]
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
}

impl Inbox {
    /// The next event; `None` when the channel is closed and everything was read.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let event = lock(&self.queue.state).events.pop_front();
            if let Some(event) = event {
                self.shared.taken(event.size());
                return Some(event);
            }
            tokio::select! {
                () = self.queue.more.notified() => {}
                () = self.queue.closed.cancelled() => {
                    if lock(&self.queue.state).events.is_empty() {
                        return None;
                    }
                }
            }
        }
    }

    /// Resolves when the client closed the channel, or is gone, also while events are in the queue.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        self.queue.closed.clone().cancelled_owned()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.abandon(&self.queue);
    }
}

impl Shared {
    /// No more is kept in this queue.
    fn abandon(&self, queue: &Queue) {
        let mut state = lock(&queue.state);
        state.abandoned = true;
        let rest = std::mem::take(&mut state.events);
        drop(state);
        self.taken(rest.iter().map(Event::size).sum());
    }

    fn taken(&self, size: usize) {
        let left = self.part.give_back(size);
        if left < FULL_BYTES / 2 && self.full.swap(false, Ordering::Relaxed) {
            self.relieved.notify_waiters();
        }
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) || self.part.is_much()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::KeyId;
    use atoll_core::key::Scope;
    use atoll_engine::VerifiedKey;

    fn channel(number: u32) -> ChannelId {
        use russh::keys::ssh_encoding::Decode as _;
        ChannelId::decode(&mut &number.to_be_bytes()[..]).unwrap()
    }

    fn inboxes() -> Inboxes {
        Inboxes::new(&Backlog::default())
    }

    fn data(len: usize) -> Event {
        Event::Data(Bytes::from(vec![7; len]))
    }

    #[tokio::test]
    async fn what_came_is_read_in_order_also_after_the_end() {
        let inboxes = inboxes();
        inboxes.put(channel(1), data(3)).unwrap();
        let mut inbox = inboxes.open(channel(1));
        inboxes.put(channel(1), Event::Eof).unwrap();
        inboxes.close(channel(1));
        inbox.closed().await;
        assert!(matches!(inbox.next().await, Some(Event::Data(bytes)) if bytes.len() == 3));
        assert!(matches!(inbox.next().await, Some(Event::Eof)));
        assert!(inbox.next().await.is_none());
    }

    #[tokio::test]
    async fn a_full_queue_closes_the_window_until_half_is_taken() {
        let inboxes = inboxes();
        let mut inbox = inboxes.open(channel(1));
        assert_eq!(inboxes.window(), WINDOW_BYTES);
        let mut count = 0;
        while inboxes.window() == WINDOW_BYTES {
            inboxes.put(channel(1), data(1 << 20)).unwrap();
            count += 1;
        }
        assert_eq!(count, FULL_BYTES >> 20);
        // The other side is not held up for long, even by full queues.
        inboxes.pace(1).await;
        inboxes.pace(1 << 20).await;
        let mut taken = 0;
        while inboxes.window() == TRICKLE_BYTES {
            inbox.next().await.unwrap();
            taken += 1;
        }
        assert!(taken > count / 2 - 2 && taken <= count, "{taken} of {count}");
    }

    #[tokio::test]
    async fn a_client_that_ignores_its_windows_is_noticed() {
        let inboxes = inboxes();
        let inbox = inboxes.open(channel(1));
        let refused = (0..=FLOOD_BYTES >> 20).find_map(|_| inboxes.put(channel(1), data(1 << 20)).err());
        assert_eq!(refused, Some(TooMuch::Flood));
        // Data of a channel without a reader is not kept.
        drop(inbox);
        assert_eq!(inboxes.shared.part.held(), 0);
        inboxes.put(channel(1), data(1 << 20)).unwrap();
        assert_eq!((inboxes.shared.part.held(), inboxes.window()), (0, WINDOW_BYTES));
    }

    #[test]
    fn names_of_signals_count_as_long_as_they_are() {
        let inboxes = inboxes();
        let _reader = inboxes.open(channel(1));
        inboxes.put(channel(1), Event::Signal(Sig::Custom("x".repeat(30_000)))).unwrap();
        assert!(inboxes.shared.part.held() >= 30_000);
    }

    #[tokio::test]
    async fn what_waits_of_one_keys_connections_is_bounded_together_and_leaves_room_to_others() {
        const MOST: usize = 64 << 20;
        let backlog = Backlog::new(MOST);
        let of = |key| {
            let id = KeyId::from_parts(1, key);
            let key = VerifiedKey { id, login: None, project: None, scope: Scope::Manage };
            let inboxes = Inboxes::new(&backlog);
            inboxes.belong_to(Some(&Caller::of(&key)));
            inboxes
        };
        let (first, second, another) = (of(1), of(1), of(2));
        let reader = first.open(channel(1));
        let put = |inboxes: &Inboxes| inboxes.put(channel(1), data(1 << 20));
        let count = (0..MOST >> 20).take_while(|_| put(&first).is_ok()).count();
        assert_eq!(count, (MOST >> 21) - 1, "half of all, with what each event takes beside its data");
        assert_eq!((put(&second), second.window()), (Err(TooMuch::Backlog), TRICKLE_BYTES));
        assert_eq!((put(&another), another.window()), (Ok(()), WINDOW_BYTES));
        // A channel without a reader leaves nothing behind, nor does a connection.
        drop((reader, first));
        assert_eq!((put(&second), second.window()), (Ok(()), WINDOW_BYTES));
        second.close(channel(1));
        assert_eq!(second.shared.part.held(), 0);
    }
}
