//! Output by long-poll: a page from an offset on.

use std::time::Duration;

use atoll_api::{OutputChunk, OutputPage};
use atoll_core::exec::ExecState;
use atoll_core::id::SandboxId;
use atoll_core::{Error, Result};
use atoll_engine::{Extent, OutputEvent, OutputReader, Piece};
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::wait;
use crate::auth::{OnSandbox, Read};
use crate::bounds::{self, OUTPUT, OUTPUT_MAX_BYTES};
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::shared::{App, Shared};

/// Which output.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetOutput {
    /// First byte wanted: 0, or `next_offset` of the last page.
    #[serde(default)]
    offset: u64,
    /// Begin, in place of `offset`, with what was written at this time (milliseconds since the epoch) or later; up to a second
    /// earlier.
    since_ms: Option<u64>,
    /// Wait up to this long when there is nothing yet (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
    /// Most bytes: 1 to 1,048,576; 262,144 when absent.
    #[param(schema_with = bounds::output)]
    max_bytes: Option<usize>,
}

/// Output from an offset on. Waits, if asked, while there is none.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}/output", tag = "execs",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path), GetOutput),
    responses((status = 200, body = OutputPage)))]
pub(crate) async fn get_output(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
    Query(query): Query<GetOutput>,
) -> ApiResult<Json<OutputPage>> {
    let wait = wait(query.wait_ms)?;
    let max = OUTPUT.of(query.max_bytes)?;
    // Looked at before the output is read: a final state then means that all output is there to read.
    let state = app.engine.exec(caller.sandbox(), &exec).await?.record.state;
    let offset = match query.since_ms {
        Some(_) if query.offset != 0 => {
            return Err(Error::invalid("since_ms", "cannot be together with an offset").into());
        }
        Some(since_ms) => app.engine.output_since(caller.sandbox(), &exec, since_ms).await?,
        None => query.offset,
    };
    let reader = app.engine.output(caller.sandbox(), &exec, offset, false).await?;
    Ok(Json(page(&app, reader.read_by(Some(&caller.key().id)), state, max, wait).await?))
}

async fn page(
    app: &Shared,
    mut reader: OutputReader,
    state: ExecState,
    max: usize,
    wait: Duration,
) -> Result<OutputPage> {
    let next_offset = reader.offset();
    let mut page = OutputPage { chunks: Vec::new(), gap_until: None, next_offset, state, exit: None };
    // Ends at once when something is there. A cancelled wait loses nothing, and the page is empty then.
    let first = app.unless_draining(tokio::time::timeout(wait, reader.next(max))).await;
    let mut event = match first {
        Some(Ok(event)) => Some(event?),
        Some(Err(_)) | None => reader.next_now(max).await?,
    };
    let mut room = max;
    while let Some(next) = event {
        match next {
            OutputEvent::Piece(Piece::Output { offset, stream, bytes }) => {
                room -= bytes.len().min(room);
                page.next_offset = offset + bytes.len() as u64;
                page.chunks.push(OutputChunk::new(offset, stream, &bytes));
            }
            OutputEvent::Piece(Piece::Gap { to, .. }) if page.chunks.is_empty() => {
                page.gap_until = Some(to);
                page.next_offset = to;
            }
            // The chunks of a page are contiguous: the gap begins the next page.
            OutputEvent::Piece(Piece::Gap { .. }) => return Ok(page),
            OutputEvent::End { state, exit, .. } => {
                return Ok(OutputPage { state, exit: Some(exit), ..page });
            }
        }
        event = if room > 0 { reader.next_now(room).await? } else { None };
    }
    Ok(page)
}

/// All output of an exec that has ended. What was dropped is missing.
///
/// # Errors
/// [`atoll_core::Code::Internal`] when the log cannot be read.
pub(crate) async fn all(
    app: &Shared,
    sandbox: &SandboxId,
    exec: &str,
    extent: Extent,
) -> Result<Vec<OutputChunk>> {
    let mut chunks = Vec::new();
    if extent.end == 0 {
        return Ok(chunks);
    }
    let mut reader = app.engine.output(sandbox, exec, 0, false).await?;
    while let Some(event) = reader.next_now(OUTPUT_MAX_BYTES).await? {
        match event {
            OutputEvent::Piece(Piece::Output { offset, stream, bytes }) => {
                chunks.push(OutputChunk::new(offset, stream, &bytes));
            }
            OutputEvent::Piece(Piece::Gap { .. }) => {}
            OutputEvent::End { .. } => break,
        }
    }
    Ok(chunks)
}
