//! Input, at an offset: input that the client sends again, because it lost the answer, is not written again.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use atoll_core::id::{ExecId, SandboxId};
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::{Code, Error};
use atoll_dialect_kit::status::Status;
use bytes::Bytes;
use tokio::sync::Mutex;

use super::Inside;
use super::exec;
use super::tool::Tool;
use crate::auth::Asker;
use crate::grpc::{Fault, Requests, Result};
use crate::wire::router::{
    SandboxStdinWriteV2Request, SandboxStdinWriteV2Response, TaskExecStdinStatusRequest,
    TaskExecStdinStatusResponse, TaskExecStdinWriteRequest, TaskExecStdinWriteResponse,
    TaskExecStdinWriteStreamRequest, TaskExecStdinWriteStreamResponse,
};

/// Execs whose input is counted, at most. A forgotten exec takes the next input as it is.
const EXECS_MAX: usize = 16_384;

/// How far the input of an exec was written.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes that were written; `None` before the first came in this run of the server.
    written: Option<u64>,
    closed: bool,
    /// Number of the last piece, where pieces are numbered.
    number: u32,
}

type Shared = Arc<Mutex<Progress>>;

/// The progress of all inputs. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Inputs(Arc<std::sync::Mutex<BTreeMap<ExecId, Shared>>>);

impl Inputs {
    fn of(&self, exec: &ExecId) -> Shared {
        // The map stays usable when a task panics while it holds the lock.
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= EXECS_MAX && !table.contains_key(exec) {
            // Ids sort by age.
            table.pop_first();
        }
        Arc::clone(table.entry(exec.clone()).or_default())
    }
}

/// The part of `data`, which begins at `offset`, that comes behind `written`.
///
/// # Errors
/// `OUT_OF_RANGE` when bytes between the two are missing.
pub(super) fn rest(data: Bytes, offset: u64, written: u64) -> Result<Bytes> {
    let Some(known) = written.checked_sub(offset) else {
        let why = format!("input at offset {offset}, and {written} bytes were written so far");
        return Err(Fault::new(Status::OutOfRange, why));
    };
    let skip = usize::try_from(known).unwrap_or(usize::MAX).min(data.len());
    Ok(data.slice(skip..))
}

async fn put(
    inside: &Inside,
    exec: &ExecId,
    progress: &mut Progress,
    offset: u64,
    data: Bytes,
    eof: bool,
) -> Result<()> {
    let written = progress.written.unwrap_or(offset);
    let mut left = rest(data, offset, written)?;
    progress.written = Some(written);
    if progress.closed {
        // The client sent the end again, or more input behind it.
        return if left.is_empty() { Ok(()) } else { Err(Fault::from(closed())) };
    }
    let engine = inside.asker.engine();
    while !left.is_empty() {
        let piece = left.split_to(left.len().min(STDIN_CHUNK_MAX_BYTES));
        let size = piece.len() as u64;
        engine.write_stdin(inside.id(), exec.as_str(), piece, false).await?;
        progress.written = progress.written.map(|written| written.saturating_add(size));
    }
    if eof {
        match engine.write_stdin(inside.id(), exec.as_str(), Bytes::new(), true).await {
            Ok(_) => {}
            // A command that reads no more needs no end of input.
            Err(error) if matches!(error.code, Code::ExecEnded | Code::StdinClosed) => {}
            Err(error) => return Err(error.into()),
        }
        progress.closed = true;
    }
    Ok(())
}

fn closed() -> Error {
    Error::new(Code::StdinClosed, "the input was closed")
}

/// `TaskExecStdinWrite`.
pub(super) async fn write(
    inside: &Inside,
    request: TaskExecStdinWriteRequest,
) -> Result<TaskExecStdinWriteResponse> {
    inside.is(&request.task_id)?;
    if let Some(tool) = inside.tool(&request.exec_id) {
        tool.put(request.offset, request.data, request.eof).await?;
        return Ok(TaskExecStdinWriteResponse {});
    }
    let view = exec::find(inside, &request.exec_id).await?;
    let input = inside.asker.app.task.inputs.of(&view.record.id);
    let mut progress = input.lock().await;
    put(inside, &view.record.id, &mut progress, request.offset, request.data, request.eof).await?;
    Ok(TaskExecStdinWriteResponse {})
}

