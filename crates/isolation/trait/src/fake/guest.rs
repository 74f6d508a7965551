//! The fake's guest: the real protocol over an in-memory stream.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::ExecId;
use atoll_guest_protocol::VERSION;
use atoll_guest_protocol::body::{BodyError, RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{
    Ack, AttachExec, Configure, Done, ExecInfo, ExecList, Exited, Failure, FileInfo, FileKind, ForgetExec,
    GetMetrics, Hello, InstallTrust, ListExecs, ListPorts, Metrics, PortList, Read, Reason, Remove,
    ResizeExec, SignalExec, StartExec, Started, Stat, Welcome, Write, WriteStdin,
};
use atoll_guest_protocol::server::{self, Operation, body_failure, failure};
use atoll_guest_protocol::wire::{Kind, Record, decode_message, encode_message};
use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::exec::Exec;

/// Bytes that an in-memory stream holds.
const STREAM_BYTES: usize = 256 << 10;
/// No HTTP/2 frame in any state of the connection.
const GARBAGE: &[u8] = &[0xff; 4096];

/// What connections are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Serve the connection of this number.
    Serve(u64),
    /// Send garbage, then end.
    Garbage,
    /// End for ever.
    End,
}

/// What is in a sandbox, by path.
pub(super) type Files = BTreeMap<String, Bytes>;

/// One guest.
#[derive(Debug)]
pub(super) struct Guest {
    sandbox_id: String,
    boot_id: String,
    execs: Mutex<BTreeMap<String, Arc<Exec>>>,
    /// It lists none of them.
    hides_execs: AtomicBool,
    files: Mutex<Files>,
    next_pid: AtomicU32,
    order: watch::Sender<Order>,
    frozen: watch::Sender<bool>,
    runtime: Option<Handle>,
}

/// How an operation stops early; `None`: no client is there to be told.
type Stop = Option<Failure>;

