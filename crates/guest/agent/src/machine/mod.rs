//! The agent as the first process of a virtual machine's kernel.
//!
//! A container's agent is started in a sandbox that is ready. In a machine there is only a kernel and the
//! archive that it was started with, so the agent makes the rest itself, in two steps:
//!
//! 1. [`boot`], once for many machines: the kernel's modules, the disks, the network and the two ports. A machine that waits
//!    here for its host may be saved, and restored as often as one likes, for any image and any disk.
//! 2. *becoming* a sandbox ([`control`]), when the host says so: identity, clock, fresh randomness, the image, the
//!    writable disk, the root, limits.
//!
//! A machine that is a sandbox may be copied with its memory. The copy *becomes another*: its processes go on, but
//! belong to no exec that its host knows, but for the one that the host takes over (see `Execs::disown`).
//!
//! The host's disks are told apart by their serial numbers: `image` and `disk`. The agent needs nothing else of the
//! machine's devices, and takes nothing from the image but its files.

mod control;
mod net;
mod port;
mod root;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_guest_protocol::control::Carried;
use atoll_guest_protocol::serial::{AGENT_PORT, CONTROL_PORT};
pub(crate) use port::Arrival;
use port::Port;
use tokio::sync::mpsc;

/// Where the archive keeps the kernel's modules, in the order in which they are loaded.
const MODULES: &str = "/modules";

/// A sandbox that the machine is.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) sandbox_id: String,
    /// The exec of the sandbox before that is this one's.
    pub(crate) carried: Option<Carried>,
}

/// The sandbox that the machine is: none at first, and another once the machine is a copy.
#[derive(Debug, Clone, Default)]
struct Identity(Arc<Mutex<Option<Who>>>);

impl Identity {
    fn get(&self) -> Option<Who> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, who: Who) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(who);
    }
}

/// Whether this process is the first of a machine: then no driver handed it a socket.
pub(crate) fn is_one() -> bool {
    rustix::process::getpid().is_init() && Path::new(MODULES).is_dir()
}

/// Makes everything that all sandboxes share, and waits for the host at both ports. Connections come out of the
/// channel once the machine is a sandbox.
///
/// # Errors
/// The kernel's error, and where it happened.
pub(crate) fn boot() -> io::Result<mpsc::UnboundedReceiver<Arrival>> {
    root::mount_kernel_file_systems()?;
    load_modules()?;
    let disks = root::Disks::find()?;
    net::set_up().map_err(|error| at("set up the network", error))?;
    let (agent, control) = (Port::find(AGENT_PORT)?, Port::find(CONTROL_PORT)?);
    let identity = Identity::default();
    // The control port last: a host that finds it open may save the machine.
    let arrivals = agent.carry(identity.clone())?;
    control::listen(control, identity, disks)?;
    Ok(arrivals)
}

/// The sandbox's cgroup, once the machine is one.
pub(crate) fn cgroup() -> Option<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(root::SANDBOX_CGROUP, flags, rustix::fs::Mode::empty()).ok()
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
