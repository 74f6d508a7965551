//! The agent as the first process of a virtual machine's kernel.
//!
//! A container's agent is started in a sandbox that is ready. In a machine there is only a kernel and the
//! archive that it was started with, so the agent makes the rest itself, in two steps:
//!
//! 1. [`boot`], once for many machines: the kernel's modules, the image's read-only disk, the serial port
//!    to the host. A machine that waits here for its host may be saved, and restored as often as one likes.
//! 2. [`Machine::become_sandbox`], when the host opens the first connection: identity, clock, fresh
//!    randomness, the writable disk, the root. Only then has the machine a sandbox.
//!
//! The host's disks are told apart by their serial numbers: `image` and `disk`. Nothing else is asked of
//! the machine's devices, and nothing is taken from the image but its files.

mod port;
mod root;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

pub(crate) use port::{Arrival, Port};

use crate::sys;

/// Where the archive keeps the kernel's modules, in the order in which they are loaded.
const MODULES: &str = "/modules";

/// Whether this process is the first of a machine: then nobody handed it a socket.
pub(crate) fn is_one() -> bool {
    rustix::process::getpid().is_init() && Path::new(MODULES).is_dir()
}

/// A machine that has no sandbox yet.
#[derive(Debug)]
pub(crate) struct Machine {
    _ready: (),
}

/// Makes everything that all sandboxes of the image share, and finds the port to the host.
///
/// # Errors
/// What the kernel says, and where.
pub(crate) fn boot() -> io::Result<(Machine, Port)> {
    root::mount_kernel_file_systems("")?;
    load_modules()?;
    root::mount_image()?;
    Ok((Machine { _ready: () }, Port::find()?))
}

impl Machine {
    /// Gives the machine its writable root. The agent and all its threads are in it afterwards.
    ///
    /// # Errors
    /// What the kernel says, and where.
    pub(crate) fn become_sandbox(self) -> io::Result<()> {
        root::enter()?;
        sys::raise_loopback().map_err(|error| at("bring up the loopback interface", error))
    }
}

/// The directory of the machine's own cgroups, once it has a root.
pub(crate) fn cgroup() -> Option<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(root::CGROUP, flags, rustix::fs::Mode::empty()).ok()
}

fn load_modules() -> io::Result<()> {
    let mut modules: Vec<_> =
        std::fs::read_dir(MODULES)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    modules.sort();
    for module in modules {
        let file = std::fs::File::open(&module)?;
        match rustix::system::finit_module(&file, c"", 0) {
            // Built into this kernel.
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(at(&format!("load {}", module.display()), error.into())),
        }
    }
    Ok(())
}

/// An error that says where it happened.
fn at(step: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("failed to {step}: {error}"))
}
