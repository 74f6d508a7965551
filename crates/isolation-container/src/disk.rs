//! Writable disks with a limit: sparse ext4 images on loop devices.
//!
//! An empty file system of a given size is made once by `mke2fs` and kept in memory as the few blocks
//! that are not zero (160 KiB for 10 GiB); a disk is those blocks written to a sparse file, bound to a loop
//! device that frees itself, and mounted without a place: 1.2 ms. A program inside sees the right size and
//! gets `ENOSPC` at the limit.
//!
//! Nothing but the image file outlives the process: the mount has no place, so it ends with its last
//! descriptor or mount namespace, and the loop device ends with the mount. Images that wait in the
//! pool lie in their own directory, which is emptied at start.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_isolation::IsolationError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use crate::step::{Step, failed};
use crate::sys;

/// Sizes whose template is kept; the smallest, quickest to make again, goes first.
const TEMPLATES_MAX_COUNT: usize = 16;
/// Images that wait to be used again, and the largest, in bytes that it takes on the host.
const SPARES_MAX_COUNT: usize = 32;
const SPARE_MAX_BYTES: u64 = 4 << 20;
/// Zeros written at once.
const SCRUB_BYTES: usize = 256 << 10;
/// File system block.
const BLOCK_BYTES: usize = 4096;
/// Tries to get a loop device that another program did not take in between.
const LOOP_TRIES: usize = 64;
/// Where `mke2fs` may be.
const MKE2FS: [&str; 4] = ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs", "/usr/local/sbin/mke2fs"];

/// An empty file system: its blocks that are not zero.
struct Template {
    blocks: Vec<(u64, Vec<u8>)>,
}

/// Makes disks below one directory.
pub(crate) struct Disks {
    dir: PathBuf,
    count: AtomicU64,
    templates: Mutex<BTreeMap<u64, Arc<Template>>>,
    /// Images without content, on their devices.
    spares: Mutex<Vec<Backing>>,
    spare_bytes: u64,
}

impl std::fmt::Debug for Disks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disks").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// A mounted, empty disk with the directories `upper` and `work`.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The mount, attached nowhere.
    pub(crate) mount: OwnedFd,
    backing: Backing,
}

/// An image on a loop device, which stays bound as long as this or a mount of it lives.
#[derive(Debug)]
struct Backing {
    bytes: u64,
    image: File,
    /// Open for reading: a device that somebody may write to cannot be mounted on every host.
    _device: OwnedFd,
    number: u32,
    /// The image's place, as long as it is ours to remove.
    path: Option<PathBuf>,
}

impl Disk {
    /// Moves the image to `path`, on the same file system, and leaves it to whoever cleans up there.
    pub(crate) fn move_image(&mut self, path: &Path) -> Result<(), IsolationError> {
        if let Some(image) = &self.backing.path {
            std::fs::rename(image, path).step("move a disk image to its sandbox")?;
            self.backing.path = None;
        }
        Ok(())
    }
}

impl Backing {
    fn mount(self, template: &Template) -> Result<Disk, IsolationError> {
        template.write_to(&self.image).step("write a disk image")?;
        Ok(Disk { mount: mount(&self.device())?, backing: self })
    }

    fn device(&self) -> String {
        format!("/dev/loop{}", self.number)
    }

    /// Makes the image read as zeros, all of it. Fails when anybody still uses the device.
    fn scrub(&self) -> std::io::Result<()> {
        let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let device = rustix::fs::open(self.device(), exclusive, Mode::empty())?;
        // The device's own cache must not remember what the image held.
        sys::forget_blocks(device.as_fd())?;
        let zeros = vec![0; SCRUB_BYTES];
        for_data(&self.image, |from, to| {
            let mut at = from;
            while at < to {
                let len = usize::try_from(to - at).map_or(SCRUB_BYTES, |left| left.min(SCRUB_BYTES));
                self.image.write_all_at(&zeros[..len], at)?;
                at += len as u64;
            }
            Ok(())
        })
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(image) = &self.path
            && let Err(error) = std::fs::remove_file(image)
        {
            tracing::warn!(image = %image.display(), %error, "cannot remove an unused disk image");
        }
    }
}

/// Calls `with` for each stretch of a file that is not a hole.
fn for_data(file: &File, mut with: impl FnMut(u64, u64) -> std::io::Result<()>) -> std::io::Result<()> {
    use rustix::fs::SeekFrom;
    let mut at = 0;
    loop {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Beyond the last data.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(data))?;
        with(data, at)?;
    }
}

