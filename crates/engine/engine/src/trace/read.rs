//! Reading journals: which callers may, from where, which events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{ExecId, KeyId, ProjectId, SandboxId};
use atoll_core::{Code, Error, Result};
use atoll_recorder::event::KINDS;
use atoll_recorder::{Numbered, Reader, Recorder, Report, journals, verify};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::elsewhere::{base, has_ended};
use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::sandbox::SandboxShared;

/// A reader looks again after this, even if the recorder told it of no activity.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// An event and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedEvent {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The event.
    pub event: Numbered,
}

/// Which events are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Of these kinds; all when empty.
    pub kinds: BTreeSet<String>,
    /// Of this exec.
    pub exec: Option<ExecId>,
    /// Not older than this, microseconds since the epoch.
    pub since_us: u64,
}

impl TraceFilter {
    /// Checks the filter that a caller gives.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a kind that does not exist.
    pub fn validate(&self) -> Result<()> {
        match self.kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
            None => Ok(()),
            Some(kind) => {
                let kind = atoll_core::error::shorten(kind);
                Err(Error::invalid("kind", format_args!("'{kind}' is not one"))
                    .hint(format!("kinds are {}", KINDS.join(", "))))
            }
        }
    }

    fn takes(&self, event: &Numbered) -> bool {
        let event = &event.event;
        event.at_us >= self.since_us
            && (self.kinds.is_empty() || self.kinds.contains(event.what.kind()))
            && (self.exec.is_none() || self.exec == event.exec)
    }
}

/// A journal that is being read.
type Reading = tokio::task::JoinHandle<(Reader, std::io::Result<Vec<Numbered>>)>;

/// Reads events, waiting for more where there are none yet.
#[derive(Debug)]
pub struct EventReader {
    recorder: Recorder,
    /// Whose sandboxes, for a reader of many; such a reader finds new ones by their activity.
    of: Option<Whose>,
    readers: Vec<(SandboxId, Reader)>,
    /// The sandbox, for a reader of one that is here: its journal may go on on another node.
    here: Option<Arc<SandboxShared>>,
    /// The one of them that is read now.
    reading: Option<(SandboxId, Reading)>,
    filter: TraceFilter,
    activity: broadcast::Receiver<SandboxId>,
    /// Journals that may have something; all of them at first.
    fresh: BTreeSet<SandboxId>,
}

impl EventReader {
    /// Where a reader of one sandbox goes on.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.readers.first().map_or(0, |(_, reader)| reader.position())
    }

    /// The next events that are there and wanted. Empty: there are none now. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// [`Code::Internal`] when a journal cannot be read.
    #[boxed]
    pub async fn next_now(&mut self) -> Result<Vec<TracedEvent>> {
        loop {
            if self.reading.is_none() && !self.begin_reading() {
                return Ok(Vec::new());
            }
            let Some((id, task)) = &mut self.reading else { return Ok(Vec::new()) };
            let (id, read) = (id.clone(), task.await);
            self.reading = None;
            let (reader, events) = read.map_err(|_panicked| unreadable())?;
            self.readers.push((id.clone(), reader));
            let events = events.map_err(|error| {
                tracing::error!(sandbox = %id, %error, "a journal cannot be read");
                unreadable()
            })?;
            if events.is_empty() {
                self.fresh.remove(&id);
                continue;
            }
            let wanted = events.into_iter().filter(|event| self.filter.takes(event));
            let wanted: Vec<_> = wanted.map(|event| TracedEvent { sandbox: id.clone(), event }).collect();
            if !wanted.is_empty() {
                return Ok(wanted);
            }
        }
    }

    /// Starts to read a journal that may have something; `false`: there is none. The task is kept until its outcome is
    /// taken, so that a caller that gives up waiting loses nothing.
    fn begin_reading(&mut self) -> bool {
        while let Some(id) = self.fresh.first().cloned() {
            let Some(at) = self.readers.iter().position(|(known, _)| *known == id) else {
                self.fresh.remove(&id);
                continue;
            };
            let (_, mut reader) = self.readers.swap_remove(at);
            let task = tokio::task::spawn_blocking(move || {
                let events = reader.read();
                (reader, events)
            });
            self.reading = Some((id, task));
            return true;
        }
        false
    }

    /// The same, and waits for the first. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// As [`Self::next_now`]; [`Code::NodeUnavailable`] when the sandbox has gone to another node, where the journal goes
    /// on with the number behind the last.
    #[boxed]
    pub async fn next(&mut self) -> Result<Vec<TracedEvent>> {
        loop {
            let events = self.next_now().await?;
            if !events.is_empty() {
                return Ok(events);
            }
            if self.here.as_ref().is_some_and(|sandbox| sandbox.has_left()) {
                return Err(SandboxShared::has_gone());
            }
            match tokio::time::timeout(LOOK_AGAIN, self.activity.recv()).await {
                Ok(Ok(sandbox)) => self.notice(sandbox).await,
                Ok(Err(RecvError::Lagged(_))) | Err(_) => {
                    self.fresh = self.readers.iter().map(|(id, _)| id.clone()).collect();
                }
                Ok(Err(RecvError::Closed)) => return Err(unreadable()),
            }
        }
    }

    async fn notice(&mut self, sandbox: SandboxId) {
        if self.readers.iter().any(|(id, _)| *id == sandbox) {
            self.fresh.insert(sandbox);
        } else if let Some(of) = self.of.clone() {
            let reader = self.recorder.reader(&sandbox, 1);
            if of.has(&sandbox, &reader) {
                self.readers.push((sandbox.clone(), reader));
                self.fresh.insert(sandbox);
            }
        }
    }
}

