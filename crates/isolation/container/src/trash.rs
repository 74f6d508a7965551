//! Removes what is left of destroyed sandboxes, on a thread of its own.
//!
//! A sandbox is gone once its directory has been renamed into the trash: that is atomic, frees its id, and
//! takes some microseconds. Taking its disk apart takes longer (unmounting writes back, the loop device waits for its
//! queue, unlinking frees blocks), and no client waits for it. Files that a crash leaves here are removed at the next
//! start; an orderly end waits for the thread.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use atoll_isolation::IsolationError;
use atoll_isolation_host::private_dir;
use atoll_isolation_storage::Storage;

use crate::disk::{Disk, Disks, ReadyDisks};
use crate::step::Step;

/// Sandboxes that wait to be removed. Beyond it destroying one waits for another to be gone.
const QUEUE_MAX_COUNT: usize = 1024;

/// The directory and its thread. Dropping it finishes what waits.
#[derive(Debug)]
pub(crate) struct Trash {
    dir: PathBuf,
    storage: Arc<Storage>,
    count: AtomicU64,
    queue: Option<SyncSender<Item>>,
    thread: Option<JoinHandle<()>>,
}

struct Item {
    dir: PathBuf,
    /// The image of its disk, where there was one.
    image: PathBuf,
    /// The disk, when this process made it: the last thing that keeps it mounted.
    disk: Option<Disk>,
}

impl Trash {
    /// Empties the directory and starts the thread.
    pub(crate) fn open(
        dir: PathBuf,
        disks: Arc<Disks>,
        ready: Arc<ReadyDisks>,
        storage: Arc<Storage>,
    ) -> Result<Self, IsolationError> {
        private_dir(&dir).step("make the trash directory")?;
        for entry in std::fs::read_dir(&dir).step("list the trash directory")? {
            let path = entry.step("list the trash directory")?.path();
            std::fs::remove_dir_all(path).step("empty the trash directory")?;
        }
        let (queue, items) = sync_channel(QUEUE_MAX_COUNT);
        let thread = std::thread::Builder::new()
            .name("atoll-trash".to_owned())
            .spawn(move || empty(&items, &disks, &ready))
            .step("start the thread atoll-trash")?;
        Ok(Self { dir, storage, count: AtomicU64::new(0), queue: Some(queue), thread: Some(thread) })
    }

    /// Takes a sandbox's image and directory, where they are there, and the mount that keeps its disk mounted. The
    /// directory comes last: everything that is known of the sandbox is in it.
    pub(crate) fn take(&self, image: &Path, path: &Path, disk: Option<Disk>) -> Result<(), IsolationError> {
        let name = self.count.fetch_add(1, Ordering::Relaxed).to_string();
        let (dir, away) = (self.dir.join(&name), self.storage.trash().join(format!("{name}.img")));
        match std::fs::rename(image, &away) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.step("move the disk of a sandbox away")?,
        }
        match std::fs::rename(path, &dir) {
            // When the directory is gone, an image may still be there, of a removal that was interrupted.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && !away.try_exists().is_ok_and(|there| there) =>
            {
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir(&dir).step("make a directory in the trash")?;
            }
            other => other.step("move the directory of a sandbox away")?,
        }
        if let Some(queue) = &self.queue
            && let Err(unsent) = queue.send(Item { dir, image: away, disk })
        {
            // The thread panicked. The next start finds the directory.
            tracing::error!(dir = %unsent.0.dir.display(), "a destroyed sandbox's directory stays for now");
        }
        Ok(())
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook; there is nothing to undo.
            drop(thread.join());
        }
    }
}

fn empty(items: &Receiver<Item>, disks: &Disks, ready: &ReadyDisks) {
    for Item { dir, image, disk } in items {
        let rest = disk.and_then(|disk| disks.take_back(disk, &image, ready));
        // Unlinked first: then the data that unmounting writes back is thrown away, not written out.
        match std::fs::remove_file(&image) {
            // Kept, or there never was one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::error!(image = %image.display(), %error, "a disk stays for now"),
            Ok(()) => {}
        }
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            tracing::error!(dir = %dir.display(), %error, "a destroyed sandbox's directory stays for now");
        }
        drop(rest);
    }
}
