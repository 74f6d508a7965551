//! The agent in a sandbox of gVisor. The host's kernel does the following for a container; here the agent asks the
//! sentry for it from inside:
//!
//! - The agent **listens** in a directory that the driver shares with the sandbox, on sockets that it makes.
//! - **Processes** are counted by the sentry's `pids` cgroup and limited by [`processes`]; **memory** is watched by the
//!   agent ([`memory`]), because the host's limit would end the whole sandbox. The **host name** is set here, too.
//!
//! So the agent alone has `CAP_SYS_ADMIN` and `CAP_SYS_RESOURCE` over the sentry; processes that it starts do not have
//! them. Once the agent is set up, the shared directory is covered: processes that run later find neither the sockets
//! nor the cgroup. (Root inside may trace the agent and so get all of these. That gives it power over its own sentry,
//! not over the host: its limits of processes and memory are then the host's, which are wider.)

mod control;
mod memory;
mod processes;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use atoll_guest_protocol::sentry::{AGENT_SOCKET, CONTROL_SOCKET, TMP_MARK};
use rustix::mount::{MountFlags, mount};

use memory::Memory;
pub(crate) use processes::{Processes, limited};

/// Stack of a thread.
const STACK_BYTES: usize = 128 << 10;

/// Makes the sockets in `directory`, starts answering the driver, covers the directory; gives the socket for the
/// host's connections.
///
/// # Errors
/// The sentry's error, and where it happened.
pub(crate) fn enter(directory: &Path) -> io::Result<OwnedFd> {
    let agent = listen(directory, AGENT_SOCKET)?;
    let questions = listen(directory, CONTROL_SOCKET)?;
    let processes = processes::enter(directory)?;
    let strict = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", directory, "tmpfs", strict | MountFlags::RDONLY, Some(c"mode=0555,size=4096"))
        .map_err(|error| at("cover the sockets", error.into()))?;
    let mark = Path::new("/").join(TMP_MARK);
    match std::fs::remove_file(mark) {
        // A volume lies there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => other.map_err(|error| at("remove a mark", error))?,
    }
    let memory = Arc::new(Memory::default());
    start("watch", watch, (Arc::clone(&memory), processes))?;
    let control = control::Control { processes, memory };
    start("control", control::run, (questions, control))?;
    Ok(agent.into())
}

/// Only root inside may connect, as long as it can be found at all.
fn listen(directory: &Path, name: &str) -> io::Result<UnixListener> {
    let path = directory.join(name);
    let socket = UnixListener::bind(&path).map_err(|error| at("make a socket", error))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| at("keep a socket to itself", error))?;
    Ok(socket)
}

/// Keeps the sandbox to its limits, for ever.
fn watch((memory, processes): (Arc<Memory>, &Processes)) {
    loop {
        std::thread::sleep(processes.look().min(memory.look()));
    }
}

/// Starts a thread that lives as long as the sandbox.
fn start<T: Send + 'static>(name: &str, run: fn(T), with: T) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || run(with)).map(drop)
}

/// An error that says where it happened.
fn at(step: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("failed to {step}: {error}"))
}
