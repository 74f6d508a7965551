//! [`Recorder`]: takes events from anywhere, and has one thread write them down, and another compress what is written.

mod packer;
mod queue;
mod thread;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::trace::TraceMode as Mode;
use tokio::sync::{broadcast, mpsc};

use crate::abroad::{self, Adopted};
use crate::clip::clip;
use crate::journal::{Reader, by_server};
use crate::{Event, PublicKey, SigningKey, What, Witness};

use packer::Packer;
use queue::{Closing, Journal};
use thread::{Work, run};

/// Sandboxes whose activity a subscriber has not looked at yet; a slower subscriber looks at all sandboxes.
const ACTIVITY_MAX_COUNT: usize = 1024;

/// How long a journal is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Closed segments older than this go, and whole journals of sandboxes that are gone.
    pub age: Duration,
    /// Most bytes of the closed segments of one sandbox.
    pub bytes: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age: Duration::from_hours(30 * 24), bytes: 256 << 20 }
    }
}

/// The settings that the recorder gets when it starts.
#[derive(Debug)]
pub struct Config {
    /// Where journals lie, one directory for each sandbox.
    pub dir: PathBuf,
    /// The key that signs checkpoints.
    pub key: SigningKey,
    /// How long they are kept.
    pub keep: Retention,
}

/// Why something is not in the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox's journal cannot be written: {0}")]
pub struct NotWritten(pub String);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) key: Arc<SigningKey>,
    pub(crate) keep: Retention,
    journals: Mutex<HashMap<SandboxId, Arc<Journal>>>,
    /// See [`Recorder::has_begun_all`].
    complete: AtomicBool,
    pub(crate) work: Work,
    pub(crate) packer: Packer,
    /// Sandboxes that must stand still because their strict journal cannot be written.
    pub(crate) failing: mpsc::UnboundedSender<SandboxId>,
    pub(crate) activity: broadcast::Sender<SandboxId>,
}

impl Shared {
    /// Whether a sandbox is recorded now.
    fn is_open(&self, sandbox: &SandboxId) -> bool {
        lock(&self.journals).contains_key(sandbox)
    }

    /// Whether a journal that is not open is that of a sandbox that is gone.
    fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }
}

/// Records what happens to sandboxes. Clones share it.
#[derive(Debug, Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
    inbox: Arc<Mutex<Option<mpsc::UnboundedReceiver<SandboxId>>>>,
    threads: Arc<Mutex<Option<Threads>>>,
}

