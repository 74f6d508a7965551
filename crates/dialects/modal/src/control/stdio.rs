//! Output and input of the first command, for clients before 1.6.

use atoll_core::Code;
use atoll_core::exec::OutputStream;
use atoll_core::key::Scope;
use atoll_dialect_kit::exec::{Counting, Event, Feed, Offsets};
use futures::stream::{self, BoxStream, StreamExt as _};

use crate::auth::{self, Asker};
use crate::grpc::Result;
use crate::task;
use crate::wire::common::TaskLogs;
use crate::wire::sandboxes::{
    SandboxGetLogsRequest, SandboxStdinWriteRequest, SandboxStdinWriteResponse, TaskLogsBatch,
};

/// `FILE_DESCRIPTOR_STDERR`.
const STDERR: i32 = 2;
/// Longest time that one call lasts, seconds; clients go on with another.
const FOLLOW_MAX_S: f32 = 55.0;

fn end() -> TaskLogsBatch {
    TaskLogsBatch { eof: true, ..TaskLogsBatch::default() }
}

/// `SandboxGetLogs`: text of one stream, from where the client left off.
pub(super) async fn logs(
    asker: &Asker,
    request: SandboxGetLogsRequest,
) -> Result<BoxStream<'static, Result<TaskLogsBatch>>> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Read).await?;
    let view = match task::first(asker.engine(), &id).await {
        Ok(view) => view,
        Err(error) if error.code == Code::ExecNotFound => return Ok(stream::iter([Ok(end())]).boxed()),
        Err(error) => return Err(error.into()),
    };
    let wanted = if request.file_descriptor == STDERR { OutputStream::Stderr } else { OutputStream::Stdout };
    let offset: u64 = request.last_entry_id.parse().unwrap_or_default();
    let from = match wanted {
        OutputStream::Stdout => Offsets { stdout: offset, stderr: u64::MAX },
        OutputStream::Stderr => Offsets { stdout: u64::MAX, stderr: offset },
    };
    let feed = Feed::open(asker.engine(), &view, asker.app.task.marks(), Counting::Text, from).await?;
    let feed = feed.read_by(Some(asker.key()));
    let until = tokio::time::Instant::now() + super::seconds(request.timeout, FOLLOW_MAX_S);
    let next = move |state: Option<Feed>| async move {
        let mut feed = state?;
        loop {
            let event = tokio::time::timeout_at(until, feed.next()).await.ok()?;
            match event {
                Ok(Event::Text { stream, offset, text }) if stream == wanted => {
                    let entry_id = (offset + text.len() as u64).to_string();
                    let item =
                        TaskLogs { data: text, file_descriptor: request.file_descriptor, timestamp: 0.0 };
                    let batch = TaskLogsBatch { items: vec![item], entry_id, eof: false };
                    return Some((Ok(batch), Some(feed)));
                }
                Ok(Event::Text { .. } | Event::Raw { .. }) => {}
                Ok(Event::End(_)) => return Some((Ok(end()), None)),
                Err(error) => return Some((Err(error.into()), None)),
            }
        }
    };
    Ok(stream::unfold(Some(feed), next).boxed())
}

/// `SandboxStdinWrite`: pieces are numbered, and each is written once.
pub(super) async fn write(
    asker: &Asker,
    request: SandboxStdinWriteRequest,
) -> Result<SandboxStdinWriteResponse> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Exec).await?;
    let input = request.input;
    task::write_numbered(asker, &id, request.index, input, request.eof).await?;
    Ok(SandboxStdinWriteResponse {})
}
