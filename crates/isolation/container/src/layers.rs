//! Agent layers of a live container: mounted, replaced and taken away from outside, while everything in it goes on.
//!
//! A separate thread enters the container's mount namespace, does that, and ends. The namespace belongs to the host, so
//! that root inside can neither unmount nor cover what is mounted there. A layer is replaced by mounting the next one
//! *beneath* it and taking the upper one away: a process that opens a path finds the one or the other, and open files
//! stay open. Linux can do that since 6.5; with an older kernel there is no layer for a moment in between.
//!
//! When a process inside changes the path to that place (by links; it cannot mount anything), the change is refused or
//! harms only its own sandbox: no link is followed, and the host chooses the names.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use atoll_core::id::SandboxId;
use atoll_core::layer::LAYERS_DIR;
use atoll_core::volume::components;
use atoll_isolation::{IsolationError, PlannedLayer};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::Inner;
use crate::child::{Attachment, directory, raise_capabilities};
use crate::create::{mapped_clone, text};
use crate::step::{Step, failed};
use crate::sys;

/// Largest list of mounts that is read, bytes: each sandbox has some twenty, and its volumes and layers.
const MOUNTS_MAX_BYTES: u64 = 1 << 20;

/// A mount of a layer whose owner is root inside, and the way to its place.
pub(crate) fn attachment(layer: &PlannedLayer, userns: BorrowedFd<'_>) -> Result<Attachment, IsolationError> {
    let mount = mapped_clone(&layer.dir, sys::ATTR_NOSUID, userns)?;
    Ok(Attachment { mount, names: names(&layer.name)?, part: None })
}

/// The names on the way to a layer's place.
fn names(name: &str) -> Result<Vec<CString>, IsolationError> {
    components(LAYERS_DIR).into_iter().chain([name]).map(|name| text(name.to_owned())).collect()
}

/// The work that is to be done in the container, prepared before the thread enters it.
struct Visit {
    namespace: File,
    /// The host's id of root inside.
    first_id: u32,
    /// Layers that it is to have.
    wanted: Vec<Wanted>,
    /// Places of mounts that are to go.
    unwanted: Vec<Vec<CString>>,
}

struct Wanted {
    names: Vec<CString>,
    mount: OwnedFd,
    /// Device and inode of the directory.
    identity: (u64, u64),
    /// There is a layer with its name.
    replaces: bool,
}

impl Inner {
    /// Whether it is written down that a live container has no layers. Looks at one name: nothing waits.
    pub(crate) fn has_no_layers(&self, id: &SandboxId) -> Result<bool, IsolationError> {
        self.living(id)?;
        Ok(self.records.of(id).bare().is_set())
    }

    /// Sees to it that a live container has these layers and no others. Blocks for less than a millisecond.
    ///
    /// What is mounted is asked of the kernel, because a server can be killed between a mount and its record. Only a
    /// container of which [`Record::bare`](crate::record::Record::bare) is set has none for sure.
    pub(crate) fn set_layers(&self, id: &SandboxId, layers: &[PlannedLayer]) -> Result<(), IsolationError> {
        let instance = self.living(id)?;
        let record = self.records.of(id);
        let pid = instance.pid();
        let first_id = record.first_id().ok_or(IsolationError::Gone)?;
        // One change at a time, and none while its disk stands still for a snapshot.
        let _turn = instance.freezing();
        let mounted = mounted(pid)?;
        if layers.is_empty() && mounted.is_empty() {
            return record.bare().set();
        }
        record.bare().clear()?;
        let open = |kind| File::open(format!("/proc/{pid}/ns/{kind}")).step("open a namespace of a sandbox");
        let (namespace, userns) = (open("mnt")?, open("user")?);
        // A process that lives now has had its number all the time: what was opened is its own.
        self.living(id)?;
        let wanted = layers.iter().map(|layer| {
            let Attachment { mount, names, .. } = attachment(layer, userns.as_fd())?;
            let meta = layer.dir.metadata().step("look at an agent layer")?;
            let replaces = mounted.contains(&layer.name);
            Ok(Wanted { names, mount, identity: (meta.dev(), meta.ino()), replaces })
        });
        let wanted = wanted.collect::<Result<Vec<_>, IsolationError>>()?;
        let stays = |name: &&String| layers.iter().any(|layer| layer.name == **name);
        let unwanted = mounted.iter().filter(|name| !stays(name)).map(|name| names(name));
        let unwanted = unwanted.collect::<Result<Vec<_>, IsolationError>>()?;
        let visit = Visit { namespace, first_id, wanted, unwanted };
        let visitor = std::thread::Builder::new().name("atoll-layers".to_owned());
        let ended = visitor.spawn(move || visit.run()).step("start the thread atoll-layers")?.join();
        match ended.unwrap_or(Err(Errno::IO)) {
            Ok(()) if layers.is_empty() => record.bare().set(),
            Ok(()) => Ok(()),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => Err(IsolationError::BadPolicy(format!(
                "agent layers cannot be mounted: something in the sandbox that is no directory stands at, or on the way to, {LAYERS_DIR}"
            ))),
            Err(Errno::ROFS) => Err(IsolationError::BadPolicy(format!(
                "agent layers cannot be mounted: {LAYERS_DIR} in the sandbox cannot be written to"
            ))),
            Err(error) => Err(failed("mount an agent layer".to_owned(), error.into())),
        }
    }
}