/// Which sandboxes a reader of many reads of.
#[derive(Debug, Clone)]
struct Whose {
    /// Those that this key made; `None` for those of every key.
    key: Option<KeyId>,
    /// Of this project.
    project: Option<OfProject>,
}

/// The sandboxes of a project: those that were known when the reading began, also such as are gone, and those that live.
#[derive(Debug, Clone)]
struct OfProject {
    engine: Engine,
    id: ProjectId,
    known: Arc<BTreeSet<SandboxId>>,
}

impl Whose {
    fn has(&self, sandbox: &SandboxId, reader: &Reader) -> bool {
        let in_project = self.project.as_ref().is_none_or(|of| {
            let lives = || of.engine.inner.find(sandbox);
            of.known.contains(sandbox)
                || lives().is_some_and(|found| found.record().project.as_ref() == Some(&of.id))
        });
        let Some(key) = &self.key else { return in_project };
        in_project && reader.owner().is_ok_and(|owner| owner.flatten().as_deref() == Some(key.as_str()))
    }
}

fn unreadable() -> Error {
    Error::new(Code::Internal, "the journal cannot be read")
}

impl Engine {
    /// The recorder, if there is one.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.inner.config.trace.recorder.as_ref()
    }

    fn must_record(&self) -> Result<&Recorder> {
        self.recorder().ok_or_else(|| {
            Error::new(Code::InvalidState, "this server records nothing").hint("start it without --trace off")
        })
    }

    /// The journal of a sandbox that is gone, if the caller may read it: the key that made the sandbox and
    /// administrators may. `None` for a sandbox that is there, too.
    ///
    /// # Errors
    /// When it is in the object store and cannot be had from there.
    pub(crate) async fn authorize_gone(&self, caller: &Caller, text: &str) -> Result<Option<SandboxId>> {
        let Ok(id) = text.parse::<SandboxId>() else { return Ok(None) };
        let Some(recorder) = self.recorder().filter(|_| self.inner.find(&id).is_none()) else {
            return Ok(None);
        };
        let may = |owner: Option<&str>| {
            caller.is_admin() || owner.is_some() && owner == caller.key().map(KeyId::as_str)
        };
        let reader = recorder.reader(&id, 1);
        let here =
            tokio::task::spawn_blocking(move || reader.owner()).await.map_err(|_panicked| unreadable())?;
        let may_read = match here.unwrap_or_default() {
            Some(owner) => {
                if self.is_node() && !has_ended(recorder.dir(), &id).await? {
                    if self.lives_elsewhere(&id).await? {
                        return Ok(None);
                    }
                    // The sandbox may have gone on on another node, and ended there.
                    if let Err(error) = self.fetch_journal(&id, true, may).await {
                        tracing::warn!(sandbox = %id, %error, "the end of a journal cannot be looked for");
                    }
                }
                may(owner.as_deref())
            }
            None => self.fetch_journal(&id, false, may).await?,
        };
        Ok(may_read.then_some(id))
    }

    /// Reads the events of a sandbox from a number on, whether or not the sandbox is there. Whether the caller may is
    /// asked with [`Self::authorize`].
    ///
    /// # Errors
    /// [`Code::InvalidState`] when this server records nothing; [`Code::InvalidArgument`] for the filter.
    pub fn events(&self, sandbox: &SandboxId, from: u64, filter: TraceFilter) -> Result<EventReader> {
        filter.validate()?;
        let recorder = self.must_record()?;
        let here = self.inner.find(sandbox);
        Ok(EventReader {
            // Before the first look, so that nothing comes between.
            activity: recorder.activity(),
            of: None,
            readers: vec![(
                sandbox.clone(),
                Reader::new(&base(recorder, sandbox, here.is_some()), sandbox, from),
            )],
            here,
            reading: None,
            filter,
            fresh: BTreeSet::from([sandbox.clone()]),
            recorder: recorder.clone(),
        })
    }

    /// Reads the events of all sandboxes that a caller's key made, also of those that it makes from now on; of all
    /// sandboxes for an administrator. Only of those of a project, by id or name, if one is said.
    ///
    /// # Errors
    /// As [`Self::events`]; [`Code::Internal`] when the journals cannot be listed.
    #[boxed]
    pub async fn events_of(
        &self,
        caller: &Caller,
        project: Option<&str>,
        filter: TraceFilter,
    ) -> Result<EventReader> {
        filter.validate()?;
        let project = match self.project_filter(project, caller)? {
            Some(id) => {
                let known = self.inner.store.sandboxes_ever_in(&id).await.map_err(store_error)?;
                Some(OfProject { engine: self.clone(), id, known: Arc::new(known) })
            }
            None => None,
        };
        let recorder = self.must_record()?.clone();
        let activity = recorder.activity();
        let key = caller.key().filter(|_| !caller.is_admin()).cloned();
        let whose = Whose { key, project };
        let (of, looks) = (whose.clone(), recorder.clone());
        let readers = tokio::task::spawn_blocking(move || {
            let ids = journals(looks.dir())?;
            let readers = ids.into_iter().map(|id| (id.clone(), looks.reader(&id, 1)));
            Ok::<_, std::io::Error>(readers.filter(|(id, reader)| of.has(id, reader)).collect::<Vec<_>>())
        });
        let readers = readers.await.map_err(|_panicked| unreadable())?.map_err(|error| {
            tracing::error!(%error, "the journals cannot be listed");
            unreadable()
        })?;
        let fresh = readers.iter().map(|(id, _)| id.clone()).collect();
        Ok(EventReader {
            recorder,
            of: Some(whose),
            readers,
            here: None,
            reading: None,
            filter,
            activity,
            fresh,
        })
    }

    /// Verifies the journal of a sandbox with this installation's key.
    ///
    /// # Errors
    /// [`Code::InvalidState`] when this server records nothing; [`Code::Internal`] when it cannot be read.
    #[boxed]
    pub async fn verify_trace(&self, sandbox: &SandboxId) -> Result<Report> {
        let recorder = self.must_record()?.clone();
        // The recorder signs within seconds what clients were told; what still waits is written first.
        drop(recorder.written(sandbox).await);
        let (sandbox, is_here) = (sandbox.clone(), self.inner.find(sandbox).is_some());
        let verified = tokio::task::spawn_blocking(move || {
            verify(&base(&recorder, &sandbox, is_here), &sandbox, &recorder.public_key(), None)
        });
        verified.await.map_err(|_panicked| unreadable())?.map_err(|error| {
            tracing::error!(%error, "a journal cannot be verified");
            unreadable()
        })
    }
}
