//! Machines that are all but a sandbox: an image and an empty disk mounted, a command run.
//!
//! A machine that was restored as it had booted does everything for the first time when it becomes a sandbox, which
//! under emulation takes most of its creation. So once a sandbox has been made of an image, the driver makes another
//! machine of the same image and size in the background, runs a command in it, and copies it with its memory as it
//! copies a sandbox for a fork. The following sandboxes go on from the copy. They share only what the image brings: the
//! copy holds nothing of any sandbox.
//!
//! ```text
//! <storage>/prepared/<number>/   an artifact with memory; emptied at start
//! ```

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_guest_protocol::client::{ExecEvent, GuestClient, GuestError};
use atoll_guest_protocol::control::Question;
use atoll_guest_protocol::messages::StartExec;
use atoll_isolation::{IsolationError, Plan};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::record::Size;
use crate::step::Step;
use crate::template::{self, Booting};
use crate::vmm;
use crate::{Inner, chain};

/// Kinds that are kept; the one that was unused for longest goes first. Each takes about 100 MiB of disk.
const KINDS_MAX: usize = 8;
/// Pause before a machine is prepared: the client that has just made a sandbox is about to use it.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest that the command in the machine may take. Whether it succeeds does not matter.
const REHEARSAL_MAX: Duration = Duration::from_secs(20);
/// Longest that it may take to write its disk out, and to let it go on. One that takes longer is not used: others wait to
/// be prepared.
const STILL_MAX: Duration = Duration::from_secs(20);
/// How long the machine is left alone after its command, when its disk has been written out: agent and kernel tidy up.
/// Work that is not done by then every copy would do again.
const QUIET: Duration = Duration::from_secs(2);
/// The command that it runs, if the image has it: one program found as commands are found, and one found by a shell.
const REHEARSAL: [&str; 3] = ["sh", "-c", "env true"];

/// What a prepared machine is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    image: PathBuf,
    /// Tells a file that was made anew from the one before: what the machine remembers of it must be true.
    image_inode: u64,
    image_changed_ns: i64,
    size: Size,
    disk_bytes: u64,
}

impl Kind {
    /// Of a machine for this plan.
    pub(crate) fn of(plan: &Plan, image: &Path) -> Result<Self, IsolationError> {
        let file = fs::metadata(image).step("look at an image")?;
        Ok(Self {
            image: image.to_owned(),
            image_inode: file.ino(),
            image_changed_ns: file.ctime().wrapping_mul(1_000_000_000).wrapping_add(file.ctime_nsec()),
            size: template::size(&plan.resources),
            disk_bytes: plan.resources.disk_bytes,
        })
    }
}

/// The prepared machines that there are.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// The newest used is the last.
    kinds: Vec<(Kind, PathBuf)>,
    /// The one that is being made: one at a time.
    making: Option<JoinHandle<()>>,
    /// Whether no more are made.
    closed: watch::Sender<bool>,
}

impl Inner {
    fn prepared(&self) -> MutexGuard<'_, Prepared> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a machine of this kind lies.
    pub(crate) fn prepared_for(&self, kind: &Kind) -> Option<PathBuf> {
        let mut prepared = self.prepared();
        let at = prepared.kinds.iter().position(|(other, _)| other == kind)?;
        let found = prepared.kinds.remove(at);
        let dir = found.1.clone();
        prepared.kinds.push(found);
        Some(dir)
    }

    /// Forgets one that could not be used.
    pub(crate) fn forget_prepared(&self, dir: &Path) {
        self.prepared().kinds.retain(|(_, other)| other != dir);
        remove(dir);
    }