#[derive(Debug)]
struct Threads {
    writes: JoinHandle<()>,
    packs: JoinHandle<()>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here is left half changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Starts the threads that write and compress.
    ///
    /// # Errors
    /// When the directory or a thread cannot be made.
    pub fn open(config: Config) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.dir)?;
        let (failing, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            dir: config.dir,
            key: Arc::new(config.key),
            keep: config.keep,
            journals: Mutex::default(),
            complete: AtomicBool::new(false),
            work: Work::default(),
            packer: Packer::default(),
            failing,
            activity: broadcast::channel(ACTIVITY_MAX_COUNT).0,
        });
        let (writes, packs) = (Arc::clone(&shared), Arc::clone(&shared));
        let start = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let threads = Threads {
            writes: start("recorder").spawn(move || run(&writes))?,
            packs: start("recorder-packs").spawn(move || packer::run(&packs))?,
        };
        Ok(Self {
            shared,
            inbox: Arc::new(Mutex::new(Some(inbox))),
            threads: Arc::new(Mutex::new(Some(threads))),
        })
    }

    /// Begins to record a sandbox, or goes on where an earlier server ended. `owner` is the key that made it.
    pub fn begin(&self, sandbox: &SandboxId, owner: Option<String>, mode: Mode) {
        if mode == Mode::Off {
            return;
        }
        let mut journals = lock(&self.shared.journals);
        if journals.contains_key(sandbox) {
            return;
        }
        let journal = Arc::new(Journal::new(sandbox.clone(), owner, mode));
        journals.insert(sandbox.clone(), Arc::clone(&journal));
        drop(journals);
        // Opened now, not with the first event: the thread says at once what an earlier server left.
        self.shared.work.wake(&journal);
    }

    /// Says that every sandbox that lives was [begun](Self::begin): a journal of which nothing was heard until now is that of
    /// a sandbox that is gone, and is removed when it is too old. Before that none is removed.
    pub fn has_begun_all(&self) {
        self.shared.complete.store(true, Ordering::Release);
    }

    /// How a sandbox is recorded.
    #[must_use]
    pub fn mode(&self, sandbox: &SandboxId) -> Mode {
        self.find(sandbox).map_or(Mode::Off, |journal| journal.mode)
    }

    fn find(&self, sandbox: &SandboxId) -> Option<Arc<Journal>> {
        lock(&self.shared.journals).get(sandbox).cloned()
    }

    /// Records an event of a sandbox that was begun; nothing happens for others. Never waits.
    pub fn record(&self, sandbox: &SandboxId, mut event: Event) {
        let Some(journal) = self.find(sandbox) else { return };
        clip(&mut event);
        if !journal.enter(event, &self.shared.work) {
            journal.lose(1);
        }
        self.shared.work.wake(&journal);
    }

    /// The same for what this server does, now.
    pub fn note(&self, sandbox: &SandboxId, what: What) {
        self.record(sandbox, by_server(crate::now_us(), what));
    }

    /// Says that a witness lost events of a sandbox before they came here.
    pub fn lose(&self, sandbox: &SandboxId, count: u64) {
        let Some(journal) = self.find(sandbox) else { return };
        journal.lose(count);
        self.shared.work.wake(&journal);
    }

    /// Waits until everything that was recorded of a sandbox is in its journal.
    ///
    /// # Errors
    /// [`NotWritten`] as soon as a write failed.
    pub async fn written(&self, sandbox: &SandboxId) -> Result<(), NotWritten> {
        match self.find(sandbox) {
            Some(journal) => journal.written().await,
            None => Ok(()),
        }
    }

    /// The same, for a thread that may block.
    ///
    /// # Errors
    /// As [`Self::written`].
    pub fn wait_written(&self, sandbox: &SandboxId) -> Result<(), NotWritten> {
        futures::executor::block_on(self.written(sandbox))
    }

    /// The last events of one witness that are in a journal, at most so many, oldest first: for a witness that goes on
    /// where an earlier server stopped. Blocking.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn last(&self, sandbox: &SandboxId, witness: Witness, max: usize) -> io::Result<Vec<Event>> {
        let mut last = std::collections::VecDeque::new();
        let mut reader = self.reader(sandbox, 1);
        loop {
            let events = reader.read()?;
            if events.is_empty() {
                return Ok(last.into());
            }
            for event in events.into_iter().filter(|event| event.event.witness == witness) {
                if last.len() == max {
                    last.pop_front();
                }
                last.push_back(event.event);
            }
        }
    }

    /// Ends the journal of a sandbox that is gone; it stays.
    pub fn end(&self, sandbox: &SandboxId) {
        let journal = lock(&self.shared.journals).remove(sandbox);
        if let Some(journal) = journal {
            journal.close(Closing::Ended);
            self.shared.work.wake(&journal);
        }
    }

    /// Waits until everything that was recorded of a sandbox is in its journal and signed.
    ///
    /// # Errors
    /// As [`Self::written`].
    pub async fn signed(&self, sandbox: &SandboxId) -> Result<(), NotWritten> {
        let Some(journal) = self.find(sandbox) else { return Ok(()) };
        let demand = journal.demand();
        self.shared.work.wake(&journal);
        journal.met(demand).await
    }

    /// Records a sandbox no longer, because another host does from now on: all of it is in the journal and signed when
    /// this returns. [`Self::begin`] goes on here after all.
    ///
    /// # Errors
    /// As [`Self::written`]: then it is still recorded, unless it failed at the very end.
    pub async fn pause(&self, sandbox: &SandboxId) -> Result<(), NotWritten> {
        self.written(sandbox).await?;
        let journal = lock(&self.shared.journals).remove(sandbox);
        let Some(journal) = journal else { return Ok(()) };
        journal.close(Closing::Paused);
        self.shared.work.wake(&journal);
        journal.all_written().await
    }

    /// Takes up the journal of a sandbox that another host has recorded until now: `coming` has a directory of the
    /// sandbox's name with the files of [`pieces`](crate::pieces), as they come from where everybody may have written.
    /// It is looked at once, and moved. Files that are not as the recorder wrote them are set aside, and so is a journal
    /// of the sandbox that lies here and lacks what came. [`Self::begin`] goes on behind it, and says in it what may be
    /// missing. Blocking.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] when the sandbox is recorded here now; what the file system says.
    pub fn adopt(&self, sandbox: &SandboxId, coming: &std::path::Path) -> io::Result<Adopted> {
        self.must_rest(sandbox)?;
        abroad::adopt(&self.shared.dir, coming, sandbox, &self.public_key())
    }

    /// Sets the journal of a sandbox aside, if there is one: another host has gone on with it. It is removed when it is as
    /// old as journals get. Blocking.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub fn set_aside(&self, sandbox: &SandboxId) -> io::Result<()> {
        self.must_rest(sandbox)?;
        abroad::set_aside(&self.shared.dir, sandbox)
    }

    /// Removes the journal of a sandbox, if there is one: another host has all of it. Blocking.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub fn forget(&self, sandbox: &SandboxId) -> io::Result<()> {
        self.must_rest(sandbox)?;
        match std::fs::remove_dir_all(self.shared.dir.join(sandbox.as_str())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn must_rest(&self, sandbox: &SandboxId) -> io::Result<()> {
        if self.shared.is_open(sandbox) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.shared.packer.let_go(sandbox);
        Ok(())
    }

    /// Writes everything down, says in each journal that the server stops, compresses what has ended, and ends the threads.
    pub async fn close(&self) {
        let journals: Vec<_> = lock(&self.shared.journals).drain().map(|(_, journal)| journal).collect();
        for journal in journals {
            journal.close(Closing::Paused);
            self.shared.work.wake(&journal);
        }
        self.shared.work.stop();
        let threads = lock(&self.threads).take();
        let Some(Threads { writes, packs }) = threads else { return };
        let shared = Arc::clone(&self.shared);
        let joined = tokio::task::spawn_blocking(move || {
            let wrote = writes.join();
            // Nothing has to be compressed after what was written last.
            shared.packer.stop();
            wrote.and(packs.join())
        });
        if !matches!(joined.await, Ok(Ok(()))) {
            tracing::error!("a thread of the recorder panicked");
        }
    }

    /// Sandboxes that must stand still because their strict journal cannot be written. The first caller gets it.
    #[must_use]
    pub fn failing(&self) -> Option<mpsc::UnboundedReceiver<SandboxId>> {
        lock(&self.inbox).take()
    }

    /// Which sandboxes have new events, from now on. A subscriber that is slow misses some, and is told so.
    #[must_use]
    pub fn activity(&self) -> broadcast::Receiver<SandboxId> {
        self.shared.activity.subscribe()
    }

    /// Reads a journal from a number on, whether or not its sandbox is there.
    #[must_use]
    pub fn reader(&self, sandbox: &SandboxId, from: u64) -> Reader {
        Reader::new(&self.shared.dir, sandbox, from)
    }

    /// Where journals lie.
    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        &self.shared.dir
    }

    /// How long journals are kept, and how much of one.
    #[must_use]
    pub fn retention(&self) -> Retention {
        self.shared.keep
    }

    /// The public key that verifies the journals.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.shared.key.public()
    }
}

#[cfg(test)]
mod tests;