impl Disks {
    /// Disks lie in `dir` until they are used; what an earlier process left there is removed.
    /// Disks of `spare_bytes` may be used again.
    pub(crate) fn open(dir: PathBuf, spare_bytes: u64) -> Result<Self, IsolationError> {
        std::fs::create_dir_all(&dir).step("make the directory of ready disks")?;
        for entry in std::fs::read_dir(&dir).step("list the directory of ready disks")? {
            let path = entry.step("list the directory of ready disks")?.path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).step("remove what an earlier process left")?;
            } else {
                std::fs::remove_file(path).step("remove what an earlier process left")?;
            }
        }
        Ok(Self {
            dir,
            count: AtomicU64::new(0),
            templates: Mutex::new(BTreeMap::new()),
            spares: Mutex::default(),
            spare_bytes,
        })
    }

    /// Makes a disk of `bytes`, rounded down to whole blocks.
    pub(crate) fn make(&self, bytes: u64) -> Result<Disk, IsolationError> {
        let template = self.template(bytes)?;
        let spare = {
            let mut spares = self.spares();
            spares.iter().position(|spare| spare.bytes == bytes).map(|index| spares.swap_remove(index))
        };
        if let Some(spare) = spare {
            match spare.mount(&template) {
                Ok(disk) => return Ok(disk),
                // A process that is just being started has copies of all our descriptors, also of the
                // one that had the device for itself a moment ago.
                Err(error) => tracing::debug!(%error, "a disk is not used again"),
            }
        }
        self.make_backing(bytes)?.mount(&template)
    }

    /// An image that is all holes, on a device. Bound before anything is written: binding waits until
    /// what is written has reached the host's disk.
    fn make_backing(&self, bytes: u64) -> Result<Backing, IsolationError> {
        let path = self.next_path();
        let image =
            File::options().read(true).write(true).create_new(true).open(&path).step("make a disk image")?;
        let bound = image.set_len(bytes).step("size a disk image").and_then(|()| attach(&image));
        match bound {
            Ok((device, number)) => Ok(Backing { bytes, image, _device: device, number, path: Some(path) }),
            Err(error) => {
                std::fs::remove_file(&path).step("remove a disk image that was not needed")?;
                Err(error)
            }
        }
    }

    /// Mounts a disk that was used before and is used nowhere now. The image stays where it is.
    pub(crate) fn reopen(&self, path: &Path) -> Result<Disk, IsolationError> {
        let image =
            File::options().read(true).write(true).open(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => IsolationError::Gone,
                _ => failed("open the disk of a sandbox".to_owned(), error),
            })?;
        let bytes = image.metadata().step("measure the disk of a sandbox")?.len();
        let (device, number) = attach(&image)?;
        let backing = Backing { bytes, image, _device: device, number, path: None };
        let disk = Disk { mount: mount(&backing.device())?, backing };
        clear_work(&disk)?;
        Ok(disk)
    }

    fn next_path(&self) -> PathBuf {
        self.dir.join(format!("{}.img", self.count.fetch_add(1, Ordering::Relaxed)))
    }

    fn spares(&self) -> MutexGuard<'_, Vec<Backing>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back a disk whose sandbox is gone, with its image at `path`, to make another of it. Keeps
    /// few and small ones; gives back what it did not touch.
    ///
    /// Unlinking an image and making another costs the host's disk some tens of operations that are
    /// waited for, where it discards freed blocks. An image that is kept is first made to read as zeros
    /// everywhere: the next sandbox gets what it would get from a new one.
    pub(crate) fn take_back(&self, disk: Disk, path: &Path) -> Option<Disk> {
        use std::os::unix::fs::MetadataExt;
        let small = disk.backing.image.metadata().is_ok_and(|meta| meta.blocks() * 512 <= SPARE_MAX_BYTES);
        if !small || disk.backing.bytes != self.spare_bytes || self.spares().len() >= SPARES_MAX_COUNT {
            return Some(disk);
        }
        let Disk { mount, mut backing } = disk;
        drop(mount);
        if let Err(error) = backing.scrub() {
            tracing::debug!(%error, "a disk is not used again");
            return None;
        }
        let kept = self.next_path();
        if let Err(error) = std::fs::rename(path, &kept) {
            tracing::debug!(%error, "a disk is not used again");
            return None;
        }
        backing.path = Some(kept);
        self.spares().push(backing);
        None
    }

    fn template(&self, bytes: u64) -> Result<Arc<Template>, IsolationError> {
        let lock = || self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = lock().get(&bytes) {
            return Ok(Arc::clone(template));
        }
        // Made outside the lock: two threads may both make it, which costs time and nothing else.
        let template = Arc::new(self.make_template(bytes)?);
        let mut templates = lock();
        if templates.len() >= TEMPLATES_MAX_COUNT {
            templates.pop_first();
        }
        templates.insert(bytes, Arc::clone(&template));
        Ok(template)
    }

    fn make_template(&self, bytes: u64) -> Result<Template, IsolationError> {
        let dir = self.dir.join(format!("template-{}", self.count.fetch_add(1, Ordering::Relaxed)));
        let made = make_file_system(&dir, bytes);
        std::fs::remove_dir_all(&dir).step("remove the template of a disk")?;
        made
    }
}