    /// Has a machine like this one made, soon and in the background, unless there is one.
    pub(crate) fn prepare_later(self: &Arc<Self>, kind: Kind, plan: &Plan) {
        if !self.config.prepares {
            return;
        }
        let mut prepared = self.prepared();
        let there = prepared.kinds.iter().any(|(other, _)| *other == kind);
        let busy = prepared.making.as_ref().is_some_and(|task| !task.is_finished());
        if there || busy || *prepared.closed.borrow() {
            return;
        }
        let (inner, plan, mut closed) = (Arc::clone(self), plan.clone(), prepared.closed.subscribe());
        prepared.making = Some(tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = closed.wait_for(|closed| *closed) => return,
            }
            match inner.prepare(&plan).await {
                Ok(dir) => inner.keep_prepared(kind, dir),
                Err(error) if *closed.borrow() => {
                    tracing::debug!(error = chain(&error), "a machine was not prepared to its end");
                }
                Err(error) => tracing::warn!(error = chain(&error), "a machine could not be prepared"),
            }
        }));
    }

    fn keep_prepared(&self, kind: Kind, dir: PathBuf) {
        let mut prepared = self.prepared();
        prepared.kinds.push((kind, dir));
        if prepared.kinds.len() > KINDS_MAX {
            // Machines that run from it have it open.
            remove(&prepared.kinds.remove(0).1);
        }
    }

    /// Prepares no more machines. Waits until one that is being made is ready or removed, but not for what runs in it: cut
    /// off, it would leave half a machine to be removed.
    pub(crate) async fn stop_preparing(&self) {
        let making = {
            let mut prepared = self.prepared();
            prepared.closed.send_replace(true);
            prepared.making.take()
        };
        if let Some(making) = making {
            drop(making.await);
        }
    }

    /// Makes one; gives where it lies.
    async fn prepare(self: &Arc<Self>, plan: &Plan) -> Result<PathBuf, IsolationError> {
        let booting = Booting::new(self)?;
        let id = booting.id().clone();
        let dir = self.config.storage.prepared().join(id.as_str());
        DirBuilder::new().mode(0o700).create(&dir).step("make the directory of a prepared machine")?;
        let resources =
            Resources { io_bytes_per_second: None, io_operations_per_second: None, ..plan.resources };
        // As long as those of most sandboxes: files that hold it are written over where they lie.
        let plan = Plan { hostname: id.to_string(), id, resources, ..plan.clone() };
        let made = self.make_and_copy(&plan, &dir).await;
        let removed = self.destroy(booting.id()).await;
        booting.end(made.and(removed)).inspect_err(|_| remove(&dir))?;
        Ok(dir)
    }

    async fn make_and_copy(self: &Arc<Self>, plan: &Plan, dir: &Path) -> Result<(), IsolationError> {
        let disk = self.claim_disk(plan).await?;
        self.create_on(plan, disk).await?;
        let mut closed = self.prepared().closed.subscribe();
        tokio::select! {
            settled = self.settle_down(&plan.id) => settled?,
            // What the image brings may take its time for all of that: a server that stops does not wait for it.
            _ = closed.wait_for(|closed| *closed) => return Err(stopping()),
        }
        // Nothing runs in it that would have to stand still first, and it does not go on.
        let mut qmp = vmm::monitor(&self.record(&plan.id)).await?;
        self.stop_and_copy(&plan.id, &mut qmp, dir).await?;
        self.keep_copy(&plan.id, dir).await
    }

    /// Has a command run in a machine and its disk written out, and leaves it alone for a while.
    async fn settle_down(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let stream = self.connect(id).await?;
        let rehearsed = tokio::time::timeout(REHEARSAL_MAX, rehearse(stream, id)).await;
        if let Ok(Err(error)) = rehearsed {
            tracing::debug!(error = chain(&error), "a prepared machine has run no command");
        }
        // What this one has not written out every copy would, within half a minute, and translate all the code for it.
        let machine = self.living(id)?;
        for still in [true, false] {
            machine.ask(Question::Still(still), STILL_MAX).await?;
        }
        tokio::time::sleep(QUIET).await;
        Ok(())
    }
}

/// Why a machine is not prepared to its end when the server stops.
fn stopping() -> IsolationError {
    IsolationError::Unavailable("the server stops".to_owned())
}

/// Runs a command as the first sandbox will, so that what it takes is in memory.
async fn rehearse(stream: Box<dyn atoll_isolation::GuestStream>, id: &SandboxId) -> Result<(), GuestError> {
    let (client, _welcome) = GuestClient::connect(stream, id.as_str()).await?;
    let request = StartExec {
        exec_id: id.to_string(),
        argv: REHEARSAL.map(str::to_owned).into(),
        user: "root".to_owned(),
        ..StartExec::default()
    };
    let mut stream = client.start_exec(request).await?;
    while let Some(event) = stream.next().await? {
        if matches!(event, ExecEvent::Exited(_)) {
            break;
        }
    }
    client.forget_exec(id.as_str()).await
}

fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), %error, "a prepared machine could not be removed");
    }
}
