//! Starting: the exec's row first, then the guest.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;

use atoll_core::code::InterpreterCall;
use atoll_core::exec::{ExecState, Exit};
use atoll_core::id::{ExecId, SandboxId};
use atoll_core::profile::{ExecProfile, Profile, door};
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::{ExecStream, GuestError, OpenedExec};
use atoll_guest_protocol::messages::{Confine, ProfileStep, Reason, StartExec, TtySize};
use atoll_isolation::Isolation;
use atoll_store::{ExecRecord, Insertion, StoreError};
use futures::future::maybe_done;

use crate::errors::{chain, guest_error, store_error};
use crate::log::LogWriter;
use crate::sandbox::SandboxShared;

use super::super::shared::Started;
use super::{Session, oom_kills};

/// Connections on which a start is tried.
const START_TRIES_MAX_COUNT: u32 = 16;

impl Session {
    /// `None`: it is not ours to run: another exec has the key, or it ended without running.
    pub(super) async fn insert_and_start(&mut self) -> Result<Option<ExecStream>> {
        let sandbox = Arc::clone(&self.sandbox);
        let record = self.exec.inserted();
        let fresh = record.idempotency_key.is_none().then(|| record.id.clone());
        let mut opened = pin!(maybe_done(open_stream(&sandbox, fresh)));
        // It may read a file in place, or ask a guest: both are in nobody's way while the exec is recorded. It goes on until
        // then, however long that takes: who asks a guest has its turn at that, for which others wait.
        let mut oom_kills = pin!(maybe_done(oom_kills(&sandbox)));
        let recorded = beside(self.record_start(), |cx| {
            let _ = opened.as_mut().poll(cx);
            let _ = oom_kills.as_mut().poll(cx);
        });
        if let Some(other) = recorded.await? {
            self.exec.progress.send_modify(|progress| progress.state = ExecState::Lost);
            self.leave();
            self.exec.started.send_replace(Some(Started::Existing(other)));
            return Ok(None);
        }
        atoll_failpoint::fail_point!("engine.exec.journalled");
        let log = LogWriter::fresh(
            &self.inner.log_dir(&record.sandbox, &record.id),
            record.spec.keep_output_bytes,
            &self.inner.clock,
        );
        self.log = Some(log.within(self.share()));
        self.exec.progress.send_modify(|progress| progress.state = ExecState::Running);
        let opened = opened.take_output().flatten();
        let (started, ()) = tokio::join!(self.start_in_guest(opened), oom_kills.as_mut());
        self.oom_kills_before = oom_kills.take_output().unwrap_or_default();
        atoll_failpoint::fail_point!("engine.exec.started");
        self.start_clocks();
        match started {
            Ok(stream) => {
                self.sandbox.meter.count_exec(self.exec.inserted().started_by.as_ref());
                Ok(Some(stream))
            }
            Err(GuestError::Failure { reason: Reason::CommandNotFound, .. }) => {
                self.finish(Exit::not_started(Code::CommandNotFound)).await;
                Ok(None)
            }
            Err(GuestError::Failure { reason: Reason::CommandNotExecutable, .. }) => {
                self.finish(Exit::not_started(Code::CommandNotExecutable)).await;
                Ok(None)
            }
            Err(error) => {
                if !matches!(error, GuestError::Failure { .. }) {
                    // It may run all the same, and its row is about to be deleted.
                    self.kill().await;
                }
                self.unrecord().await?;
                Err(self.start_error(error))
            }
        }
    }

    /// Writes the exec's row, and tells the journal that it starts. Gives the exec that has its key, if another has.
    async fn record_start(&self) -> Result<Option<Box<ExecRecord>>> {
        let record = self.exec.inserted();
        let inserted = self.inner.store.insert_exec(record).await.map_err(|error| {
            if matches!(error, StoreError::NotFound) {
                return SandboxId::not_found(self.sandbox.id.as_str());
            }
            store_error(error)
        })?;
        if let Insertion::Existing(other) = inserted {
            return Ok(Some(other));
        }
        if let Err(error) = self.sandbox.trace.exec_starts(record).await {
            self.unrecord().await?;
            return Err(error);
        }
        Ok(None)
    }

    async fn unrecord(&self) -> Result<()> {
        self.inner.store.delete_exec(self.exec.id()).await.map(drop).map_err(store_error)
    }

    fn start_error(&self, error: GuestError) -> Error {
        if self.sandbox.dead.is_cancelled() {
            Error::new(Code::SandboxFailed, "the sandbox died")
        } else if self.inner.shutdown.is_cancelled() {
            Error::new(Code::ShuttingDown, "the server is shutting down")
        } else {
            guest_error(error)
        }
    }