impl Visit {
    /// Enters the container for good: only for a thread that ends with this.
    fn run(self) -> rustix::io::Result<()> {
        sys::unshare(UnshareFlags::FS)?;
        rustix::thread::move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        // Directories that are made belong to root inside: the host's does not exist on its disk.
        sys::set_file_ids(self.first_id);
        raise_capabilities()?;
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, rustix::fs::Mode::empty())?;
        for names in &self.unwanted {
            detach(&place(&root, names)?)?;
        }
        self.wanted.iter().try_for_each(|wanted| wanted.put(&root))
    }
}

impl Wanted {
    fn put(&self, root: &OwnedFd) -> rustix::io::Result<()> {
        let place = place(root, &self.names)?;
        if !self.replaces {
            return self.attach(&place, MoveMountFlags::empty());
        }
        let there = rustix::fs::fstat(&place)?;
        if (there.st_dev, there.st_ino) == self.identity {
            return Ok(());
        }
        match self.attach(&place, MoveMountFlags::MOVE_MOUNT_BENEATH) {
            Ok(()) => detach(&place),
            // Before Linux 6.5.
            Err(Errno::INVAL) => {
                detach(&place)?;
                self.attach(&self::place(root, &self.names)?, MoveMountFlags::empty())
            }
            refused => refused,
        }
    }

    fn attach(&self, place: &OwnedFd, how: MoveMountFlags) -> rustix::io::Result<()> {
        let by_descriptors =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&self.mount, c"", place, c"", by_descriptors | how)
    }
}

/// Opens the place of a layer, making what is missing on the way. No link is followed.
fn place(root: &OwnedFd, names: &[CString]) -> rustix::io::Result<OwnedFd> {
    names.iter().try_fold(directory(root.as_fd(), c".")?, |at, name| directory(at.as_fd(), name))
}

/// Takes away the mount whose root this is. Files that are open in it stay open.
fn detach(place: &OwnedFd) -> rustix::io::Result<()> {
    rustix::process::fchdir(place)?;
    unmount(c".", UnmountFlags::DETACH)
}

/// The names of layers that are mounted, as the process's mount namespace has them.
fn mounted(pid: i32) -> Result<BTreeSet<String>, IsolationError> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = File::open(format!("/proc/{pid}/mountinfo"))
        .and_then(|file| file.take(MOUNTS_MAX_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(layers_in(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(IsolationError::Gone),
        Err(error) => Err(failed("read the mounts of a sandbox".to_owned(), error)),
    }
}

/// Finds layers in a `mountinfo`: the fifth field of a line is where something is mounted (`proc_pid_mountinfo(5)`).
fn layers_in(mountinfo: &str) -> BTreeSet<String> {
    let places = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let names = places.filter_map(|place| place.strip_prefix(LAYERS_DIR)?.strip_prefix('/'));
    names.filter(|name| !name.contains('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_layers_are_found() {
        let text = "22 1 0:20 / / rw - overlay atoll rw\n\
                    23 22 8:1 /l/root /opt/agents/bot ro,nosuid - ext4 /dev/x rw\n\
                    24 22 8:1 /l/root /opt/agents/bot/deeper ro - ext4 /dev/x rw\n\
                    25 22 8:1 /l/root /opt/agentsbot ro - ext4 /dev/x rw\n";
        assert_eq!(layers_in(text).into_iter().collect::<Vec<_>>(), ["bot"]);
    }
}
