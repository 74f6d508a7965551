//! `Sandbox.open` and its like, of clients before 1.6. Each operation has an id, under which its output is fetched.
//!
//! An open file is in memory: the server reads it when a client opens it, and writes it when the client flushes or
//! closes it, as the clients' own buffer would be. Descriptors and outputs belong to their sandbox, and are of no use
//! elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::{Code, Error};
use atoll_dialect_kit::{memory, sentence, status::Status};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::{FileKind, List, Mkdir, Read, Remove, Stat, Write};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::opened::{Mode, Opened};
use crate::auth::Asker;
use crate::grpc::{Fault, Result};
use crate::ids;
use crate::wire::files::{
    ContainerFilesystemExecGetOutputRequest, ContainerFilesystemExecRequest, ContainerFilesystemExecResponse,
    FilesystemRuntimeOutputBatch, SystemErrorMessage,
};

/// Most bytes of one open file.
pub(super) const FILE_MAX_BYTES: usize = 100 << 20;
/// Most bytes of the open files of one sandbox.
const OPEN_OF_SANDBOX_MAX_BYTES: usize = 256 << 20;
/// Most open files and waiting outputs of one sandbox.
const OF_SANDBOX_MAX: usize = 256;
/// The same, of all sandboxes together.
const COUNT_MAX: usize = 16_384;
/// Bytes of one piece of output.
const PIECE_BYTES: usize = 1 << 20;
/// Entries of a list.
const ENTRIES_MAX: u32 = 20_000;

/// `SystemErrorCode`: numbers of Linux.
const fn number(code: Code) -> i32 {
    match code {
        Code::FileNotFound => 2,
        Code::PermissionDenied => 13,
        Code::FileExists => 17,
        Code::NotADirectory => 20,
        Code::IsADirectory => 21,
        Code::PathInvalid | Code::InvalidArgument => 22,
        Code::TooLarge => 27,
        Code::DiskFull => 28,
        Code::LimitExceeded => 12,
        _ => 5,
    }
}

type Output = Result<Bytes, Error>;
type Key = (SandboxId, String);

/// An open file. Its content is in the server's memory.
#[derive(Debug)]
struct Held {
    file: tokio::sync::Mutex<Opened>,
    /// Bytes of the content. Changed only while the table is locked.
    bytes: AtomicUsize,
    /// The memory for it. Locked only while the table is.
    memory: Mutex<memory::Held>,
}

/// An output that waits for its client, and the memory for it.
#[derive(Debug)]
struct Waiting {
    output: Output,
    _memory: memory::Held,
}

#[derive(Debug, Default)]
struct Table {
    open: BTreeMap<Key, Arc<Held>>,
    outputs: BTreeMap<Key, Waiting>,
    /// Open files and outputs, the oldest first.
    order: VecDeque<Key>,
    next: u64,
}

/// Open files and waiting outputs. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files(Arc<Mutex<Table>>);

impl Table {
    fn key(&mut self, sandbox: &SandboxId, kind: &str) -> Key {
        self.next += 1;
        let key = (sandbox.clone(), format!("{kind}-{}", self.next));
        self.order.push_back(key.clone());
        key
    }

    /// Refuses `more` bytes for an open file of this sandbox when the sandbox holds too many.
    fn check_room(&self, sandbox: &SandboxId, more: usize) -> Result<(), Error> {
        let own = self.open.iter().filter(|((of, _), _)| of == sandbox);
        let own: usize = own.map(|(_, held)| held.bytes.load(Ordering::Relaxed)).sum();
        if own.saturating_add(more) <= OPEN_OF_SANDBOX_MAX_BYTES {
            return Ok(());
        }
        let why = format!("the open files of a sandbox may have {} MiB", OPEN_OF_SANDBOX_MAX_BYTES >> 20);
        Err(Error::new(Code::LimitExceeded, why).hint("close files, or use Sandbox.filesystem"))
    }