    /// Starting is idempotent in the guest, so a connection that broke meanwhile is no reason to give up.
    async fn start_in_guest(&self, mut opened: Option<Opened>) -> Result<ExecStream, GuestError> {
        let mut last = self.link;
        let mut tries = 1;
        loop {
            let Opened { number, stream } = match opened.take() {
                Some(opened) => opened,
                None => {
                    let Ok((number, client)) = self.next_link(last).await else {
                        return Err(GuestError::Closed);
                    };
                    Opened { number, stream: client.open_exec(self.exec.id().as_str()).await }
                }
            };
            let started = match stream {
                Ok(stream) => start_exec(&**self.sandbox.driver(), stream, self.exec.inserted()).await,
                Err(error) => Err(error),
            };
            match started {
                // A connection that breaks inside a message looks like a broken protocol.
                Err(GuestError::Closed | GuestError::Protocol(_)) if tries < START_TRIES_MAX_COUNT => {
                    last = number;
                }
                other => return other,
            }
            tries += 1;
        }
    }
}

/// A guest's stream on which an exec is to be started.
struct Opened {
    /// Of the link that it belongs to.
    number: u64,
    stream: Result<OpenedExec, GuestError>,
}

/// Opens a stream for a fresh exec while its row is written: the guest wakes up and prepares meanwhile. What is to be
/// started is said on it when the row is there, and not before. A request with an idempotency key is none that is surely
/// fresh: a client that repeats it all the time would have the guest woken for nothing.
async fn open_stream(sandbox: &SandboxShared, fresh: Option<ExecId>) -> Option<Opened> {
    let exec = fresh?;
    let link = sandbox.guest.borrow().clone()?;
    Some(Opened { number: link.number, stream: link.client.open_exec(exec.as_str()).await })
}

/// Waits for `first`. While it is not there, `others` is called each time, to go on with what has time until then.
async fn beside<T>(first: impl Future<Output = T>, mut others: impl FnMut(&mut Context<'_>)) -> T {
    let mut first = pin!(first);
    poll_fn(|cx| {
        let polled = first.as_mut().poll(cx);
        if polled.is_pending() {
            others(cx);
        }
        polled
    })
    .await
}

/// Starts an exec in the guest, on a stream that was opened for it; what it is in, its kernel knows before.
pub(in crate::exec) async fn start_exec(
    driver: &dyn Isolation,
    stream: OpenedExec,
    record: &ExecRecord,
) -> Result<ExecStream, GuestError> {
    let Some(profile) = &record.spec.profile else {
        return stream.start(start_message(record)).await;
    };
    let (sandbox, exec) = (&record.sandbox, record.id.as_str());
    if let Err(error) = driver.exec_starts(sandbox, exec, &profile.name) {
        tracing::error!(%sandbox, exec, error = chain(&error), "an exec cannot begin in its profile");
        return Err(GuestError::Failure {
            reason: Reason::Other,
            message: format!("it cannot begin in the profile '{}': {error}", profile.name),
        });
    }
    let started = stream.start(start_message(record)).await;
    // Where the connection broke it may begin yet: it is tried again, and what was told goes with the sandbox at the latest.
    if !matches!(started, Err(GuestError::Closed | GuestError::Protocol(_))) {
        driver.exec_started(sandbox, exec);
    }
    started
}

/// What the guest is told.
fn start_message(record: &ExecRecord) -> StartExec {
    let spec = &record.spec;
    let argv = match &spec.interpreter {
        Some(_) => InterpreterCall::argv(&spec.argv),
        None => spec.argv.clone(),
    };
    StartExec {
        exec_id: record.id.to_string(),
        argv,
        env: spec.env.clone(),
        cwd: spec.cwd.clone().unwrap_or_default(),
        user: spec.user.clone(),
        tty: spec.tty.map(|size| TtySize { cols: size.cols.into(), rows: size.rows.into() }),
        stdin: spec.stdin,
        profiles: spec.profile.as_ref().map(profiles).unwrap_or_default(),
        end_tree: spec.end_tree,
    }
}

/// The profile of an exec, and then those that its processes can get into.
fn profiles(exec: &ExecProfile) -> Vec<Confine> {
    let own = exec.named.get_key_value(&exec.name);
    let others = exec.named.iter().filter(|(name, _)| **name != exec.name);
    let all: Vec<_> = own.into_iter().chain(others).collect();
    let place = |wanted: &str| (0..).zip(&all).find(|(_, (name, _))| *name == wanted).map(|(place, _)| place);
    let step = |(program, next): (&String, &String)| {
        place(next).map(|profile| ProfileStep { program: program.clone(), profile, door: false })
    };
    let open =
        |asked: &str| place(asked).map(|profile| ProfileStep { program: door(asked), profile, door: true });
    let confine = |(_, profile): &(&String, &Profile)| Confine {
        hide: profile.hide.clone(),
        read_only: profile.read_only.clone(),
        steps: profile
            .on_exec
            .iter()
            .filter_map(step)
            .chain(profile.asks().into_iter().filter_map(open))
            .collect(),
        memory_bytes: profile.limits.memory_bytes.unwrap_or_default(),
        processes: profile.limits.processes.unwrap_or_default(),
        cpu_seconds: profile.limits.cpu_seconds.unwrap_or_default(),
    };
    all.iter().map(confine).collect()
}