/// `SandboxStdinWriteV2`: input of the first command.
pub(super) async fn write_first(
    inside: &Inside,
    request: SandboxStdinWriteV2Request,
) -> Result<SandboxStdinWriteV2Response> {
    inside.is(&request.task_id)?;
    let view = exec::first(inside.asker.engine(), &inside.sandbox).await?;
    let input = inside.asker.app.task.inputs.of(&view.record.id);
    let mut progress = input.lock().await;
    put(inside, &view.record.id, &mut progress, request.offset, request.data, request.eof).await?;
    Ok(SandboxStdinWriteV2Response {})
}

/// Writes a numbered piece of input of the first command, once.
///
/// # Errors
/// As [`write`].
pub(crate) async fn write_numbered(
    asker: &Asker,
    sandbox: &SandboxId,
    number: u32,
    data: Bytes,
    eof: bool,
) -> Result<()> {
    let inside = Inside { asker: asker.clone(), sandbox: sandbox.clone() };
    let view = exec::first(asker.engine(), sandbox).await?;
    let input = asker.app.task.inputs.of(&view.record.id);
    let mut progress = input.lock().await;
    if number <= progress.number {
        return Ok(());
    }
    let offset = progress.written.unwrap_or_default();
    put(&inside, &view.record.id, &mut progress, offset, data, eof).await?;
    progress.number = number;
    Ok(())
}

/// `TaskExecStdinStatus`.
pub(super) async fn status(
    inside: &Inside,
    request: TaskExecStdinStatusRequest,
) -> Result<TaskExecStdinStatusResponse> {
    inside.is(&request.task_id)?;
    if let Some(tool) = inside.tool(&request.exec_id) {
        let (num_bytes_written, closed) = tool.input().await;
        return Ok(TaskExecStdinStatusResponse { num_bytes_written, closed });
    }
    let view = exec::find(inside, &request.exec_id).await?;
    let input = inside.asker.app.task.inputs.of(&view.record.id);
    let progress = input.lock().await;
    Ok(TaskExecStdinStatusResponse {
        num_bytes_written: progress.written.unwrap_or_default(),
        closed: progress.closed,
    })
}

/// The file operation or the exec that gets the input.
enum Sink {
    Tool(Arc<Tool>),
    Exec(Shared, ExecId),
}

/// `TaskExecStdinWriteStream`: first the name of the command, then its input as it comes. A stream that breaks off
/// leaves the input open.
pub(super) async fn write_stream(
    inside: &Inside,
    requests: &mut Requests,
) -> Result<TaskExecStdinWriteStreamResponse> {
    let first: TaskExecStdinWriteStreamRequest = requests.one().await?;
    let start = first.start.ok_or_else(|| Fault::invalid("the first message must name the command"))?;
    inside.is(&start.task_id)?;
    let sink = match inside.tool(&start.exec_id) {
        Some(tool) => Sink::Tool(tool),
        None => {
            let id = exec::find(inside, &start.exec_id).await?.record.id;
            Sink::Exec(inside.asker.app.task.inputs.of(&id), id)
        }
    };
    let mut offset = start.offset;
    while let Some(request) = requests.next::<TaskExecStdinWriteStreamRequest>().await? {
        inside.asker.recheck()?;
        let (data, eof) = (request.data.unwrap_or_default(), request.end.is_some());
        let size = data.len() as u64;
        match &sink {
            Sink::Tool(tool) => tool.put(offset, data, eof).await?,
            Sink::Exec(input, exec) => {
                let mut progress = input.lock().await;
                put(inside, exec, &mut progress, offset, data, eof).await?;
            }
        }
        offset = offset.saturating_add(size);
        if eof {
            return Ok(TaskExecStdinWriteStreamResponse {});
        }
    }
    Err(Fault::invalid("the input broke off before its end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_not_written_again() {
        let of = |offset, written| rest(Bytes::from_static(b"abcd"), offset, written);
        assert_eq!(of(0, 0).unwrap(), "abcd");
        assert_eq!(of(10, 12).unwrap(), "cd");
        assert_eq!(of(10, 14).unwrap(), "");
        assert_eq!(of(10, 99).unwrap(), "");
        assert_eq!(of(10, 9).unwrap_err().status, Status::OutOfRange);
    }
}
