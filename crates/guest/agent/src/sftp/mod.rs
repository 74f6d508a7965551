//! `sftp`: version 3 of the SSH file transfer protocol, which every client speaks.
//!
//! The operation's bytes are the protocol's. A session is a thread of its own that does what the client asks
//! with the credentials of the user who logged in: the kernel decides what that user may. A thread, because
//! the calls block; its own credentials, because Linux keeps those of the file system for each thread.
//!
//! A hostile client harms its own session only: packets, handles and answers are bounded.

mod long_name;
mod session;
mod wire;

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;

use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{Reason, Sftp};
use atoll_guest_protocol::server::failure;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

use crate::agent::Agent;
use crate::failing::{Stop, io_error};
use crate::net;
use crate::operations::Answer;
use crate::users::{Database, Identity};

/// Sessions at once.
const SESSIONS_MAX: usize = 32;
/// Stack of a session's thread.
const STACK_BYTES: usize = 256 << 10;

/// Bounds the sessions.
#[derive(Debug, Clone)]
pub(crate) struct Sessions(Arc<Semaphore>);

impl Sessions {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(SESSIONS_MAX)))
    }
}

/// `sftp`.
pub(crate) async fn sftp(
    agent: &Rc<Agent>,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    let wanted: Sftp = request.message().await?;
    let identity = Database::read().identity(&wanted.user)?;
    let Ok(permit) = Arc::clone(&agent.sftp.0).try_acquire_owned() else {
        return Err(failure(Reason::NoProcesses, "too many SFTP sessions in this sandbox").into());
    };
    let (ours, theirs) = pair().map_err(|error| io_error("sftp", &error))?;
    std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || {
            // Ends with the stream; a session that fails closes it.
            drop(become_user(&identity).and_then(|()| session::run(theirs, &identity.home, &wanted.cwd)));
            drop(permit);
        })
        .map_err(|error| failure(Reason::NoProcesses, format!("cannot start a thread: {error}")))?;
    let (from, to) = ours.into_split();
    net::relay(from, to, wanted.window_bytes, request, response).await
}

fn pair() -> io::Result<(UnixStream, StdStream)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs))
}

/// Gives this thread, and no other, the user's credentials for files.
fn become_user(identity: &Identity) -> io::Result<()> {
    crate::sys::set_thread_files_user(identity.uid, identity.gid, &identity.groups)
}
