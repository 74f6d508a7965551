//! Puts disks in order that were not held still when their machines ended: of a journal that a power cut of the host tore, a
//! machine's kernel would mount nothing.

use std::io;
use std::path::Path;
use std::time::Duration;

use atoll_isolation::IsolationError;
use atoll_isolation_storage::filesystem;
use tokio::sync::Semaphore;

use crate::chain;
use crate::step::Step;

/// Disks that are put in order at the same time.
const AT_ONCE: usize = 2;
/// Their places, of all that this process wakes.
static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);
/// How long one waits for others.
const PLACE_TIMEOUT: Duration = Duration::from_secs(30);

/// Puts a disk in order if it needs that. One that this does not help is left to the machine's kernel: the host need not
/// understand what a machine made of its disk.
///
/// A kernel that is not honest can have each wake do this, for as long as it likes, while others wait until they may start
/// something. So few disks are put in order at once, and one that finds no place soon is left as it is.
pub(crate) async fn put_in_order(disk: &Path) {
    if let Err(error) = recover_in(&PLACES, disk, filesystem::recover_soon).await {
        tracing::warn!(disk = %disk.display(), error = chain(&error), "the disk of a machine is not put in order");
    }
}

/// Has a disk that needs it put in order by `recover`, which blocks, when there is a place for that.
async fn recover_in(
    places: &'static Semaphore,
    disk: &Path,
    recover: impl FnOnce(&Path) -> Result<(), IsolationError> + Send + 'static,
) -> Result<(), IsolationError> {
    let (looked_at, left) = (disk.to_owned(), disk.to_owned());
    if !blocking(move || filesystem::has_to_be_recovered(&looked_at)).await? {
        return Ok(());
    }
    let place = tokio::time::timeout(PLACE_TIMEOUT, places.acquire()).await;
    let place = place.map_err(io::Error::other).step("wait until other disks are in order")?;
    let place = place.map_err(io::Error::other).step("wait until other disks are in order")?;
    blocking(move || {
        // The thread goes on when nobody waits for it any more, and has its place as long.
        let _place = place;
        recover(&left)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IsolationError> + Send + 'static,
) -> Result<T, IsolationError> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other).step("run a task")?
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use tokio::task::JoinHandle;

    use super::*;

    /// Where a superblock says whether the journal has to be read, and how.
    const FEATURES_AT: usize = 1024 + 0x60;
    const RECOVER: u8 = 4;

    /// Disks and their places, and how many of the disks somebody began to put in order.
    struct World {
        dir: tempfile::TempDir,
        places: &'static Semaphore,
        begun: Arc<AtomicUsize>,
    }

    impl World {
        fn new() -> Self {
            let dir = tempfile::Builder::new().prefix("atoll-order-").tempdir().unwrap();
            let places = Box::leak(Box::new(Semaphore::new(AT_ONCE)));
            Self { dir, places, begun: Arc::default() }
        }

        /// The beginning of a disk that was not unmounted, or was.
        fn disk(&self, name: &str, is_unmounted: bool) -> PathBuf {
            let (path, mut bytes) = (self.dir.path().join(name), vec![0; 4096]);
            bytes[FEATURES_AT] = if is_unmounted { 0 } else { RECOVER };
            std::fs::write(&path, bytes).unwrap();
            path
        }

        /// Has a disk put in order, which takes until the sender goes.
        fn put_in_order(&self, disk: PathBuf) -> (JoinHandle<Result<(), IsolationError>>, mpsc::Sender<()>) {
            let (ends, end) = mpsc::channel();
            let (places, begun) = (self.places, Arc::clone(&self.begun));
            let work = move |_disk: &Path| {
                begun.fetch_add(1, Ordering::SeqCst);
                let _gone = end.recv();
                Ok(())
            };
            (tokio::spawn(async move { recover_in(places, &disk, work).await }), ends)
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }

        async fn until_begun(&self, count: usize) {
            while self.begun() < count {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Without the line that waits for a place the third disk is put in order beside the others. No clock moves by itself here
    /// as long as a thread is at work.
    #[tokio::test(start_paused = true)]
    async fn so_many_disks_are_put_in_order_at_once_and_one_that_finds_no_place_is_left_as_it_is() {
        let world = World::new();
        let (first, first_ends) = world.put_in_order(world.disk("first", false));
        let (second, second_ends) = world.put_in_order(world.disk("second", false));
        world.until_begun(AT_ONCE).await;
        let (unmounted, _ends) = world.put_in_order(world.disk("unmounted", true));
        unmounted.await.unwrap().unwrap();
        let (third, _third_ends) = world.put_in_order(world.disk("third", false));
        while !third.is_finished() && world.begun() == AT_ONCE {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(world.begun(), AT_ONCE, "no more at once, and none for a disk that was unmounted");
        assert!(third.await.unwrap().is_err(), "it does not wait for ever");
        // A wake that is given up leaves its thread, which has the place until it ends.
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(world.places.available_permits(), 0);
        drop(first_ends);
        let (next, next_ends) = world.put_in_order(world.disk("next", false));
        world.until_begun(AT_ONCE + 1).await;
        drop((second_ends, next_ends));
        second.await.unwrap().unwrap();
        next.await.unwrap().unwrap();
        assert_eq!(world.places.available_permits(), AT_ONCE, "all are given back");
    }
}
