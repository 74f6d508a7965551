//! Output, from an offset of one stream: a client that comes back sends the offset that it has reached.

use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{Counting, Event, Feed, Offsets};
use atoll_dialect_kit::status::Status;
use atoll_engine::ExecView;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::Inside;
use super::exec::{self, MERGED};
use super::tool;
use crate::grpc::{Fault, Result};
use crate::wire::router::{
    SandboxStdioReadV2Request, SandboxStdioReadV2Response, TaskExecStdioReadRequest,
    TaskExecStdioReadResponse,
};

/// `TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR`, and the same number for the first command.
const STDERR: i32 = 1;

/// Bytes of one stream, with the offset of each piece.
pub(super) type Pieces = BoxStream<'static, Result<(u64, Bytes)>>;

/// The output of an exec.
///
/// # Errors
/// The errors of reading.
pub(super) async fn pieces(inside: &Inside, view: &ExecView, descriptor: i32, offset: u64) -> Result<Pieces> {
    let spec = &view.record.spec;
    // A terminal has one stream; so has a command whose client asked for one.
    let merged = spec.tty.is_some() || spec.tag.as_deref() == Some(MERGED);
    let wanted = if descriptor == STDERR { OutputStream::Stderr } else { OutputStream::Stdout };
    if merged && wanted == OutputStream::Stderr {
        return Ok(stream::empty().boxed());
    }
    if let Some(why) = why_not_started(view) {
        return Ok(not_started(why, merged || wanted == OutputStream::Stderr, offset));
    }
    let from = match (merged, wanted) {
        // The streams are counted together: [`Reader::take`] skips the bytes that the client has.
        (true, _) => Offsets::default(),
        (false, OutputStream::Stdout) => Offsets { stdout: offset, stderr: u64::MAX },
        (false, OutputStream::Stderr) => Offsets { stdout: u64::MAX, stderr: offset },
    };
    let engine = inside.asker.engine();
    let feed = Feed::open(engine, view, &inside.asker.app.task.marks, Counting::Raw, from).await?;
    let feed = feed.read_by(Some(inside.asker.key()));
    let reader = Reader { feed, merged: merged.then_some((0, offset)), wanted };
    Ok(stream::unfold(Some(reader), next).boxed())
}

/// What a shell would say of a command that could not be started; `None` for one that ran. It wrote nothing itself, and
/// the exit code alone does not tell its user what is missing.
fn why_not_started(view: &ExecView) -> Option<String> {
    let why = match view.record.exit.as_ref()?.error? {
        Code::CommandNotFound => "executable file not found",
        _ => "cannot be executed",
    };
    let command = view.record.spec.argv.first().map_or("", String::as_str);
    Some(format!("exec: {}: {why}\n", atoll_core::error::shorten(command)))
}

/// That text from an offset, for the stream on which errors are; nothing for the other one.
fn not_started(why: String, is_shown: bool, offset: u64) -> Pieces {
    let all = Bytes::from(why);
    let rest = all.slice(usize::try_from(offset).unwrap_or(usize::MAX).min(all.len())..);
    let piece = (is_shown && !rest.is_empty()).then_some(Ok((offset, rest)));
    stream::iter(piece).boxed()
}

struct Reader {
    feed: Feed,
    /// Bytes of both streams so far, and bytes that the client has.
    merged: Option<(u64, u64)>,
    wanted: OutputStream,
}

async fn next(reader: Option<Reader>) -> Option<(Result<(u64, Bytes)>, Option<Reader>)> {
    let mut reader = reader?;
    loop {
        match reader.feed.next().await {
            Ok(Event::Raw { stream, offset, bytes }) => {
                if let Some(piece) = reader.take(stream, offset, bytes) {
                    return Some((Ok(piece), Some(reader)));
                }
            }
            Ok(Event::Text { .. }) => {}
            Ok(Event::End(_)) => return None,
            Err(error) => return Some((Err(told(&error)), None)),
        }
    }
}

impl Reader {
    fn take(&mut self, stream: OutputStream, offset: u64, bytes: Bytes) -> Option<(u64, Bytes)> {
        let Some((seen, known)) = &mut self.merged else {
            return (stream == self.wanted).then_some((offset, bytes));
        };
        let start = *seen;
        *seen += bytes.len() as u64;
        let skip = known.saturating_sub(start).min(bytes.len() as u64);
        let rest = bytes.slice(usize::try_from(skip).unwrap_or(bytes.len())..);
        (!rest.is_empty()).then_some((start + skip, rest))
    }
}

/// The client comes back to a server that stops.
fn told(error: &Error) -> Fault {
    match error.code {
        Code::ShuttingDown => Fault::new(Status::Unavailable, "the server is stopping: ask again"),
        _ => Fault::of(error),
    }
}

/// `TaskExecStdioRead`.
pub(super) async fn read(
    inside: &Inside,
    request: TaskExecStdioReadRequest,
) -> Result<BoxStream<'static, Result<TaskExecStdioReadResponse>>> {
    inside.is(&request.task_id)?;
    let pieces = match inside.tool(&request.exec_id) {
        Some(tool) => tool::output(inside, &tool, request.file_descriptor == STDERR, request.offset).await?,
        None => {
            let view = exec::find(inside, &request.exec_id).await?;
            pieces(inside, &view, request.file_descriptor, request.offset).await?
        }
    };
    Ok(pieces.map(|piece| piece.map(|(_, data)| TaskExecStdioReadResponse { data })).boxed())
}

/// `SandboxStdioReadV2`: output of the first command. A sandbox without one writes nothing.
pub(super) async fn read_first(
    inside: &Inside,
    request: SandboxStdioReadV2Request,
) -> Result<BoxStream<'static, Result<SandboxStdioReadV2Response>>> {
    inside.is(&request.task_id)?;
    let view = match exec::first(inside.asker.engine(), &inside.sandbox).await {
        Ok(view) => view,
        Err(error) if error.code == Code::ExecNotFound => return Ok(stream::empty().boxed()),
        Err(error) => return Err(error.into()),
    };
    let pieces = pieces(inside, &view, request.file_descriptor, request.offset).await?;
    let answer = |(starting_offset, data)| SandboxStdioReadV2Response { data, starting_offset };
    Ok(pieces.map(move |piece| piece.map(answer)).boxed())
}
