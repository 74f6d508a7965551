//! Standard streams of an exec: pipes, or a terminal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_guest_protocol::messages::StartExec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::tcsetwinsize;
use tokio::io::unix::AsyncFd;

use super::spawn::Program;
use super::{Exec, output, source, window_size};
use crate::sys::registered;

/// Size of the standard output pipe. The kernel allows 1 MiB, but counts the pipes of a user against
/// 64 MiB, and beyond that gives every further pipe of the sandbox two pages.
const PIPE_BYTES: usize = 256 << 10;

/// The ends of both sides. The child's are closed when this is dropped.
pub(super) struct Streams {
    child: [OwnedFd; 3],
    pub(super) terminal: Option<Rc<AsyncFd<OwnedFd>>>,
    stdin: Option<Rc<AsyncFd<OwnedFd>>>,
    stdout: Rc<AsyncFd<OwnedFd>>,
    stderr: Option<Rc<AsyncFd<OwnedFd>>>,
}

impl Streams {
    pub(super) fn open(request: &StartExec, program: &Program) -> Result<Self, Errno> {
        match &request.tty {
            Some(size) => {
                let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
                unlockpt(&master)?;
                let side = other_side(&master)?;
                tcsetwinsize(&master, window_size(size).or(Err(Errno::INVAL))?)?;
                give_to(&side, program)?;
                nonblocking(&master)?;
                let master = Rc::new(registered(master)?);
                Ok(Self {
                    child: [clone(&side)?, clone(&side)?, side],
                    stdin: request.stdin.then(|| Rc::clone(&master)),
                    stdout: Rc::clone(&master),
                    stderr: None,
                    terminal: Some(master),
                })
            }
            None => Self::pipes(request, program),
        }
    }

    fn pipes(request: &StartExec, program: &Program) -> Result<Self, Errno> {
        let (out, child_out) = pipe_with(PipeFlags::CLOEXEC)?;
        // A smaller pipe works, too.
        fcntl_setpipe_size(&out, PIPE_BYTES).unwrap_or_default();
        let (err, child_err) = pipe_with(PipeFlags::CLOEXEC)?;
        // So that the user can open `/dev/stdout` again.
        give_to(&child_out, program)?;
        give_to(&child_err, program)?;
        let (child_in, stdin) = if request.stdin {
            let (child_in, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
            give_to(&child_in, program)?;
            nonblocking(&stdin)?;
            (child_in, Some(Rc::new(registered(stdin)?)))
        } else {
            (rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?, None)
        };
        nonblocking(&out)?;
        nonblocking(&err)?;
        Ok(Self {
            child: [child_in, child_out, child_err],
            terminal: None,
            stdin,
            stdout: Rc::new(registered(out)?),
            stderr: Some(Rc::new(registered(err)?)),
        })
    }

    pub(super) fn child(&self) -> [BorrowedFd<'_>; 3] {
        let [stdin, stdout, stderr] = &self.child;
        [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]
    }

    /// Starts the tasks that move the bytes.
    pub(super) fn pump(self, exec: &Rc<Exec>) {
        let Self { child, terminal, stdin, stdout, stderr } = self;
        drop(child);
        if let Some(stdin) = stdin {
            let (exec, is_terminal) = (Rc::clone(exec), terminal.is_some());
            tokio::task::spawn_local(async move {
                if let Some(input) = &exec.input {
                    input.pump(stdin, is_terminal).await;
                }
            });
        }
        let stderr = stderr.map(|stderr| source(&stderr, true));
        tokio::task::spawn_local(output::pump(Rc::clone(exec), source(&stdout, false), stderr));
    }
}

/// The side of a terminal that programs have: of just this one, or, where the kernel cannot say so (gVisor), by its name.
fn other_side(master: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    match ioctl_tiocgptpeer(master, flags) {
        Err(Errno::NOTTY) => {
            let name = ptsname(master, Vec::new())?;
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(name, flags, Mode::empty())
        }
        opened => opened,
    }
}

fn clone(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

fn nonblocking(fd: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

fn give_to(fd: &OwnedFd, program: &Program) -> Result<(), Errno> {
    let uid = rustix::fs::Uid::from_raw(program.uid);
    match rustix::fs::fchown(fd, Some(uid), None) {
        // An id the sandbox does not have is refused later, by name.
        Err(Errno::PERM | Errno::INVAL) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}