    /// Forgets what is too much, the oldest first: of this sandbox, and of the one that has the most.
    fn shrink(&mut self, sandbox: &SandboxId) {
        let own = self.order.iter().filter(|(of, _)| of == sandbox).count();
        if own > OF_SANDBOX_MAX {
            self.forget_oldest(sandbox);
        }
        while self.order.len() > COUNT_MAX {
            let mut counts: BTreeMap<&SandboxId, usize> = BTreeMap::new();
            for (of, _) in &self.order {
                *counts.entry(of).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(of, _)| of.clone());
            let Some(most) = most else { return };
            self.forget_oldest(&most);
        }
    }

    fn forget_oldest(&mut self, sandbox: &SandboxId) {
        if let Some(at) = self.order.iter().position(|(of, _)| of == sandbox) {
            self.forget(at);
        }
    }

    /// Forgets the oldest output of a sandbox; says whether there was one.
    fn forget_output(&mut self, sandbox: &SandboxId) -> bool {
        let is_its = |key: &Key| key.0 == *sandbox && self.outputs.contains_key(key);
        let Some(at) = self.order.iter().position(is_its) else { return false };
        self.forget(at);
        true
    }

    fn forget(&mut self, at: usize) {
        if let Some(key) = self.order.remove(at) {
            self.open.remove(&key);
            self.outputs.remove(&key);
        }
    }
}

impl Files {
    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        // The table stays usable when a task panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an output until its client fetches it. Older ones of the sandbox go when there is no memory for it.
    fn keep(&self, sandbox: &SandboxId, output: Output, mut memory: memory::Held) -> String {
        let bytes = output.as_ref().map_or(0, Bytes::len);
        let mut table = self.table();
        let mut given = memory.grow(bytes);
        while given.is_err() && table.forget_output(sandbox) {
            given = memory.grow(bytes);
        }
        let output = given.and(output);
        let key = table.key(sandbox, "fx");
        table.outputs.insert(key.clone(), Waiting { output, _memory: memory });
        table.shrink(sandbox);
        key.1
    }

    /// Enters an open file, with the memory for its content.
    fn open(&self, sandbox: &SandboxId, file: Opened, memory: memory::Held) -> Result<String, Error> {
        let mut table = self.table();
        table.check_room(sandbox, file.len())?;
        let key = table.key(sandbox, "fd");
        let bytes = AtomicUsize::new(file.len());
        let held = Held { bytes, file: tokio::sync::Mutex::new(file), memory: Mutex::new(memory) };
        table.open.insert(key.clone(), Arc::new(held));
        table.shrink(sandbox);
        Ok(key.1)
    }

    fn write(&self, sandbox: &SandboxId, held: &Held, file: &mut Opened, data: &[u8]) -> Result<(), Error> {
        let table = self.table();
        let growth = file.growth(data.len());
        table.check_room(sandbox, growth)?;
        let mut memory = held.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.grow(growth)?;
        if let Err(error) = file.write(data) {
            memory.give_back(growth);
            return Err(error);
        }
        held.bytes.store(file.len(), Ordering::Relaxed);
        Ok(())
    }

    fn find(&self, sandbox: &SandboxId, descriptor: &str) -> Result<Arc<Held>, Error> {
        let key = (sandbox.clone(), descriptor.to_owned());
        let found = self.table().open.get(&key).cloned();
        found.ok_or_else(|| Error::invalid("file_descriptor", "no such file is open"))
    }

    fn close(&self, sandbox: &SandboxId, descriptor: &str) {
        let key = (sandbox.clone(), descriptor.to_owned());
        let mut table = self.table();
        table.open.remove(&key);
        table.order.retain(|other| *other != key);
    }
}

/// A sandbox whose files a client uses.
struct Place<'a> {
    asker: &'a Asker,
    files: &'a Files,
    sandbox: &'a SandboxId,
    lease: GuestLease,
    user: String,
    workdir: String,
}

