//! Execs that run before their sandbox has an owner: what a template starts in a waiting member of a pool.
//!
//! Such an exec has no row, as its sandbox has none. Its output goes to its log all the same, so that the command
//! never waits for a reader. When the sandbox is claimed, both rows are written at once and a session takes the
//! exec up where its log ends, just as after a restart of the server.

use std::time::Duration;

use atoll_core::Result;
use atoll_core::id::SandboxId;
use atoll_core::spec::{ExecDraft, SandboxSpec};
use atoll_guest_protocol::client::{ExecEvent, ExecStream, GuestClient, GuestError};
use atoll_guest_protocol::messages::{AttachExec, Exited, SignalExec};
use atoll_isolation::Isolation;
use atoll_store::ExecRecord;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::engine::Inner;
use crate::errors::{chain, guest_error};
use crate::log::LogWriter;

use super::calls::new_record;
use super::disk::{append_from, blocking, blocking_with, host_error};
use super::session::{SIGKILL, start::start_exec};

/// An exec that runs, and the task that keeps its output until a session does.
#[derive(Debug)]
pub(crate) struct Ahead {
    record: ExecRecord,
    /// How it ended, once it has.
    exited: watch::Receiver<Option<Exited>>,
    keeper: JoinHandle<()>,
    stop: DropGuard,
}

impl Ahead {
    fn new(record: ExecRecord, log: LogWriter, stream: ExecStream) -> Self {
        let (ended, exited) = watch::channel(None);
        let stop = CancellationToken::new();
        let keeper = tokio::spawn(keep(log, stream, ended, stop.clone()));
        Self { record, exited, keeper, stop: stop.drop_guard() }
    }

    /// How it ended, once it has.
    pub(crate) fn exited(&self) -> watch::Receiver<Option<Exited>> {
        self.exited.clone()
    }

    /// Lets go of the output; gives the row to write. A session may begin after this.
    pub(crate) async fn hand_over(self) -> ExecRecord {
        drop(self.stop);
        if let Err(error) = self.keeper.await {
            tracing::error!(exec = %self.record.id, %error, "who kept the output of an exec broke off");
        }
        self.record
    }
}

/// Starts a command and keeps its output.
///
/// # Errors
/// What is wrong with the draft, or what the guest says. Then nothing runs.
pub(crate) async fn begin(
    inner: &Inner,
    client: &GuestClient,
    sandbox: &SandboxId,
    spec: &SandboxSpec,
    draft: ExecDraft,
) -> Result<Ahead> {
    let mut record = new_record(sandbox, spec, draft, None, inner.now_ms())?;
    let driver = inner.driver(spec.isolation)?;
    let stream = client.open_exec(record.id.as_str()).await.map_err(guest_error)?;
    let stream = start_exec(&**driver, stream, &record).await.map_err(guest_error)?;
    record.pid = Some(stream.pid);
    let log =
        LogWriter::fresh(&inner.log_dir(sandbox, &record.id), record.spec.keep_output_bytes, &inner.clock);
    let share = inner.logs.share(sandbox, &record.id, Some(spec.resources.output_max_bytes()));
    Ok(Ahead::new(record, log.within(share), stream))
}

/// Keeps the output of a command that runs already, from where its log ends.
///
/// # Errors
/// What the guest says; [`atoll_core::Code::Internal`] when the log cannot be opened.
pub(crate) async fn take_over(inner: &Inner, client: &GuestClient, record: ExecRecord) -> Result<Ahead> {
    let (dir, keep) = (inner.log_dir(&record.sandbox, &record.id), record.spec.keep_output_bytes);
    let share = inner.logs.share(&record.sandbox, &record.id, None);
    let clock = inner.clock.clone();
    let log =
        blocking(move || LogWriter::open(&dir, keep, &clock)).await.map_err(|error| host_error(&error))?;
    let log = log.within(share);
    let attach = AttachExec { exec_id: record.id.to_string(), offset: log.extent().end };
    let stream = client.attach_exec(attach).await.map_err(guest_error)?;
    Ok(Ahead::new(record, log, stream))
}

/// Moves output to the log until the exec ends, the connection breaks or a session is to do it. What is not in the log
/// then was not acknowledged, and the guest still has it.
async fn keep(
    mut log: LogWriter,
    mut stream: ExecStream,
    ended: watch::Sender<Option<Exited>>,
    stop: CancellationToken,
) {
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            event = stream.next() => event,
        };
        let (stderr, bytes): (bool, Bytes) = match event {
            Ok(Some(ExecEvent::Output { stderr, bytes })) => (stderr, bytes),
            Ok(Some(ExecEvent::Exited(exited))) => {
                ended.send_replace(Some(exited));
                return;
            }
            // The task that watches the connection sees it, too.
            Ok(None) | Err(_) => return,
        };
        let base = log.extent().end;
        let pieces = [(stderr, bytes)];
        let (back, outcome) = blocking_with(log, move |log| append_from(log, base, &pieces)).await;
        log = back;
        if let Err(error) = outcome {
            // The command waits from now on, and with it its sandbox's being ready.
            tracing::error!(%error, "output cannot be written");
            return;
        }
        if stream.ack(log.extent().end).await.is_err() {
            return;
        }
    }
}

/// Runs a command to its end without keeping anything of it; kills it after `at_most`.
///
/// # Errors
/// What is wrong with the draft, or what the guest says.
pub(crate) async fn run_to_end(
    driver: &dyn Isolation,
    client: &GuestClient,
    sandbox: &SandboxId,
    spec: &SandboxSpec,
    draft: ExecDraft,
    at_most: Duration,
) -> Result<Option<i32>> {
    // Nothing reads when it began.
    let record = new_record(sandbox, spec, draft, None, 0)?;
    let exec_id = record.id.to_string();
    let stream = client.open_exec(&exec_id).await.map_err(guest_error)?;
    let mut stream = start_exec(driver, stream, &record).await.map_err(guest_error)?;
    let code = match tokio::time::timeout(at_most, until_exit(&mut stream)).await {
        Ok(exited) => exited.map_err(guest_error)?.code,
        Err(_) => {
            let request = SignalExec { exec_id: exec_id.clone(), signal: SIGKILL, tree: true };
            client.signal_exec(request).await.map_err(guest_error)?;
            until_exit(&mut stream).await.map_err(guest_error)?;
            None
        }
    };
    if let Err(error) = client.forget_exec(&exec_id).await {
        tracing::debug!(exec_id, error = chain(&error), "the guest was not told to forget an exec");
    }
    Ok(code)
}

async fn until_exit(stream: &mut ExecStream) -> Result<Exited, GuestError> {
    loop {
        match stream.next().await? {
            Some(ExecEvent::Output { .. }) => stream.ack(stream.offset).await?,
            Some(ExecEvent::Exited(exited)) => return Ok(exited),
            None => return Err(GuestError::Closed),
        }
    }
}
