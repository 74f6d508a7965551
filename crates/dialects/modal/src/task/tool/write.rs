//! A file that a client writes: its content is the command's input.

use std::sync::atomic::Ordering;

use atoll_core::Error;
use atoll_dialect_kit::status::Status;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::{FileWriter, GuestLease, guest_error};
use bytes::Bytes;

use super::Tool;
use crate::grpc::{Fault, Result};
use crate::task::stdin;

/// How far the input was written.
#[derive(Debug, Default)]
pub(super) struct Input {
    writer: Option<(GuestLease, FileWriter)>,
    written: u64,
    closed: bool,
}

impl Input {
    pub(super) fn begin(&mut self, lease: GuestLease, writer: FileWriter) {
        self.writer = Some((lease, writer));
    }
}

impl Tool {
    /// Takes input at an offset; the end of the input ends the command.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` once the command has ended: the clients look at its exit code then.
    pub(in crate::task) async fn put(&self, offset: u64, data: Bytes, eof: bool) -> Result<()> {
        let mut input = self.input.lock().await;
        self.at_ms.store(now_ms(), Ordering::Relaxed);
        let rest = stdin::rest(data, offset, input.written)?;
        if input.closed && rest.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.take(&mut input, rest, eof).await {
            self.failed(&error);
            return Err(Fault::new(Status::FailedPrecondition, "the operation has ended"));
        }
        Ok(())
    }

    async fn take(&self, input: &mut Input, rest: Bytes, eof: bool) -> Result<(), Error> {
        if let Some((_, writer)) = &mut input.writer
            && !rest.is_empty()
        {
            let size = rest.len() as u64;
            writer.send(rest).await.map_err(guest_error)?;
            input.written += size;
        }
        if eof {
            input.closed = true;
            if let Some((_lease, writer)) = input.writer.take() {
                writer.finish().await.map_err(guest_error)?;
            }
            // Also the command of a watch, which ends when its client says so.
            self.end();
        }
        Ok(())
    }

    /// The bytes that were written, and whether the input is closed or the command has ended.
    pub(in crate::task) async fn input(&self) -> (u64, bool) {
        let input = self.input.lock().await;
        (input.written, input.closed || self.code().is_some())
    }
}