fn make_file_system(dir: &Path, bytes: u64) -> Result<Template, IsolationError> {
    let content = dir.join("content");
    for name in ["upper", "work"] {
        std::fs::create_dir_all(content.join(name)).step("make the template of a disk")?;
    }
    let path = dir.join("image");
    let image = File::create_new(&path).step("make the template of a disk")?;
    image.set_len(bytes).step("size the template of a disk")?;
    let program = MKE2FS
        .into_iter()
        .find(|path| Path::new(path).try_exists().unwrap_or(false))
        .ok_or_else(|| IsolationError::Unenforceable("mke2fs is missing: install e2fsprogs".to_owned()))?;
    // No journal: a disk does not survive a crash of the host, its sandbox having died with it.
    let output = Command::new(program)
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0"])
        .args(["-O", "^has_journal,^resize_inode", "-E", "root_owner=0:0,nodiscard", "-d"])
        .arg(&content)
        .arg(&path)
        .env_clear()
        .output()
        .step("run mke2fs")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(format!("make a file system of {bytes} bytes"), std::io::Error::other(said)));
    }
    Template::read(&File::open(&path).step("open the template of a disk")?)
        .step("read the template of a disk")
}

impl Template {
    fn read(image: &File) -> std::io::Result<Self> {
        let mut blocks = Vec::new();
        for_data(image, |from, to| read_blocks(image, from, to, &mut blocks))?;
        Ok(Self { blocks })
    }

    fn write_to(&self, image: &File) -> std::io::Result<()> {
        self.blocks.iter().try_for_each(|(offset, block)| image.write_all_at(block, *offset))
    }
}

/// Reads `from..to`, leaving out blocks of zeros and joining neighbours.
fn read_blocks(image: &File, from: u64, to: u64, blocks: &mut Vec<(u64, Vec<u8>)>) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
        let piece = &mut block[..len];
        image.read_exact_at(piece, at)?;
        if piece.iter().any(|byte| *byte != 0) {
            match blocks.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u64 == at => bytes.extend_from_slice(piece),
                _ => blocks.push((at, piece.to_vec())),
            }
        }
        at += len as u64;
    }
    Ok(())
}

/// Binds an image to a loop device; gives the device, open for reading, and its number.
fn attach(image: &File) -> Result<(OwnedFd, u32), IsolationError> {
    let rdwr = OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::open("/dev/loop-control", rdwr, Mode::empty()).map_err(no_loop)?;
    for _ in 0..LOOP_TRIES {
        let number = sys::loop_free(control.as_fd()).map_err(no_loop)?;
        let path = format!("/dev/loop{number}");
        let device = rustix::fs::open(&path, rdwr, Mode::empty()).map_err(no_loop)?;
        match sys::loop_configure(device.as_fd(), image.as_fd()) {
            Ok(()) => {
                let read = OFlags::RDONLY | OFlags::CLOEXEC;
                return Ok((rustix::fs::open(&path, read, Mode::empty()).map_err(no_loop)?, number));
            }
            Err(Errno::BUSY) => {}
            Err(error) => return Err(no_loop(error)),
        }
    }
    Err(failed("find a free loop device".to_owned(), Errno::BUSY.into()))
}

fn no_loop(error: Errno) -> IsolationError {
    let why = std::io::Error::from(error);
    IsolationError::Unenforceable(format!(
        "the disk limit cannot be enforced, because loop devices are unusable here: {why}"
    ))
}

fn mount(device: &str) -> Result<OwnedFd, IsolationError> {
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).step("open the file system type ext4")?;
    fsconfig_set_string(&context, "source", device).step("name the device of a disk")?;
    // The inode tables are holes and read as zeros: no thread needs to write them. And a disk does not
    // survive a crash of the host, its sandbox having died with it, so nobody waits for the host's own.
    for option in ["noinit_itable", "nobarrier"] {
        fsconfig_set_flag(&context, option).step("set an option of a disk")?;
    }
    fsconfig_create(&context).step("mount a disk")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOATIME;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step("mount a disk")
}

/// Empties the overlay's own directory in a disk that was used before: what was going on there does not go
/// on, and an overlay that does not sync refuses to find its own traces. It was unmounted in good order, so
/// nothing is missing. The guest cannot reach this directory.
fn clear_work(disk: &Disk) -> Result<(), IsolationError> {
    use std::os::fd::AsRawFd;
    let work = PathBuf::from(format!("/proc/self/fd/{}/work", disk.mount.as_raw_fd()));
    std::fs::remove_dir_all(&work).step("empty a disk's work directory")?;
    std::fs::create_dir(&work).step("empty a disk's work directory")
}

/// The image behind a loop device, if it has one now. ` (deleted)` follows a path that is no more.
fn loop_image(number: u32) -> Option<String> {
    let path = format!("/sys/block/loop{number}/loop/backing_file");
    std::fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// Every loop device in use, with its image.
pub(crate) fn loop_images() -> std::io::Result<Vec<(u32, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
        found.extend(number.and_then(|number| Some((number, loop_image(number)?))));
    }
    Ok(found)
}