fn stopped(error: BodyError) -> Stop {
    body_failure(error)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    pub(super) fn new(sandbox_id: &str, files: Files, runtime: Option<Handle>) -> Arc<Self> {
        Arc::new(Self {
            sandbox_id: sandbox_id.to_owned(),
            boot_id: format!("fake-{sandbox_id}"),
            execs: Mutex::default(),
            hides_execs: AtomicBool::new(false),
            files: Mutex::new(files),
            next_pid: AtomicU32::new(2),
            order: watch::Sender::new(Order::Serve(0)),
            frozen: watch::Sender::new(false),
            runtime,
        })
    }

    /// Another boot on the same files.
    pub(super) fn boot_again(&self, runtime: Option<Handle>) -> Arc<Self> {
        Self::new(&self.sandbox_id, self.files(), runtime)
    }

    /// A copy that goes on from memory: with these files, and one exec that is taken over under another id. Other execs
    /// would belong to no client.
    pub(super) fn go_on(
        sandbox_id: &str,
        files: Files,
        carried: Option<(&ExecId, &Exec)>,
        runtime: Option<Handle>,
    ) -> Arc<Self> {
        let guest = Self::new(sandbox_id, files, runtime);
        if let Some((id, exec)) = carried {
            let exec = Arc::new(exec.copy());
            guest.next_pid.store(exec.pid + 1, Ordering::Relaxed);
            guest.spawn(while_thawed(guest.frozen.subscribe(), Arc::clone(&exec).go_on()));
            locked(&guest.execs).insert(id.to_string(), exec);
        }
        guest
    }

    /// What of its execs is in its memory.
    pub(super) fn execs(&self) -> Vec<Exec> {
        locked(&self.execs).values().map(|exec| exec.copy()).collect()
    }

    /// Stops it where it is, or lets it go on.
    pub(super) fn set_frozen(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    pub(super) fn is_frozen(&self) -> bool {
        *self.frozen.borrow()
    }

    pub(super) fn files(&self) -> Files {
        locked(&self.files).clone()
    }

    pub(super) fn file(&self, path: &str) -> Option<Vec<u8>> {
        locked(&self.files).get(path).map(|content| content.to_vec())
    }

    /// Ends everything: commands and connections.
    pub(super) fn end(&self) {
        // A guest that is killed while it stands still ends all the same.
        self.set_frozen(false);
        self.order.send_replace(Order::End);
        for exec in locked(&self.execs).values() {
            exec.lose();
        }
    }

    /// Breaks the connection that is served.
    pub(super) fn cut(&self) {
        self.newest();
    }

    pub(super) fn hide_execs(&self) {
        self.hides_execs.store(true, Ordering::Relaxed);
    }

    pub(super) fn send_garbage(&self) {
        self.order.send_if_modified(|order| {
            let live = *order != Order::End;
            if live {
                *order = Order::Garbage;
            }
            live
        });
    }

    /// Makes the next number the one that is served; gives it.
    fn newest(&self) -> u64 {
        use std::sync::atomic::AtomicU64;
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        self.order.send_if_modified(|order| {
            let live = *order != Order::End;
            if live {
                *order = Order::Serve(number);
            }
            live
        });
        number
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(task)),
            None => drop(tokio::spawn(task)),
        }
    }

    /// A stream that is served.
    pub(super) fn serve(self: Arc<Self>) -> DuplexStream {
        let (host, guest) = duplex(STREAM_BYTES);
        let number = self.newest();
        Arc::clone(&self).spawn(self.connection(guest, number));
        host
    }

    /// A stream that stays open without a word.
    pub(super) fn silent(self: Arc<Self>) -> DuplexStream {
        let (host, guest) = duplex(STREAM_BYTES);
        let mut order = self.order.subscribe();
        self.spawn(async move {
            order.wait_for(|order| *order == Order::End).await.map(|_| ()).unwrap_or_default();
            drop(guest);
        });
        host
    }

    /// A stream that carries garbage.
    pub(super) fn garbage(self: Arc<Self>) -> DuplexStream {
        let (host, mut guest) = duplex(STREAM_BYTES);
        self.spawn(async move { guest.write_all(GARBAGE).await.unwrap_or_default() });
        host
    }

    async fn connection(self: Arc<Self>, stream: DuplexStream, number: u64) {
        let (wire, mut tap) = duplex(STREAM_BYTES);
        let mut order = self.order.subscribe();
        let server = async {
            let mut connection = server::builder().handshake::<_, Bytes>(wire).await.ok()?;
            let mut operations = JoinSet::new();
            while let Some(operation) = server::next_operation(&mut connection).await {
                let handled = Arc::clone(&self).handle(operation);
                operations.spawn(while_thawed(self.frozen.subscribe(), handled));
            }
            Some(())
        };
        let mut stream = stream;
        let pump = tokio::io::copy_bidirectional(&mut stream, &mut tap);
        let ended = tokio::select! {
            () = while_thawed(self.frozen.subscribe(), async { let _ = server.await; }) => None,
            _ = while_thawed(self.frozen.subscribe(), pump) => None,
            order = order.wait_for(|order| *order != Order::Serve(number)) => order.ok().map(|order| *order),
        };
        if ended == Some(Order::Garbage) {
            stream.write_all(GARBAGE).await.unwrap_or_default();
        }
    }

    async fn handle(self: Arc<Self>, operation: Operation) {
        let Operation { name, mut request, mut response, .. } = operation;
        let told = match self.run(&name, &mut request, &mut response).await {
            Ok(records) => response.finish_encoded(records).await,
            Err(Some(failure)) => response.fail(&failure).await,
            Err(None) => {
                response.reset();
                Ok(())
            }
        };
        // A host that is gone asks again.
        told.unwrap_or_default();
    }

    async fn run(
        &self,
        name: &str,
        request: &mut RecordReader,
        response: &mut RecordWriter,
    ) -> Result<Bytes, Stop> {
        match name {
            "hello" => self.hello(&message(request).await?),
            "configure" => message::<Configure>(request).await.map(|_| done(0)),
            "trust" => message::<InstallTrust>(request).await.map(|_| done(0)),
            "exec-start" => {
                let exec = self.start(message(request).await?)?;
                let offset = exec.base();
                stream(&exec, offset, request, response).await
            }
            "exec-attach" => {
                let wanted: AttachExec = message(request).await?;
                let exec = self.find(&wanted.exec_id)?;
                exec.piece(wanted.offset).map_err(|error| refused(Reason::Invalid, &error.to_string()))?;
                exec.acknowledge(wanted.offset)
                    .map_err(|error| refused(Reason::Invalid, &error.to_string()))?;
                stream(&exec, wanted.offset, request, response).await
            }
            "exec-stdin" => {
                let wanted: WriteStdin = message(request).await?;
                let bytes = rest(request).await?;
                let len = bytes.len() as u64;
                self.find(&wanted.exec_id)?.push_stdin(bytes, wanted.close)?;
                Ok(done(len))
            }
            "exec-signal" => {
                let wanted: SignalExec = message(request).await?;
                self.find(&wanted.exec_id)?.signal(wanted.signal)?;
                Ok(done(0))
            }
            "exec-resize" => {
                let wanted: ResizeExec = message(request).await?;
                match self.find(&wanted.exec_id)?.request.tty {
                    Some(_) => Ok(done(0)),
                    None => Err(refused(Reason::NotATerminal, "the exec has no terminal")),
                }
            }
            "exec-forget" => self.forget(&message(request).await?),
            "exec-list" => message::<ListExecs>(request).await.map(|_| self.list()),
            "stat" => {
                let wanted: Stat = message(request).await?;
                Ok(answer(&self.info(&wanted.path)?))
            }
            "read" => self.read(&message(request).await?, response).await,
            "write" => {
                let wanted: Write = message(request).await?;
                let bytes = rest(request).await?;
                let len = bytes.len() as u64;
                locked(&self.files).insert(wanted.path, bytes);
                Ok(done(len))
            }
            "remove" => {
                let wanted: Remove = message(request).await?;
                let removed = locked(&self.files).remove(&wanted.path);
                removed.map(|_| done(0)).ok_or_else(|| refused(Reason::NotFound, &wanted.path))
            }
            "ports" => message::<ListPorts>(request).await.map(|_| answer(&PortList { ports: Vec::new() })),
            "metrics" => {
                let GetMetrics {} = message(request).await?;
                Ok(answer(&Metrics { processes: 1, ..Metrics::default() }))
            }
            _ => Err(refused(Reason::Other, "the fake cannot do this")),
        }
    }

    fn hello(&self, hello: &Hello) -> Result<Bytes, Stop> {
        if hello.version != VERSION || hello.sandbox_id != self.sandbox_id {
            return Err(refused(Reason::Invalid, "this guest belongs to another sandbox or version"));
        }
        Ok(answer(&Welcome { version: VERSION, boot_id: self.boot_id.clone() }))
    }

    fn find(&self, exec_id: &str) -> Result<Arc<Exec>, Stop> {
        let exec = locked(&self.execs).get(exec_id).map(Arc::clone);
        exec.ok_or_else(|| refused(Reason::NoSuchExec, "no such exec"))
    }

    fn start(&self, request: StartExec) -> Result<Arc<Exec>, Stop> {
        let mut execs = locked(&self.execs);
        if let Some(exec) = execs.get(&request.exec_id) {
            let same = exec.request == request;
            return same
                .then(|| Arc::clone(exec))
                .ok_or_else(|| refused(Reason::Conflict, "another exec has this id"));
        }
        let pid = self.next_pid.fetch_add(1, Ordering::Relaxed);
        let exec = Exec::start(request, pid, self.frozen.subscribe())?;
        execs.insert(exec.request.exec_id.clone(), Arc::clone(&exec));
        Ok(exec)
    }

    fn forget(&self, request: &ForgetExec) -> Result<Bytes, Stop> {
        let mut execs = locked(&self.execs);
        if execs.get(&request.exec_id).is_some_and(|exec| exec.exited().is_none()) {
            return Err(refused(Reason::Conflict, "the exec still runs"));
        }
        execs.remove(&request.exec_id);
        Ok(done(0))
    }

    fn list(&self) -> Bytes {
        if self.hides_execs.load(Ordering::Relaxed) {
            return answer(&ExecList { execs: Vec::new() });
        }
        let execs = locked(&self.execs);
        let info = |(id, exec): (&String, &Arc<Exec>)| ExecInfo {
            exec_id: id.clone(),
            pid: exec.pid,
            exited: exec.exited().is_some(),
        };
        answer(&ExecList { execs: execs.iter().map(info).collect() })
    }

    fn info(&self, path: &str) -> Result<FileInfo, Stop> {
        let files = locked(&self.files);
        let content = files.get(path).ok_or_else(|| refused(Reason::NotFound, path))?;
        Ok(FileInfo {
            path: path.to_owned(),
            kind: FileKind::File.into(),
            size: content.len() as u64,
            mode: 0o644,
            ..FileInfo::default()
        })
    }

    async fn read(&self, request: &Read, response: &mut RecordWriter) -> Result<Bytes, Stop> {
        let info = self.info(&request.path)?;
        let content = locked(&self.files).get(&request.path).cloned().unwrap_or_default();
        let start = usize::try_from(request.offset).unwrap_or(usize::MAX).min(content.len());
        let length = if request.length == 0 {
            usize::MAX
        } else {
            usize::try_from(request.length).unwrap_or(usize::MAX)
        };
        let part = content.slice(start..start.saturating_add(length).min(content.len()));
        let len = part.len() as u64;
        response.message(&info).await.map_err(stopped)?;
        response.data(Kind::Data, part).await.map_err(stopped)?;
        Ok(done(len))
    }
}

