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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::{Code, Error};
use atoll_dialect_kit::memory::Held;
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
/// Most commands that are remembered. A key has no more of them than it leaves to others.
const COMMANDS_MAX: usize = 4096;
/// Most commands of one sandbox.
const OF_SANDBOX_MAX: usize = 256;
/// How long, milliseconds.
const KEPT_MS: u64 = 10 * 60 * 1000;
/// How long one is remembered that has not ended and gets no input, milliseconds: a little longer than any watches.
const UNDER_WAY_MS: u64 = 25 * 3600 * 1000;
/// Most bytes of output that wait for the client: lists and changes.
const OUTPUT_MAX_BYTES: usize = 8 << 20;
/// How long one call waits for an end.
const WAIT: Duration = Duration::from_secs(50);
/// The exit code of a command that failed.
const FAILED: i32 = 1;

/// A command.
#[derive(Debug)]
pub(super) struct Tool {
    owner: KeyId,
    /// When it began, or got input last.
    at_ms: AtomicU64,
    /// The memory for its output.
    memory: Mutex<Held>,
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

    /// Enters a command of a key, with the memory for its output; `None` when it is there already.
    fn enter(&self, sandbox: &SandboxId, id: &str, owner: &KeyId, memory: Held) -> Result<Option<Arc<Tool>>> {
        let now = now_ms();
        let key = (sandbox.clone(), id.to_owned());
        let mut table = self.table();
        table.retain(|_, tool| tool.is_remembered(now));
        if table.contains_key(&key) {
            return Ok(None);
        }
        let of_sandbox = table.keys().filter(|(of, _)| of == sandbox).count();
        let of_key = table.values().filter(|tool| tool.owner == *owner).count();
        if of_sandbox >= OF_SANDBOX_MAX || of_key >= COMMANDS_MAX.saturating_sub(table.len()) {
            // The oldest one that has ended is removed: of the sandbox if that has too many, else of the key.
            let ended = table.iter().filter(|((of, _), tool)| {
                let is_its = if of_sandbox >= OF_SANDBOX_MAX { of == sandbox } else { tool.owner == *owner };
                is_its && tool.code().is_some()
            });
            let oldest = ended.min_by_key(|(_, tool)| tool.at_ms.load(Ordering::Relaxed));
            let oldest = oldest.map(|(key, _)| key.clone()).ok_or_else(|| {
                Fault::new(Status::ResourceExhausted, "too many file operations are under way")
            })?;
            table.remove(&oldest);
        }
        let tool = Arc::new(Tool {
            owner: owner.clone(),
            at_ms: AtomicU64::new(now),
            memory: Mutex::new(memory),
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
    let asker = &inside.asker;
    let memory = asker.app.memory.hold(asker.caller());
    let Some(tool) = tools.enter(&inside.sandbox, id, asker.key(), memory)? else { return Ok(()) };
    match serde_json::from_str(argument.unwrap_or_default()) {
        Ok(command) => command::begin(inside, &tool, command).await,
        Err(_malformed) => tool.fail("InvalidArgument", "this file operation is not known to this server"),
    }
    Ok(())
}

impl Tool {
    fn is_remembered(&self, now: u64) -> bool {
        let kept = if self.code().is_some() { KEPT_MS } else { UNDER_WAY_MS };
        self.at_ms.load(Ordering::Relaxed).saturating_add(kept) > now
    }

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

    /// Takes memory for so many bytes more of output.
    ///
    /// # Errors
    /// [`Code::TooLarge`]; [`Code::LimitExceeded`].
    fn take_memory(&self, has: usize, more: usize) -> Result<(), Error> {
        if has.saturating_add(more) > OUTPUT_MAX_BYTES {
            let why = format!("the output has more than {} MiB", OUTPUT_MAX_BYTES >> 20);
            return Err(Error::new(Code::TooLarge, why));
        }
        // What is held is whole after each change.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).grow(more)
    }

    /// Ends the command well, with this output, or badly if there is no memory for that.
    fn end_with(&self, output: &[u8]) {
        if let Err(error) = self.take_memory(0, output.len()) {
            return self.failed(&error);
        }
        self.progress.send_modify(|progress| {
            if progress.code.is_none() {
                progress.stdout = BytesMut::from(output);
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
            fits = self.take_memory(progress.stdout.len(), line.len()).is_ok();
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

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_dialect_kit::memory::Memory;
    use atoll_engine::Caller;

    fn begin(tools: &Tools, memory: &Memory, sandbox: u64, id: u64, owner: u64) -> Result<Option<Arc<Tool>>> {
        let owner = KeyId::from_parts(1, owner);
        let held = memory.hold(&Caller::system());
        tools.enter(&SandboxId::from_parts(1, sandbox), &id.to_string(), &owner, held)
    }

    #[test]
    fn a_key_leaves_commands_to_others() {
        let (tools, memory) = (Tools::default(), Memory::new(1 << 20));
        // None of them ends, as files do not whose content does not come.
        let begun = |id: u64| begin(&tools, &memory, id / OF_SANDBOX_MAX as u64, id, 1);
        let refused = (0..COMMANDS_MAX as u64).find_map(|id| begun(id).err());
        assert_eq!(refused.unwrap().status, Status::ResourceExhausted);
        assert_eq!(tools.table().len(), COMMANDS_MAX / 2);
        begin(&tools, &memory, 99, 0, 2).unwrap().unwrap();
        // One that has ended makes room for another.
        let one = tools.table().values().find(|tool| tool.owner == KeyId::from_parts(1, 1)).cloned();
        one.unwrap().end();
        begin(&tools, &memory, 98, 0, 1).unwrap().unwrap();
        assert!(begin(&tools, &memory, 98, 1, 1).is_err());
    }

    #[test]
    fn outputs_have_so_much_memory_together() {
        let (tools, memory) = (Tools::default(), Memory::new(4 * OUTPUT_MAX_BYTES));
        let ended = |id| {
            let tool = begin(&tools, &memory, 1, id, 1).unwrap().unwrap();
            tool.end_with(&vec![b'x'; OUTPUT_MAX_BYTES]);
            tool.code()
        };
        // The caller may have half of it.
        assert_eq!([1, 2, 3].map(ended), [Some(0), Some(0), Some(FAILED)]);
        tools.table().clear();
        assert_eq!(ended(4), Some(0));
    }
}
