//! The filesystem API of clients since 1.5: commands of a program that they believe to be in every sandbox.
//!
//! There is no such program. The guest's agent does the work of its commands, in any image, and to the client it looks
//! like a command: it has an id, takes input at offsets, has output at offsets, and ends with a code. Commands are in
//! memory, for a while after their end; after a restart of the server the client is told that its command is not there.

mod command;
mod entry;
mod watch;
mod write;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::Error;
use atoll_core::id::SandboxId;
use atoll_dialect_kit::status::Status;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::guest_error;
use atoll_guest_protocol::messages::Read;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt as _};

use super::Inside;
use super::stdio::Pieces;
use crate::grpc::{Fault, Result};

/// The program.
pub(super) const PATH: &str = "/__modal/.bin/modal-sandbox-fs-tools";
/// Most commands that are remembered.
const COMMANDS_MAX: usize = 4096;
/// Most commands of one sandbox.
const OF_SANDBOX_MAX: usize = 256;
/// How long, milliseconds.
const KEPT_MS: u64 = 10 * 60 * 1000;
/// Most bytes of output that wait for the client: lists and changes.
const OUTPUT_MAX_BYTES: usize = 8 << 20;
/// How long one call waits for an end.
const WAIT: Duration = Duration::from_secs(50);
/// The exit code of a command that failed.
const FAILED: i32 = 1;

/// A command.
#[derive(Debug)]
pub(super) struct Tool {
    at_ms: u64,
    progress: tokio::sync::watch::Sender<Progress>,
    /// The file that is being written, and how far.
    input: tokio::sync::Mutex<write::Input>,
}

/// How far a command is.
#[derive(Debug, Default)]
struct Progress {
    stdout: BytesMut,
    stderr: Bytes,
    /// The file whose content is its output.
    file: Option<String>,
    code: Option<i32>,
}

/// Commands by the sandbox and the client's id.
type Table = BTreeMap<(SandboxId, String), Arc<Tool>>;

/// The commands. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools(Arc<Mutex<Table>>);

impl Tools {
    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        // The map stays usable when a task panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command with a client's id.
    pub(super) fn find(&self, sandbox: &SandboxId, id: &str) -> Option<Arc<Tool>> {
        self.table().get(&(sandbox.clone(), id.to_owned())).cloned()
    }

    /// Enters a command; `None` when it is there already.
    fn enter(&self, sandbox: &SandboxId, id: &str) -> Result<Option<Arc<Tool>>> {
        let now = now_ms();
        let key = (sandbox.clone(), id.to_owned());
        let mut table = self.table();
        table.retain(|_, tool| tool.at_ms.saturating_add(KEPT_MS) > now || tool.code().is_none());
        if table.contains_key(&key) {
            return Ok(None);
        }
        let own = table.range((sandbox.clone(), String::new())..).take_while(|((of, _), _)| of == sandbox);
        let own: Vec<_> = own.map(|(key, tool)| (tool.code().is_some(), tool.at_ms, key.clone())).collect();
        if own.len() >= OF_SANDBOX_MAX || table.len() >= COMMANDS_MAX {
            // The oldest command of this sandbox that has ended is removed.
            let oldest = own.into_iter().filter(|(over, ..)| *over).min_by_key(|(_, at, _)| *at);
            let (.., oldest) = oldest.ok_or_else(|| {
                Fault::new(Status::ResourceExhausted, "too many file operations are under way")
            })?;
            table.remove(&oldest);
        }
        let tool = Arc::new(Tool {
            at_ms: now,
            progress: tokio::sync::watch::Sender::default(),
            input: tokio::sync::Mutex::default(),
        });
        table.insert(key, Arc::clone(&tool));
        Ok(Some(tool))
    }
}

/// Starts a command.
///
/// # Errors
/// When too many are under way. An error of the guest is the command's output.
pub(super) async fn start(inside: &Inside, id: &str, argument: Option<&str>) -> Result<()> {
    let tools = &inside.asker.app.task.tools;
    let Some(tool) = tools.enter(&inside.sandbox, id)? else { return Ok(()) };
    match serde_json::from_str(argument.unwrap_or_default()) {
        Ok(command) => command::begin(inside, &tool, command).await,
        Err(_malformed) => tool.fail("InvalidArgument", "this file operation is not known to this server"),
    }
    Ok(())
}