/// Lets something go on only while nothing is frozen.
pub(super) async fn while_thawed<F: Future>(mut frozen: watch::Receiver<bool>, work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    loop {
        // The sender lives in the guest; without it nothing is frozen.
        drop(frozen.wait_for(|frozen| !*frozen).await);
        tokio::select! {
            biased;
            Ok(_) = frozen.wait_for(|frozen| *frozen) => {}
            done = &mut work => return done,
        }
    }
}

fn refused(reason: Reason, message: &str) -> Stop {
    Some(failure(reason, message))
}

fn answer(message: &impl Message) -> Bytes {
    encode_message(Kind::Message, message)
}

fn done(bytes: u64) -> Bytes {
    encode_message(Kind::Last, &Done { bytes })
}

async fn message<M: Message + Default>(request: &mut RecordReader) -> Result<M, Stop> {
    request.message().await.map_err(stopped)
}

/// All data that follows in the request.
async fn rest(request: &mut RecordReader) -> Result<Bytes, Stop> {
    let mut all = BytesMut::new();
    loop {
        match request.next().await.map_err(stopped)? {
            Some(Record { kind: Kind::Data, payload }) => all.extend_from_slice(&payload),
            Some(_) => return Err(refused(Reason::Invalid, "only data may follow")),
            None => return Ok(all.freeze()),
        }
    }
}