/// `ContainerFilesystemExec`: does the operation; the client fetches its output later.
pub(super) async fn exec(
    asker: &Asker,
    request: ContainerFilesystemExecRequest,
) -> Result<ContainerFilesystemExecResponse> {
    let (sandbox, _) = ids::parse_task(&request.task_id)?;
    asker.may(&sandbox, Scope::Exec).await?;
    let engine = asker.engine();
    let spec = engine.sandbox(&sandbox)?.spec;
    let files = &asker.app.control.files;
    let place = Place {
        asker,
        files,
        sandbox: &sandbox,
        lease: engine.guest(&sandbox).await?,
        user: spec.user,
        workdir: spec.workdir.unwrap_or_else(|| "/root".to_owned()),
    };
    let (output, file_descriptor) = if let Some(open) = request.file_open_request {
        match place.open(&open.path, &open.mode).await {
            Ok(descriptor) => (Ok(Bytes::new()), Some(descriptor)),
            // The clients want a descriptor before they look at the error.
            Err(error) => (Err(error), Some(String::new())),
        }
    } else {
        (place.work(request).await, None)
    };
    let exec_id = files.keep(&sandbox, output, place.memory());
    Ok(ContainerFilesystemExecResponse { exec_id, file_descriptor })
}

impl Place<'_> {
    /// Memory of the caller's, of which nothing is taken yet.
    fn memory(&self) -> memory::Held {
        self.asker.app.memory.hold(self.asker.caller())
    }

    fn path(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.workdir) }
    }

    async fn open(&self, path: &str, mode: &str) -> Result<String, Error> {
        let (path, mode) = (self.path(path), Mode::parse(mode)?);
        let found = match self.lease.stat(Stat { path: path.clone(), no_follow: false }).await {
            Ok(info) => Some(info),
            Err(error) => match guest_error(error) {
                missing if missing.code == Code::FileNotFound => None,
                error => return Err(error),
            },
        };
        let exists = match found.as_ref().map(atoll_guest_protocol::messages::FileInfo::kind) {
            Some(FileKind::Directory) => return Err(Error::new(Code::IsADirectory, "Is a directory")),
            Some(_) if mode.new => return Err(Error::new(Code::FileExists, "File exists")),
            Some(_) => true,
            None if mode.create => false,
            None => return Err(Error::new(Code::FileNotFound, "No such file or directory")),
        };
        let mut memory = self.memory();
        let content =
            if exists && !mode.truncate { self.read(&path, &mut memory).await? } else { Vec::new() };
        if !exists || mode.truncate {
            // A file that cannot be written is an error at once.
            self.write(&path, &[]).await?;
        }
        self.files.open(self.sandbox, Opened::new(path, mode, content), memory)
    }

    /// Reads a whole file. What has come counts at once: others may be read at the same time, and a guest may take long.
    async fn read(&self, path: &str, memory: &mut memory::Held) -> Result<Vec<u8>, Error> {
        let request = Read { path: path.to_owned(), offset: 0, length: 0 };
        let mut reader = self.lease.read(request).await.map_err(guest_error)?;
        let mut content = Vec::new();
        while let Some(piece) = reader.next().await.map_err(guest_error)? {
            if content.len() + piece.len() > FILE_MAX_BYTES {
                return Err(super::opened::too_large());
            }
            memory.grow(piece.len())?;
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    async fn write(&self, path: &str, content: &[u8]) -> Result<(), Error> {
        let request =
            Write { path: path.to_owned(), mode: 0, user: self.user.clone(), parents: false, in_place: true };
        let mut writer = self.lease.write(request).await.map_err(guest_error)?;
        for piece in content.chunks(PIECE_BYTES) {
            writer.send(Bytes::copy_from_slice(piece)).await.map_err(guest_error)?;
        }
        writer.finish().await.map(drop).map_err(guest_error)
    }

    async fn flush(&self, file: &mut Opened) -> Result<(), Error> {
        if let Some(content) = file.unwritten() {
            self.write(&file.path, content).await?;
            file.is_written();
        }
        Ok(())
    }

    async fn work(&self, request: ContainerFilesystemExecRequest) -> Output {
        let nothing = Bytes::new();
        if let Some(read) = request.file_read_request {
            let held = self.files.find(self.sandbox, &read.file_descriptor)?;
            let n = read.n.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            return held.file.lock().await.read(n);
        }
        if let Some(read) = request.file_read_line_request {
            let held = self.files.find(self.sandbox, &read.file_descriptor)?;
            return held.file.lock().await.read_line();
        }
        if let Some(write) = request.file_write_request {
            let held = self.files.find(self.sandbox, &write.file_descriptor)?;
            let mut file = held.file.lock().await;
            return self.files.write(self.sandbox, &held, &mut file, &write.data).map(|()| nothing);
        }
        if let Some(seek) = request.file_seek_request {
            let held = self.files.find(self.sandbox, &seek.file_descriptor)?;
            return held.file.lock().await.seek(i64::from(seek.offset), seek.whence).map(|()| nothing);
        }
        if let Some(flush) = request.file_flush_request {
            let held = self.files.find(self.sandbox, &flush.file_descriptor)?;
            return self.flush(&mut *held.file.lock().await).await.map(|()| nothing);
        }
        if let Some(close) = request.file_close_request {
            let held = self.files.find(self.sandbox, &close.file_descriptor)?;
            let flushed = self.flush(&mut *held.file.lock().await).await;
            self.files.close(self.sandbox, &close.file_descriptor);
            return flushed.map(|()| nothing);
        }
        if let Some(ls) = request.file_ls_request {
            return self.list(&self.path(&ls.path)).await;
        }
        if let Some(mkdir) = request.file_mkdir_request {
            let path = self.path(&mkdir.path);
            let request = Mkdir { path, mode: 0, user: self.user.clone(), parents: mkdir.make_parents };
            return self.lease.mkdir(request).await.map(|()| nothing).map_err(guest_error);
        }
        if let Some(rm) = request.file_rm_request {
            let request = Remove { path: self.path(&rm.path), recursive: rm.recursive };
            return self.lease.remove(request).await.map(|()| nothing).map_err(guest_error);
        }
        let why = "this file operation is not supported by this server; Sandbox.filesystem has watch()";
        Err(Error::invalid("file_exec_request", why))
    }

    async fn list(&self, path: &str) -> Output {
        let request = List { path: path.to_owned(), depth: 1, max_entries: ENTRIES_MAX };
        let (entries, _) = self.lease.list(request).await.map_err(guest_error)?;
        let names: Vec<&str> = entries.iter().map(|info| info.path.as_str()).collect();
        Ok(serde_json::json!({"paths": names}).to_string().into_bytes().into())
    }
}

/// `ContainerFilesystemExecGetOutput`: the operation's output, then its end. The end is a message of its own, because
/// the clients look at nothing else in it.
pub(super) async fn output(
    asker: &Asker,
    request: ContainerFilesystemExecGetOutputRequest,
) -> Result<BoxStream<'static, Result<FilesystemRuntimeOutputBatch>>> {
    let files = &asker.app.control.files;
    let found = {
        let table = files.table();
        let its = |(key, waiting): (&Key, &Waiting)| {
            (key.1 == request.exec_id).then(|| (key.0.clone(), waiting.output.clone()))
        };
        table.outputs.iter().find_map(its)
    };
    let unknown = || Fault::new(Status::NotFound, "no such file operation");
    let (sandbox, output) = found.ok_or_else(unknown)?;
    asker.may(&sandbox, Scope::Exec).await.map_err(|_hidden| unknown())?;
    let mut batches: Vec<FilesystemRuntimeOutputBatch> = Vec::new();
    match output {
        Ok(bytes) => {
            for at in (0..bytes.len()).step_by(PIECE_BYTES) {
                let piece = bytes.slice(at..bytes.len().min(at + PIECE_BYTES));
                batches.push(FilesystemRuntimeOutputBatch { output: vec![piece], ..Default::default() });
            }
        }
        Err(error) => {
            let error =
                SystemErrorMessage { error_code: number(error.code), error_message: sentence(&error) };
            batches.push(FilesystemRuntimeOutputBatch { error: Some(error), ..Default::default() });
        }
    }
    batches.push(FilesystemRuntimeOutputBatch { eof: true, ..Default::default() });
    for (batch, number) in batches.iter_mut().zip(0..) {
        batch.batch_index = number;
    }
    Ok(stream::iter(batches.into_iter().map(Ok)).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_engine::Caller;

    fn file(bytes: usize) -> Opened {
        Opened::new("/f".to_owned(), Mode::parse("a").unwrap(), vec![0; bytes])
    }

    /// As an open file's content has it when it was read.
    fn taken(memory: &memory::Memory, bytes: usize) -> memory::Held {
        let mut held = memory.hold(&Caller::system());
        held.grow(bytes).unwrap();
        held
    }

    #[test]
    fn a_sandbox_has_a_share_of_the_memory_for_open_files() {
        let (files, memory) = (Files::default(), memory::Memory::new(1 << 30));
        let open = |sandbox: &SandboxId, bytes| files.open(sandbox, file(bytes), taken(&memory, bytes));
        let [one, other] = [1, 2].map(|number| SandboxId::from_parts(1, number));
        let first = open(&one, FILE_MAX_BYTES).unwrap();
        open(&one, FILE_MAX_BYTES).unwrap();
        let refused = open(&one, FILE_MAX_BYTES).unwrap_err();
        assert_eq!((refused.code, number(refused.code)), (Code::LimitExceeded, 12));
        open(&other, FILE_MAX_BYTES).unwrap();
        // Also where an open file grows, and not where another one was closed.
        let small = open(&one, 0).unwrap();
        let held = files.find(&one, &small).unwrap();
        let mut small = held.file.try_lock().unwrap();
        let data = vec![1; FILE_MAX_BYTES];
        let written = files.write(&one, &held, &mut small, &data);
        assert_eq!(written.unwrap_err().code, Code::LimitExceeded);
        assert_eq!(small.len(), 0);
        files.close(&one, &first);
        files.write(&one, &held, &mut small, &data).unwrap();
        assert!(open(&one, FILE_MAX_BYTES).is_err(), "what was written counts");
    }

    /// The memory of this test: its caller may have half of it.
    const SMALL_BYTES: usize = 1000;

    #[test]
    fn outputs_that_wait_push_out_no_open_file() {
        let (files, memory) = (Files::default(), memory::Memory::new(SMALL_BYTES));
        let [one, other] = [1, 2].map(|number| SandboxId::from_parts(1, number));
        let open = files.open(&other, file(100), taken(&memory, 100)).unwrap();
        let output = |bytes| Ok(Bytes::from(vec![0; bytes]));
        let kept: Vec<String> =
            (0..10).map(|_| files.keep(&one, output(200), memory.hold(&Caller::system()))).collect();
        files.find(&other, &open).unwrap();
        let there = |id: &String| files.table().outputs.contains_key(&(one.clone(), id.clone()));
        assert_eq!(kept.iter().filter(|id| there(id)).count(), 2, "the oldest of the same sandbox go");
        // What is more than there is for a caller is no output.
        let large = files.keep(&one, output(SMALL_BYTES), memory.hold(&Caller::system()));
        let table = files.table();
        let told = &table.outputs[&(one.clone(), large)].output;
        assert_eq!(told.as_ref().unwrap_err().code, Code::LimitExceeded);
    }

    #[test]
    fn many_small_things_of_some_sandboxes_push_out_nothing_of_another() {
        let (files, memory) = (Files::default(), memory::Memory::new(SMALL_BYTES));
        let other = SandboxId::from_parts(1, 0);
        let open = files.open(&other, file(0), taken(&memory, 0)).unwrap();
        for number in 1..=(COUNT_MAX / OF_SANDBOX_MAX + 1) as u64 {
            let sandbox = SandboxId::from_parts(1, number);
            for _ in 0..OF_SANDBOX_MAX {
                files.table().key(&sandbox, "fx");
            }
        }
        let last = SandboxId::from_parts(1, 1);
        files.keep(&last, Ok(Bytes::new()), memory.hold(&Caller::system()));
        assert_eq!(files.table().order.len(), COUNT_MAX);
        files.find(&other, &open).unwrap();
    }
}
