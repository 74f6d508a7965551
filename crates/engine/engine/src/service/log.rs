//! The log of a service: the output of its runs, one after the other, with one count of bytes over all of them.

use std::time::Duration;

use atoll_core::exec::OutputStream;
use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use bytes::Bytes;
use tokio::time::Instant;

use crate::boxed;
use crate::engine::Engine;
use crate::exec::{OutputEvent, OutputReader};
use crate::log::Piece;

use super::{ServiceView, calls, run_key};

/// A piece of a service's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePiece {
    /// Number of the run that wrote it.
    pub run: u64,
    /// Offset of its first byte in the log.
    pub offset: u64,
    /// Which stream.
    pub stream: OutputStream,
    /// The bytes.
    pub bytes: Bytes,
}

/// What there is of a log from an offset on.
#[derive(Debug)]
pub struct ServiceLog {
    /// The pieces, contiguous.
    pub pieces: Vec<ServicePiece>,
    /// Bytes between the offset that was asked for and this one are not kept any more.
    pub gap_until: Option<u64>,
    /// Where to read on.
    pub next_offset: u64,
    /// The service.
    pub view: ServiceView,
}

impl Engine {
    /// Reads the log of a service from an offset on, at most about `max_bytes`; waits while there is nothing.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::ServiceNotFound`], [`Code::OffsetOutOfRange`].
    #[boxed]
    pub async fn service_log(
        &self,
        sandbox: &SandboxId,
        name: &str,
        offset: u64,
        max_bytes: usize,
        wait: Duration,
    ) -> Result<ServiceLog> {
        let deadline = Instant::now() + wait;
        let service = calls::find(self, sandbox, name)?;
        let mut changes = service.view.subscribe();
        loop {
            let view = changes.borrow_and_update().clone();
            let (log, mut live) = self.collect(sandbox, view, offset, max_bytes).await?;
            if !log.pieces.is_empty() || log.gap_until.is_some() {
                return Ok(log);
            }
            let more = async {
                match &mut live {
                    // What it gives is read again from the same place.
                    Some(reader) => drop(reader.next(1).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Ok(log) },
                () = more => {}
                () = tokio::time::sleep_until(deadline) => return Ok(log),
            }
        }
    }

    /// What there is now, and the reader of the run under way if everything of it was read.
    async fn collect(
        &self,
        sandbox: &SandboxId,
        view: ServiceView,
        offset: u64,
        max_bytes: usize,
    ) -> Result<(ServiceLog, Option<OutputReader>)> {
        let runs = view.record.status.runs.clone();
        let service = view.record.id.clone();
        let mut log = ServiceLog { pieces: Vec::new(), gap_until: None, next_offset: offset, view };
        let Some(first) = runs.first() else {
            return if offset == 0 { Ok((log, None)) } else { Err(beyond(0)) };
        };
        if offset < first.base {
            (log.gap_until, log.next_offset) = (Some(first.base), first.base);
        }
        let from = log.view.record.status.run_at(log.next_offset);
        let mut room = max_bytes;
        for run in &runs[from..] {
            if run.end.is_some_and(|end| end <= log.next_offset) {
                continue;
            }
            let exec = match self.exec_by_key(sandbox, &run_key(&service, run.number)).await {
                Ok(view) => view.record.id,
                // It has not come into being yet, or was forgotten with its output.
                Err(error) if error.code == Code::ExecNotFound => {
                    let Some(end) = run.end else { break };
                    if !log.pieces.is_empty() {
                        break;
                    }
                    (log.gap_until, log.next_offset) = (Some(end), end);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let inner = log.next_offset.saturating_sub(run.base);
            let reader = self.output(sandbox, exec.as_str(), inner, false).await;
            let mut reader = reader.map_err(|error| match error.code {
                Code::OffsetOutOfRange => beyond(run.base),
                _ => error,
            })?;
            loop {
                if room == 0 {
                    return Ok((log, None));
                }
                match reader.next_now(room).await? {
                    Some(OutputEvent::Piece(Piece::Output { offset, stream, bytes })) => {
                        room -= bytes.len().min(room);
                        let offset = run.base + offset;
                        log.next_offset = offset + bytes.len() as u64;
                        log.pieces.push(ServicePiece { run: run.number, offset, stream, bytes });
                    }
                    Some(OutputEvent::Piece(Piece::Gap { to, .. })) if log.pieces.is_empty() => {
                        let to = run.base + to;
                        (log.gap_until, log.next_offset) = (Some(to), to);
                    }
                    // The pieces of an answer are contiguous: the gap begins the next.
                    Some(OutputEvent::Piece(Piece::Gap { .. })) => return Ok((log, None)),
                    // The next run follows, once this end is recorded.
                    Some(OutputEvent::End { .. }) if run.end.is_none() => return Ok((log, None)),
                    Some(OutputEvent::End { .. }) => break,
                    None => return Ok((log, Some(reader))),
                }
            }
        }
        match runs.last().and_then(|run| run.end) {
            Some(end) if offset > end => Err(beyond(end)),
            _ => Ok((log, None)),
        }
    }
}

fn beyond(end: u64) -> Error {
    Error::new(
        Code::OffsetOutOfRange,
        format!("the offset lies beyond what the service wrote, from {end} on"),
    )
    .hint("ask from the 'next_offset' of the last answer, or from 0")
}
