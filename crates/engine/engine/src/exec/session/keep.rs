//! What a session does with output: it goes to the log first, and only then is the guest told that it may forget it. While
//! the host's disk is full the session waits, and with it the command.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::ExecState;
use atoll_guest_protocol::client::{ExecEvent, ExecStream, GuestError};
use atoll_guest_protocol::messages::Exited;
use bytes::Bytes;
use futures::FutureExt as _;

use super::super::disk::{append_from, blocking, blocking_with};
use super::Session;
use crate::log::{LogShare, LogWriter};

/// Output taken together before it is written to the log, bytes.
const BATCH_MAX_BYTES: usize = 1 << 20;
/// Pause before writing again when the host's disk is full.
const FULL_PAUSE: Duration = Duration::from_millis(500);

impl Session {
    pub(super) async fn open_log(&mut self) -> io::Result<()> {
        let record = self.exec.inserted();
        let dir = self.inner.log_dir(&record.sandbox, &record.id);
        let keep = record.spec.keep_output_bytes;
        // Before it is opened: what it opens is not dropped then.
        let share = self.share();
        let clock = self.inner.clock.clone();
        let log = blocking(move || LogWriter::open(&dir, keep, &clock)).await?;
        let extent = log.extent();
        self.log = Some(log.within(share));
        self.exec.progress.send_modify(|progress| {
            progress.extent = extent;
            progress.state = ExecState::Running;
        });
        Ok(())
    }

    /// Its part of what the sandbox's execs may keep together.
    pub(super) fn share(&self) -> LogShare {
        let max = self.sandbox.published().spec.resources.output_max_bytes();
        self.inner.logs.share(&self.sandbox.id, self.exec.id(), Some(max))
    }

    /// Writes what has arrived to the log, then acknowledges it. Gives the exit if that came along.
    pub(super) async fn take_output(
        &mut self,
        stream: &mut ExecStream,
        stderr: bool,
        bytes: Bytes,
    ) -> Result<Option<Exited>, GuestError> {
        let mut batch = vec![(stderr, bytes)];
        let mut size = batch[0].1.len();
        let mut exited = None;
        // Take along what is here already: one write and one acknowledgement for all.
        while size < BATCH_MAX_BYTES {
            match stream.next().now_or_never() {
                Some(Ok(Some(ExecEvent::Output { stderr, bytes }))) => {
                    size += bytes.len();
                    batch.push((stderr, bytes));
                }
                Some(Ok(Some(ExecEvent::Exited(end)))) => {
                    exited = Some(end);
                    break;
                }
                // Nothing there, or broken: the next call says so again.
                Some(Ok(None) | Err(_)) | None => break,
            }
        }
        self.progressed = true;
        let complete = self.append(batch).await;
        atoll_failpoint::fail_point!("engine.exec.appended");
        self.reset_idle();
        if !complete {
            // The server stops or the sandbox died: not the end of the exec, which the guest tells again.
            return Err(GuestError::Closed);
        }
        if exited.is_none() {
            self.acknowledge(stream).await?;
        }
        Ok(exited)
    }

    /// Acknowledges the output that is in the log, as far as the client allows that must miss nothing.
    pub(super) async fn acknowledge(&mut self, stream: &ExecStream) -> Result<(), GuestError> {
        let upto = self.end_offset().min(self.exec.may_acknowledge());
        if upto > self.acknowledged {
            stream.ack(upto).await?;
            self.acknowledged = upto;
        }
        Ok(())
    }

    pub(super) fn end_offset(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.extent().end)
    }

    /// Appends to the log. While the host's disk is full this waits, and with it the guest and the
    /// command: nothing is lost. Says whether everything is in the log: not when the wait was ended.
    async fn append(&mut self, batch: Vec<(bool, Bytes)>) -> bool {
        let Some(mut log) = self.log.take() else { return false };
        let batch = Arc::new(batch);
        let base = log.extent().end;
        let mut warned = false;
        let complete = loop {
            let pieces = Arc::clone(&batch);
            let written = blocking_with(log, move |log| append_from(log, base, &pieces)).await;
            let (back, outcome) = written;
            log = back;
            let extent = log.extent();
            self.exec.progress.send_modify(|progress| progress.extent = extent);
            match outcome {
                Ok(()) => break true,
                Err(error) => {
                    if !warned {
                        tracing::error!(exec = %self.exec.id(), %error, "output cannot be written, waiting");
                        warned = true;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(FULL_PAUSE) => {}
                        () = self.inner.shutdown.cancelled() => break false,
                        () = self.boot.cancelled() => break false,
                    }
                }
            }
        };
        self.log = Some(log);
        complete
    }
}