async fn stream(
    exec: &Exec,
    offset: u64,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Bytes, Stop> {
    response.message(&Started { pid: exec.pid, offset }).await.map_err(stopped)?;
    let acknowledged = async {
        loop {
            match request.next().await.map_err(stopped)? {
                Some(record) => {
                    let ack: Ack = decode_message(record.payload).map_err(|error| stopped(error.into()))?;
                    exec.acknowledge(ack.offset)
                        .map_err(|error| refused(Reason::Invalid, &error.to_string()))?;
                }
                None => std::future::pending::<()>().await,
            }
        }
    };
    tokio::select! {
        stopped = acknowledged => stopped,
        exited = send(exec, offset, response) => Ok(encode_message(Kind::Last, &exited?)),
    }
}

async fn send(exec: &Exec, mut offset: u64, response: &mut RecordWriter) -> Result<Exited, Stop> {
    let mut changed = exec.subscribe();
    loop {
        // Asked first: what is written before the end is in the window then.
        let exited = exec.exited();
        match exec.piece(offset).map_err(|error| refused(Reason::Invalid, &error.to_string()))? {
            Some(chunk) => {
                offset += chunk.bytes.len() as u64;
                let kind = if chunk.stderr { Kind::DataErr } else { Kind::Data };
                response.data(kind, chunk.bytes).await.map_err(stopped)?;
            }
            None => match exited {
                Some(exited) => return Ok(exited),
                // The sender lives in the exec.
                None => drop(changed.changed().await),
            },
        }
    }
}