impl Tool {
    pub(super) fn code(&self) -> Option<i32> {
        self.progress.borrow().code
    }

    /// The exit code, waiting for it.
    ///
    /// # Errors
    /// `DEADLINE_EXCEEDED`, upon which clients ask again.
    pub(super) async fn wait(&self) -> Result<i32> {
        let mut progress = self.progress.subscribe();
        let ended = progress.wait_for(|progress| progress.code.is_some());
        match tokio::time::timeout(WAIT, ended).await {
            Ok(Ok(progress)) => Ok(progress.code.unwrap_or(FAILED)),
            _ => Err(Fault::new(Status::DeadlineExceeded, "the operation is still under way: ask again")),
        }
    }

    /// Ends the command well.
    fn end(&self) {
        self.progress.send_modify(|progress| progress.code = progress.code.or(Some(0)));
    }

    /// Ends the command well, with this output.
    fn end_with(&self, output: Vec<u8>) {
        self.progress.send_modify(|progress| {
            if progress.code.is_none() {
                progress.stdout = BytesMut::from(&output[..]);
                progress.code = Some(0);
            }
        });
    }

    /// Ends the command badly: an object on its error output says why.
    fn fail(&self, kind: &str, message: &str) {
        let text = serde_json::json!({"error_kind": kind, "message": message, "detail": ""}).to_string();
        self.progress.send_modify(|progress| {
            if progress.code.is_none() {
                progress.stderr = text.into_bytes().into();
                progress.code = Some(FAILED);
            }
        });
    }

    fn failed(&self, error: &Error) {
        self.fail(entry::kind_of(error.code), &atoll_dialect_kit::sentence(error));
    }

    /// Adds a line to the output; says whether there was room.
    fn say(&self, line: &[u8]) -> bool {
        let mut fits = true;
        self.progress.send_modify(|progress| {
            fits = progress.stdout.len() + line.len() <= OUTPUT_MAX_BYTES;
            if fits {
                progress.stdout.extend_from_slice(line);
            }
        });
        fits
    }
}

/// The output of a command from an offset.
///
/// # Errors
/// The errors of reading the file.
pub(super) async fn output(
    inside: &Inside,
    tool: &Arc<Tool>,
    is_stderr: bool,
    offset: u64,
) -> Result<Pieces> {
    let file = tool.progress.borrow().file.clone().filter(|_| !is_stderr);
    if let Some(path) = file {
        return content(inside, path, offset).await;
    }
    let mut changes = tool.progress.subscribe();
    changes.mark_changed();
    let tool = Arc::clone(tool);
    Ok(stream::unfold((tool, changes, offset), move |(tool, mut changes, offset)| async move {
        loop {
            let (piece, over) = {
                let progress = changes.borrow_and_update();
                let all: &[u8] = if is_stderr { &progress.stderr } else { &progress.stdout };
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(all.len());
                (Bytes::copy_from_slice(&all[from..]), progress.code.is_some())
            };
            if !piece.is_empty() {
                let next = offset + piece.len() as u64;
                return Some((Ok((offset, piece)), (tool, changes, next)));
            }
            if over || changes.changed().await.is_err() {
                return None;
            }
        }
    })
    .boxed())
}

/// The content of a file from an offset; it is sent while it is read.
async fn content(inside: &Inside, path: String, offset: u64) -> Result<Pieces> {
    let lease = inside.asker.engine().guest(inside.id()).await?;
    let reader = lease.read(Read { path, offset, length: 0 }).await.map_err(guest_error)?;
    Ok(stream::unfold(Some((lease, reader, offset)), |state| async move {
        let (lease, mut reader, offset) = state?;
        match reader.next().await {
            Ok(Some(piece)) => {
                let next = offset + piece.len() as u64;
                Some((Ok((offset, piece)), Some((lease, reader, next))))
            }
            Ok(None) => None,
            Err(error) => Some((Err(guest_error(error).into()), None)),
        }
    })
    .boxed())
}
